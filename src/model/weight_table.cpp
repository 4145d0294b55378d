// The table, and the functions of an entry and a configuration.
#include "model/weight_table.h"

namespace moxie {
namespace {

constexpr uint8_t kHuggingFace = static_cast<uint8_t>(FileFormat::kHuggingFace);
constexpr uint8_t kOriginal = static_cast<uint8_t>(FileFormat::kOriginal);
constexpr uint8_t kNewGguf = static_cast<uint8_t>(FileFormat::kGguf);
constexpr uint8_t kOldGguf = static_cast<uint8_t>(FileFormat::kOldGguf);
constexpr uint8_t kGguf = kNewGguf | kOldGguf;

using Ways = decltype(WeightEntry::stored);

// A weight of one part: a name in each format, and the older one of kOldGguf where it differs.
constexpr Ways named(std::string_view hugging_face, std::string_view original,
                     std::string_view gguf, std::string_view old_gguf = {}) {
  return {{{kHuggingFace, PartsIn::kOwn, {hugging_face}},
           {kOriginal, PartsIn::kOwn, {original}},
           {old_gguf.empty() ? uint8_t{0} : kOldGguf, PartsIn::kOwn, {old_gguf}},
           {kGguf, PartsIn::kOwn, {gguf}}}};
}

using Model = ModelWeights;
using Layer = LayerWeights;
using Config = GptOssConfig;
using Quantised = DenseLayers;
constexpr PackedRowOrder kQkvOrder = PackedRowOrder::kQkv, kGateUpOrder = PackedRowOrder::kGateUp;
constexpr StoredTypes kDense = StoredTypes::kDense, kBlocks = StoredTypes::kExperts;
constexpr Dim kHidden = [](const Config& c) { return DimRange{0, c.hidden}; };
constexpr Dim kInter = [](const Config& c) {
  return DimRange{c.share.first_column, c.intermediate};
};
constexpr Dim kHeads = [](const Config& c) { return DimRange{c.share.first_head, c.num_heads}; };
constexpr Dim kQ = [](const Config& c) {
  return DimRange{c.share.first_head * c.head_dim, c.q_width()};
};
constexpr Dim kKv = [](const Config& c) {
  return DimRange{c.share.first_kv_head * c.head_dim, c.kv_width()};
};
constexpr Dim kExperts = [](const Config& c) { return DimRange{0, c.num_experts}; };
constexpr Dim kVocab = [](const Config& c) { return DimRange{0, c.vocab}; };
constexpr Dim kLogits = [](const Config& c) {
  return DimRange{c.share.first_logit, c.unembed_rows()};
};

// clang-format off
constexpr WeightEntry kTable[] = {
    {.name = "embedding", .place = &Model::embedding, .parts = {kVocab}, .cols = kHidden,
     .types = kDense, .made = 1.0,
     .stored = named("model.embed_tokens.weight", "embedding.weight", "token_embd.weight")},
    {.name = "input_norm", .place = &Layer::input_norm, .parts = {kHidden}, .made = 1.0,
     .stored = named("input_layernorm.weight", "attn.norm.scale", "attn_norm.weight")},
    {.name = "qkv", .place = &Layer::qkv, .parts = {kQ, kKv, kKv}, .cols = kHidden,
     .order = kQkvOrder, .types = kDense, .shard = ShardAxis::kRows,
     .quantised = &Quantised::qkv, .made = 1.0,
     .stored = {{{kHuggingFace, PartsIn::kOwn, {"self_attn.q_proj.weight",
                                                "self_attn.k_proj.weight",
                                                "self_attn.v_proj.weight"}},
                 {kOriginal, PartsIn::kStacked, {"attn.qkv.weight"}},
                 {kOldGguf, PartsIn::kStacked, {"attn_qkv.weight"}},
                 {kGguf, PartsIn::kOwn, {"attn_q.weight", "attn_k.weight", "attn_v.weight"}}}}},
    {.name = "qkv_bias", .place = &Layer::qkv_bias, .parts = {kQ, kKv, kKv},
     .shard = ShardAxis::kRows, .has = &Config::attention_bias,
     .stored = {{{kHuggingFace, PartsIn::kOwn, {"self_attn.q_proj.bias", "self_attn.k_proj.bias",
                                                "self_attn.v_proj.bias"}},
                 {kOriginal, PartsIn::kStacked, {"attn.qkv.bias"}},
                 {kOldGguf, PartsIn::kStacked, {"attn_qkv.bias"}},
                 {kGguf, PartsIn::kOwn, {"attn_q.bias", "attn_k.bias", "attn_v.bias"}}}}},
    {.name = "sinks", .place = &Layer::sinks, .parts = {kHeads}, .shard = ShardAxis::kRows,
     .has = &Config::attention_sinks, .absent = Absent::kNone,
     .stored = named("self_attn.sinks", "attn.sinks", "attn_sinks.weight", "attn_sinks")},
    {.name = "out", .place = &Layer::out, .parts = {kHidden}, .cols = kQ,
     .types = kDense, .shard = ShardAxis::kColumns, .quantised = &Quantised::o, .made = 0.5,
     .stored = named("self_attn.o_proj.weight", "attn.out.weight",
                     "attn_output.weight", "attn_out.weight")},
    {.name = "out_bias", .place = &Layer::out_bias, .parts = {kHidden},
     .shard = ShardAxis::kFirstRank, .has = &Config::attention_bias,
     .stored = named("self_attn.o_proj.bias", "attn.out.bias",
                     "attn_output.bias", "attn_out.bias")},
    {.name = "post_norm", .place = &Layer::post_norm, .parts = {kHidden}, .made = 1.0,
     .stored = named("post_attention_layernorm.weight", "mlp.norm.scale",
                     "post_attention_norm.weight", "ffn_norm.weight")},
    {.name = "router", .place = &Layer::router, .parts = {kExperts}, .cols = kHidden,
     .types = kDense, .has = &Config::mlp_router, .made = 1.0,
     .stored = named("mlp.router.weight", "mlp.gate.weight", "ffn_gate_inp.weight")},
    {.name = "router_bias", .place = &Layer::router_bias, .parts = {kExperts},
     .has = &Config::mlp_router_bias,
     .stored = named("mlp.router.bias", "mlp.gate.bias", "ffn_gate_inp.bias")},
    {.name = "gate_up", .place = &Layer::gate_up, .parts = {kInter, kInter}, .cols = kHidden,
     .is_per_expert = true, .order = kGateUpOrder, .types = kBlocks,
     .shard = ShardAxis::kExperts, .made = 1.0,
     .stored = {{{kHuggingFace, PartsIn::kInTurn, {"mlp.experts.gate_up_proj"}},
                 {kOriginal, PartsIn::kInTurn, {"mlp.mlp1_weight"}},
                 {kOldGguf, PartsIn::kInTurn, {"ffn_gate_up_exps.weight"}},
                 {kNewGguf, PartsIn::kStacked, {"ffn_gate_up_exps.weight"}},
                 {kGguf, PartsIn::kOwn, {"ffn_gate_exps.weight", "ffn_up_exps.weight"}}}}},
    {.name = "gate_up_bias", .place = &Layer::gate_up_bias, .parts = {kInter, kInter},
     .is_per_expert = true, .order = kGateUpOrder, .shard = ShardAxis::kExperts,
     .has = &Config::mlp_bias,
     .stored = {{{kHuggingFace, PartsIn::kInTurn, {"mlp.experts.gate_up_proj_bias"}},
                 {kOriginal, PartsIn::kInTurn, {"mlp.mlp1_bias"}},
                 {kOldGguf, PartsIn::kInTurn, {"ffn_gate_up_exps.bias"}},
                 {kNewGguf, PartsIn::kStacked, {"ffn_gate_up_exps.bias"}},
                 {kGguf, PartsIn::kOwn, {"ffn_gate_exps.bias", "ffn_up_exps.bias"}}}}},
    {.name = "down", .place = &Layer::down, .parts = {kHidden}, .cols = kInter,
     .is_per_expert = true, .types = kBlocks, .shard = ShardAxis::kExperts, .made = 0.5,
     .stored = named("mlp.experts.down_proj", "mlp.mlp2_weight", "ffn_down_exps.weight")},
    {.name = "down_bias", .place = &Layer::down_bias, .parts = {kHidden},
     .is_per_expert = true, .shard = ShardAxis::kFirstRank, .has = &Config::mlp_bias,
     .stored = named("mlp.experts.down_proj_bias", "mlp.mlp2_bias", "ffn_down_exps.bias")},
    {.name = "final_norm", .place = &Model::final_norm, .parts = {kHidden}, .made = 1.0,
     .stored = named("model.norm.weight", "norm.scale", "output_norm.weight")},
    {.name = "head", .place = &Model::head, .parts = {kLogits}, .cols = kHidden,
     .types = kDense, .shard = ShardAxis::kVocabulary, .quantised = &Quantised::lm_head,
     .made = 2.0, .stored = named("lm_head.weight", "unembedding.weight", "output.weight")},
};
// clang-format on

bool is_of_layers(const WeightEntry& entry) {
  return std::holds_alternative<PackedMatrix LayerWeights::*>(entry.place) ||
         std::holds_alternative<const float * LayerWeights::*>(entry.place);
}

Weight make_weight(const WeightEntry& entry, const GptOssConfig& config, int32_t layer,
                   size_t index) {
  Weight weight{.entry = &entry, .index = index, .layer = layer, .num_parts = 0};
  weight.is_present = entry.has == nullptr || config.*entry.has;
  for (const Dim dim : entry.parts) {
    if (dim == nullptr) break;
    const auto [first, rows] = dim(config);
    weight.part_first[weight.num_parts] = first;
    weight.part_rows[weight.num_parts++] = rows;
    weight.all_parts_rows += rows;
    weight.rows += weight.is_gate_up() ? round_up(rows, 16) : rows;
  }
  if (entry.is_per_expert) {
    weight.first_expert = config.share.first_expert;
    weight.num_experts = config.experts_held();
  }
  if (entry.cols != nullptr) {
    const auto [first, cols] = entry.cols(config);
    weight.first_col = first;
    weight.cols = cols;
  }
  return weight;
}

// The tensor that holds `num_rows` rows of a weight.
Shape tensor_shape(const Weight& weight, int32_t num_rows) {
  Shape shape;
  if (weight.entry->is_per_expert) shape.dims[shape.rank++] = weight.num_experts;
  shape.dims[shape.rank++] = num_rows;
  if (!weight.is_vector()) shape.dims[shape.rank++] = weight.cols;
  return shape;
}

}  // namespace

std::span<const WeightEntry> weight_table() { return kTable; }

std::string Weight::name() const {
  const std::string own(entry->name);
  return layer < 0 ? own : "layers." + std::to_string(layer) + "." + own;
}

void for_each_weight(const GptOssConfig& config, const std::function<void(const Weight&)>& visit) {
  const std::span<const WeightEntry> table = weight_table();
  size_t index = 0;
  for (size_t i = 0; i < table.size();) {
    if (!is_of_layers(table[i])) {
      visit(make_weight(table[i++], config, -1, index++));
      continue;
    }
    const size_t begin = i;
    while (i < table.size() && is_of_layers(table[i])) ++i;
    for (int32_t layer = 0; layer < config.num_layers; ++layer)
      for (size_t k = begin; k < i; ++k) visit(make_weight(table[k], config, layer, index++));
  }
}

std::vector<PartInFile> parts_in_file(const Weight& weight, FileFormat format,
                                      const std::function<bool(const std::string&)>& has_tensor) {
  std::string prefix;
  if (weight.layer >= 0)
    prefix = std::string(format_names(format).layer_prefix) + std::to_string(weight.layer) + ".";
  const auto full_name = [&](std::string_view name) { return prefix + std::string(name); };
  const StoredAs* way = nullptr;
  for (const StoredAs& one : weight.entry->stored) {
    if ((one.formats & static_cast<uint8_t>(format)) == 0) continue;
    way = &one;
    if (has_tensor(full_name(one.names[0]))) break;
  }
  CHECK(way != nullptr, weight.name());
  std::vector<PartInFile> parts;
  int32_t row = 0;
  for (int p = 0; p < weight.num_parts; ++p) {
    const bool is_own = way->parts == PartsIn::kOwn, is_in_turn = way->parts == PartsIn::kInTurn;
    const int32_t num_rows = weight.part_rows[p];
    parts.push_back({.tensor = full_name(way->names[is_own ? p : 0]),
                     .shape = tensor_shape(weight, is_own ? num_rows : weight.all_parts_rows),
                     .first = is_own       ? 0
                              : is_in_turn ? p
                                           : row,
                     .step = is_in_turn ? weight.num_parts : 1,
                     .num_rows = num_rows});
    row += num_rows;
  }
  return parts;
}

std::vector<TensorInFile> tensors_in_file(const Weight& weight, FileFormat format) {
  std::vector<TensorInFile> tensors;
  for (const PartInFile& part : parts_in_file(weight, format))
    if (tensors.empty() || tensors.back().name != part.tensor)
      tensors.push_back({part.tensor, part.shape});
  return tensors;
}

const FormatNames& format_names(FileFormat format) {
  static constexpr FormatNames kHuggingFaceNames{"model.layers.", "_blocks", "_scales"};
  static constexpr FormatNames kOriginalNames{"block.", ".blocks", ".scales"};
  static constexpr FormatNames kGgufNames{"blk.", {}, {}};
  if (format == FileFormat::kHuggingFace) return kHuggingFaceNames;
  return format == FileFormat::kOriginal ? kOriginalNames : kGgufNames;
}

}  // namespace moxie
