// Matches the one list of weights with the tensors of a checkpoint, in each naming.
#include "model/stored_weights.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <string_view>
#include <unordered_set>

namespace moxie {
namespace {

struct NameRow {
  std::string_view hugging_face, original, gguf;
};
// Suffixes after "model.layers.N.", "block.N." and "blk.N.". Gate/up names of GGUF hold a hole for
// "gate", "up" or "gate_up".
constexpr NameRow kLayerNames[] = {
    {"input_layernorm.weight", "attn.norm.scale", "attn_norm.weight"},
    {"self_attn.q_proj.weight", "attn.qkv.weight", "attn_q.weight"},
    {"self_attn.q_proj.bias", "attn.qkv.bias", "attn_q.bias"},
    {"self_attn.k_proj.weight", "attn.qkv.weight", "attn_k.weight"},
    {"self_attn.k_proj.bias", "attn.qkv.bias", "attn_k.bias"},
    {"self_attn.v_proj.weight", "attn.qkv.weight", "attn_v.weight"},
    {"self_attn.v_proj.bias", "attn.qkv.bias", "attn_v.bias"},
    {"self_attn.sinks", "attn.sinks", "attn_sinks.weight"},
    {"self_attn.o_proj.weight", "attn.out.weight", "attn_output.weight"},
    {"self_attn.o_proj.bias", "attn.out.bias", "attn_output.bias"},
    {"post_attention_layernorm.weight", "mlp.norm.scale", "post_attention_norm.weight"},
    {"mlp.router.weight", "mlp.gate.weight", "ffn_gate_inp.weight"},
    {"mlp.router.bias", "mlp.gate.bias", "ffn_gate_inp.bias"},
    {"mlp.experts.gate_up_proj", "mlp.mlp1_weight", "ffn_{}_exps.weight"},
    {"mlp.experts.gate_up_proj_bias", "mlp.mlp1_bias", "ffn_{}_exps.bias"},
    {"mlp.experts.down_proj", "mlp.mlp2_weight", "ffn_down_exps.weight"},
    {"mlp.experts.down_proj_bias", "mlp.mlp2_bias", "ffn_down_exps.bias"},
};
constexpr NameRow kModelNames[] = {
    {"model.embed_tokens.weight", "embedding.weight", "token_embd.weight"},
    {"model.norm.weight", "norm.scale", "output_norm.weight"},
    {"lm_head.weight", "unembedding.weight", "output.weight"},
};
constexpr std::string_view kLayerPrefix = "model.layers.";

// Tensors that some converters write and no forward pass needs.
bool is_ignored(std::string_view name) {
  return name == "rope_freqs.weight" || name.ends_with(".rotary_emb.inv_freq");
}

std::string translate(CheckpointKind kind, const std::string& name) {
  if (kind == CheckpointKind::kHuggingFace || kind == CheckpointKind::kSynthetic) return name;
  const bool is_original = kind == CheckpointKind::kOriginal;
  if (name.starts_with(kLayerPrefix)) {
    const size_t dot = name.find('.', kLayerPrefix.size());
    const std::string layer = name.substr(kLayerPrefix.size(), dot - kLayerPrefix.size());
    const std::string_view suffix = std::string_view(name).substr(dot + 1);
    for (const NameRow& row : kLayerNames) {
      if (row.hugging_face != suffix) continue;
      return (is_original ? "block." : "blk.") + layer + "." +
             std::string(is_original ? row.original : row.gguf);
    }
  }
  for (const NameRow& row : kModelNames)
    if (row.hugging_face == name) return std::string(is_original ? row.original : row.gguf);
  CHECK(false, "no name for " + name);
  return {};
}

std::string with_hole(const std::string& name, std::string_view word) {
  std::string out = name;
  return out.replace(out.find("{}"), 2, word);
}

bool is_gate_up(const std::string& name) { return name.find(".gate_up_proj") != std::string::npos; }

// A part as named and shaped in the files, before it is looked up.
struct WantedPart {
  std::string tensor;
  Shape shape;  // of the whole tensor, dense
  int32_t first = 0, step = 1, num_rows = 0;
};

std::optional<StoredRows::Kind> stored_kind(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return StoredRows::Kind::kF32;
    case DType::kF16:
      return StoredRows::Kind::kF16;
    case DType::kBF16:
      return StoredRows::Kind::kBF16;
    case DType::kQ8_0:
      return StoredRows::Kind::kQ8_0;
    case DType::kMXFP4:
      return StoredRows::Kind::kMxfp4Gguf;
    default:
      return std::nullopt;
  }
}

class WeightFinder {
 public:
  WeightFinder(const GptOssConfig& config, const WeightNaming& naming, StoredWeights* stored,
               FaultList* faults)
      : config_(config),
        kind_(naming.kind),
        is_old_gguf_(naming.is_old_gguf),
        stored_(stored),
        faults_(faults) {
    bool is_whole = !stored->files.empty();
    for (const TensorFile& file : stored->files) {
      // A file without a readable header hides its tensors: they are not missing besides.
      is_whole = is_whole && !(file.tensors.empty() && !file.faults.empty());
      for (const FileTensor& tensor : file.tensors) add(file, tensor);
    }
    reports_missing_ = is_whole;
    if (stored->files.size() == 1) {
      where_ = stored->files[0].file->path();
    } else if (!stored->files.empty()) {
      where_ = std::filesystem::path(stored->files[0].file->path()).parent_path().string();
    }
  }

  void find(const WeightSpec& spec) {
    StoredWeight weight{.spec = spec};
    for (const WantedPart& wanted : wanted_parts(spec)) {
      StoredPart part;
      const bool is_found = spec.is_expert_matrix && kind_ != CheckpointKind::kGguf
                                ? find_expert_part(wanted, &part)
                                : find_dense_part(spec, wanted, &part);
      if (is_found) weight.parts.push_back(std::move(part));
    }
    stored_->by_name.emplace(spec.name, std::move(weight));
  }

  void report_extra() {
    for (const TensorFile& file : stored_->files) {
      for (const FileTensor& tensor : file.tensors) {
        if (used_.contains(tensor.name) || is_ignored(tensor.name)) continue;
        faults_->add({file.file->path(), tensor.name,
                      "a tensor that the model does not have (" + tensor.dtype_text + " " +
                          tensor.shape.to_string() + ")",
                      "no such tensor"});
      }
    }
  }

 private:
  struct Place {
    const TensorFile* file = nullptr;
    const FileTensor* tensor = nullptr;
  };

  void add(const TensorFile& file, const FileTensor& tensor) {
    const auto [place, is_first] = places_.try_emplace(tensor.name, Place{&file, &tensor});
    if (!is_first && place->second.file != &file) {
      faults_->add({file.file->path(), tensor.name,
                    "the name in " + place->second.file->file->path() + " too", "it in one file"});
    }
  }

  const Place* place(const std::string& name) {
    const auto found = places_.find(name);
    if (found == places_.end()) return nullptr;
    used_.insert(name);
    return &found->second;
  }

  // The rows of `spec` in its whole stored tensor or tensors.
  std::vector<WantedPart> wanted_parts(const WeightSpec& spec) {
    const std::string name = translate(kind_, spec.name);
    const int row_axis = spec.shape.rank - (spec.is_vector ? 1 : 2);
    const auto num_rows = static_cast<int32_t>(spec.shape[row_axis]);
    if (is_gate_up(spec.name)) {
      const int32_t half = num_rows / 2;
      if (kind_ != CheckpointKind::kGguf)
        return {{name, spec.shape, 0, 2, half}, {name, spec.shape, 1, 2, half}};
      const std::string merged = with_hole(name, "gate_up");
      if (places_.contains(merged) && is_old_gguf_)
        return {{merged, spec.shape, 0, 2, half}, {merged, spec.shape, 1, 2, half}};
      if (places_.contains(merged))
        return {{merged, spec.shape, 0, 1, half}, {merged, spec.shape, half, 1, half}};
      Shape shape = spec.shape;
      shape.dims[row_axis] = half;
      return {{with_hole(name, "gate"), shape, 0, 1, half},
              {with_hole(name, "up"), shape, 0, 1, half}};
    }
    const std::string fused = fused_qkv(name);
    if (!fused.empty()) {
      const int32_t q = config_.q_width(), kv = config_.kv_width();
      const bool is_k = spec.name.find(".k_proj.") != std::string::npos;
      const bool is_v = spec.name.find(".v_proj.") != std::string::npos;
      Shape shape = spec.shape;
      shape.dims[0] = config_.qkv_width();
      return {{fused, shape, is_k ? q : is_v ? q + kv : 0, 1, num_rows}};
    }
    return {{is_old_gguf_ ? old_name(name) : name, spec.shape, 0, 1, num_rows}};
  }

  // The tensor that holds q, k and v together, or nothing where they lie apart.
  std::string fused_qkv(const std::string& name) const {
    if (name.find(".attn.qkv.") != std::string::npos) return name;
    if (!is_old_gguf_) return {};
    for (const char* part : {".attn_q.", ".attn_k.", ".attn_v."}) {
      const size_t at = name.find(part);
      if (at == std::string::npos) continue;
      std::string fused = name;
      fused.replace(at, 8, ".attn_qkv.");
      return places_.contains(fused) ? fused : std::string();
    }
    return {};
  }

  // Old files use either the newer names or these.
  std::string old_name(const std::string& name) const {
    constexpr std::pair<std::string_view, std::string_view> kOldNames[] = {
        {".attn_output.", ".attn_out."},
        {".post_attention_norm.", ".ffn_norm."},
        {".attn_sinks.weight", ".attn_sinks"},
    };
    for (const auto& [newer, older] : kOldNames) {
      const size_t at = name.find(newer);
      if (at == std::string::npos) continue;
      std::string out = name;
      out.replace(at, newer.size(), older);
      if (places_.contains(out)) return out;
    }
    return name;
  }

  void missing(const std::string& name, const std::string& dtypes, const Shape& shape) {
    if (!reports_missing_) return;
    if (!reported_.insert(name).second) return;
    faults_->add({where_, name, "no such tensor", dtypes + " " + shape.to_string()});
  }

  // Looks up one tensor and checks dtype and shape; null if missing or wrong.
  const Place* checked(const std::string& name, const Shape& shape, const std::string& dtypes,
                       bool (*accepts)(DType)) {
    const Place* found = place(name);
    if (found == nullptr) {
      missing(name, dtypes, shape);
      return nullptr;
    }
    const FileTensor& tensor = *found->tensor;
    if (!tensor.is_readable) return nullptr;  // the reader has said why
    bool is_right = true;
    const auto wrong = [&](const std::string& what, const std::string& expected) {
      is_right = false;
      if (!reported_.insert(name + '\n' + expected).second) return;
      faults_->add({found->file->file->path(), name, what, expected});
    };
    if (!tensor.dtype || !accepts(*tensor.dtype))
      wrong("the dtype " + tensor.dtype_text, "the dtype " + dtypes);
    if (!(tensor.shape == shape))
      wrong("the shape " + tensor.shape.to_string(), "the shape " + shape.to_string());
    return is_right ? found : nullptr;
  }

  bool find_dense_part(const WeightSpec& spec, const WantedPart& wanted, StoredPart* part) {
    const bool is_gguf = kind_ == CheckpointKind::kGguf;
    const Place* found = spec.is_vector || !is_gguf
                             ? checked(wanted.tensor, wanted.shape, "BF16, F16 or F32",
                                       [](DType dtype) {
                                         return dtype == DType::kBF16 || dtype == DType::kF16 ||
                                                dtype == DType::kF32;
                                       })
                             : checked(wanted.tensor, wanted.shape, "MXFP4, Q8_0, BF16, F16 or F32",
                                       [](DType dtype) { return stored_kind(dtype).has_value(); });
    if (found == nullptr) return false;
    const int64_t num_experts = spec.shape.rank == (spec.is_vector ? 2 : 3) ? wanted.shape[0] : 1;
    const int64_t cols = spec.is_vector ? 1 : wanted.shape[wanted.shape.rank - 1];
    fill(*found, wanted, num_experts, cols, part);
    return true;
  }

  bool find_expert_part(const WantedPart& wanted, StoredPart* part) {
    const Shape& shape = wanted.shape;
    const bool is_original = kind_ == CheckpointKind::kOriginal;
    const std::string blocks_name = wanted.tensor + (is_original ? ".blocks" : "_blocks");
    const std::string scales_name = wanted.tensor + (is_original ? ".scales" : "_scales");
    if (places_.contains(wanted.tensor) && !places_.contains(blocks_name)) {
      // Dense: the transformers library stores experts as [E, in, out], the original as rows.
      const Shape dense = is_original ? shape : Shape{shape[0], shape[2], shape[1]};
      const Place* found = checked(wanted.tensor, dense, "BF16, F16 or F32", [](DType dtype) {
        return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32;
      });
      if (found == nullptr) return false;
      fill(*found, wanted, shape[0], shape[2], part);
      if (!is_original) {
        part->rows.transposed = true;
        part->rows.row_stride_bytes =
            static_cast<int64_t>(dtype_bytes(*found->tensor->dtype, 1)) * shape[1];
      }
      return true;
    }
    const auto is_u8 = [](DType dtype) { return dtype == DType::kU8; };
    const int64_t num_blocks = shape[2] / kMxBlock;
    const Place* blocks = checked(blocks_name, {shape[0], shape[1], num_blocks, 16}, "U8", is_u8);
    const Place* scales = checked(scales_name, {shape[0], shape[1], num_blocks}, "U8", is_u8);
    if (blocks == nullptr || scales == nullptr) return false;
    *part = {.file = blocks->file->file.get(),
             .tensor = blocks_name,
             .first = wanted.first,
             .step = wanted.step,
             .num_rows = wanted.num_rows};
    part->rows = {.kind = StoredRows::Kind::kMxfp4Split,
                  .data = data_of(*blocks),
                  .scales = data_of(*scales),
                  .row_stride_bytes = num_blocks * 16,
                  .scale_stride_bytes = num_blocks,
                  .cols = static_cast<int32_t>(shape[2])};
    part->scales_file = scales->file->file.get();
    part->expert_stride_bytes = shape[1] * num_blocks * 16;
    part->scale_expert_stride_bytes = shape[1] * num_blocks;
    return true;
  }

  static const std::byte* data_of(const Place& place) {
    return place.file->file->bytes().data() + place.tensor->offset;
  }

  void fill(const Place& found, const WantedPart& wanted, int64_t num_experts, int64_t cols,
            StoredPart* part) {
    const DType dtype = *found.tensor->dtype;
    *part = {.file = found.file->file.get(),
             .tensor = wanted.tensor,
             .first = wanted.first,
             .step = wanted.step,
             .num_rows = wanted.num_rows};
    part->rows = {
        .kind = *stored_kind(dtype),
        .data = data_of(found),
        .row_stride_bytes = static_cast<int64_t>(dtype_bytes(dtype, static_cast<uint64_t>(cols))),
        .cols = static_cast<int32_t>(cols)};
    part->expert_stride_bytes = static_cast<int64_t>(found.tensor->bytes) / num_experts;
  }

  const GptOssConfig& config_;
  CheckpointKind kind_;
  bool is_old_gguf_;
  StoredWeights* stored_;
  FaultList* faults_;
  bool reports_missing_ = true;
  std::string where_;
  std::unordered_map<std::string, Place> places_;
  std::unordered_set<std::string> used_;
  std::unordered_set<std::string> reported_;  // a tensor may serve several weights
};

DType kept_format(const StoredPart& part) {
  switch (part.rows.kind) {
    case StoredRows::Kind::kBF16:
      return DType::kBF16;
    case StoredRows::Kind::kQ8_0:
      return DType::kQ8_0;
    case StoredRows::Kind::kMxfp4Split:
    case StoredRows::Kind::kMxfp4Gguf:
      return DType::kMXFP4;
    default:
      return DType::kF32;
  }
}

}  // namespace

void find_weights(const GptOssConfig& config, const WeightNaming& naming, StoredWeights* stored,
                  FaultList* faults) {
  WeightFinder finder(config, naming, stored, faults);
  for_each_weight(config, [&](const WeightSpec& spec) { finder.find(spec); });
  finder.report_extra();
}

WeightFormats packed_formats(const GptOssConfig& config, const StoredWeights& stored,
                             const LoadOptions& options) {
  const DenseLayers &mxfp4 = options.mxfp4_layers, &mxfp8 = options.mxfp8_layers;
  // `otherwise` stands for weights that were not found: plans are made for faulty files too.
  const auto kept = [&](std::initializer_list<std::string> names, DType otherwise = DType::kBF16) {
    std::optional<DType> format;
    for (const std::string& name : names) {
      for (const StoredPart& part : stored.by_name.at(name).parts) {
        const DType one = kept_format(part);
        if (format && *format != one) return DType::kF32;
        format = one;
      }
    }
    return format.value_or(otherwise);
  };
  WeightFormats formats;
  formats.embedding = kept({"model.embed_tokens.weight"});
  // Every MXFP4 value is a BF16 value, and rows are gathered whole.
  if (formats.embedding == DType::kMXFP4) formats.embedding = DType::kBF16;
  formats.head = dense_format(mxfp4.lm_head, mxfp8.lm_head, kept({"lm_head.weight"}));
  for (int32_t i = 0; i < config.num_layers; ++i) {
    const std::string at = std::string(kLayerPrefix) + std::to_string(i) + ".";
    LayerFormats layer;
    layer.qkv = dense_format(mxfp4.qkv, mxfp8.qkv,
                             kept({at + "self_attn.q_proj.weight", at + "self_attn.k_proj.weight",
                                   at + "self_attn.v_proj.weight"}));
    layer.out = dense_format(mxfp4.o, mxfp8.o, kept({at + "self_attn.o_proj.weight"}));
    layer.router = kept({at + "mlp.router.weight"});
    layer.gate_up = kept({at + "mlp.experts.gate_up_proj"}, DType::kMXFP4);
    layer.down = kept({at + "mlp.experts.down_proj"}, DType::kMXFP4);
    formats.layers.push_back(layer);
  }
  return formats;
}

}  // namespace moxie
