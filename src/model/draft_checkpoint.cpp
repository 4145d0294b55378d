// Opens a head's files: names of every form become one, and every tensor is checked against the
// configuration before anything is copied.
#include "model/draft_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "model/checkpoint_open.h"
#include "model/embedded.h"
#include "weights/safetensors.h"
#include "weights/torch_vector.h"

namespace moxie {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxConfigBytes = uint64_t{16} << 20;
constexpr size_t kMaxFiles = 64;

std::string canonical(std::string name) {
  if (name.starts_with("model.")) name = name.substr(6);
  if (name.starts_with("midlayer.")) name = "layers.0." + name.substr(9);
  return name;
}

// Tensors of kinds of heads that are not known.
bool is_refused(const std::string& name) {
  for (const char* part : {"markov", "selector", "conv_"})
    if (name.find(part) != name.npos) return true;
  return false;
}

struct Wanted {
  std::string name;
  Shape shape;
  bool is_required = true;
};

std::vector<Wanted> wanted_tensors(const DraftConfig& c) {
  const int64_t hidden = c.hidden, taps = static_cast<int64_t>(c.boundaries.size());
  const bool joins = c.kind != DraftKind::kDflash;
  std::vector<Wanted> list{{"norm.weight", {hidden}},
                           {"fc.weight", {hidden, taps * hidden}, !c.takes_final_norm},
                           {"input_norm.weight", {taps * hidden}, c.norm_before_fc},
                           {"hidden_norm.weight", {hidden}, c.kind == DraftKind::kDflash},
                           {"embed_tokens.weight", {c.vocab, hidden}, false},
                           {"lm_head.weight", {c.draft_vocab, hidden}, c.draft_vocab != c.vocab},
                           {"mask_hidden", {1, 1, taps * hidden}, c.kind == DraftKind::kPeagle}};
  if (c.fc_norm)
    for (int64_t i = 0; i < taps; ++i)
      list.push_back({fmt::format("fc_norm.{}.weight", i), {hidden}});
  for (int32_t i = 0; i < c.num_layers; ++i) {
    const auto add = [&](const char* rest, Shape shape, bool is_required = true) {
      list.push_back({fmt::format("layers.{}.{}", i, rest), shape, is_required});
    };
    const int64_t inputs = joins && i == 0 ? 2 * hidden : hidden;
    add("input_layernorm.weight", {hidden});
    add("hidden_norm.weight", {hidden}, joins && i == 0 && !c.takes_final_norm);
    add("post_attention_layernorm.weight", {hidden});
    add("self_attn.q_proj.weight", {c.q_width(), inputs});
    add("self_attn.k_proj.weight", {c.kv_width(), inputs});
    add("self_attn.v_proj.weight", {c.kv_width(), inputs});
    add("self_attn.o_proj.weight", {hidden, c.q_width()});
    add("self_attn.q_proj.bias", {c.q_width()}, false);
    add("self_attn.k_proj.bias", {c.kv_width()}, false);
    add("self_attn.v_proj.bias", {c.kv_width()}, false);
    add("self_attn.o_proj.bias", {hidden}, false);
    add("self_attn.q_norm.weight", {c.head_dim}, false);
    add("self_attn.k_norm.weight", {c.head_dim}, false);
    add("mlp.gate_proj.weight", {c.intermediate, hidden});
    add("mlp.up_proj.weight", {c.intermediate, hidden});
    add("mlp.down_proj.weight", {hidden, c.intermediate});
  }
  return list;
}

// The dtypes that a tensor may have. Quantised ones are in GGUF only.
const char* types_of(const std::string& name, const Shape& shape) {
  if (shape.rank != 2) return "BF16, F16, F32";
  // Rows of the embedding are gathered as they lie.
  return name == "embed_tokens.weight" ? "BF16, F16, F32, Q8_0" : "BF16, F16, F32, Q8_0, MXFP4";
}

bool is_one_of(const std::string& text, const std::string& list) {
  return (", " + list + ",").find(", " + text + ",") != list.npos;
}

// The configurations of the heads whose shapes synthetic heads have: z-lab/gpt-oss-120b-DFlash, the
// recipe of a DFlash head for gpt-oss-20b in NVIDIA's Model-Optimizer, and EAGLE-3 heads with the
// full vocabulary as NVIDIA publishes them.
constexpr const char* kMadeDflash = R"({
  "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": %block%,
  "dflash_config": {"mask_token_id": 200000, "target_layer_ids": %layers%},
  "num_target_layers": %target%, "num_hidden_layers": %num_layers%, "hidden_size": 2880,
  "intermediate_size": 7680, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
  "attention_bias": true, "vocab_size": 201088, "rms_norm_eps": 1e-5, "rope_theta": 150000,
  "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                   "original_max_position_embeddings": 4096, "truncate": false}})";
constexpr const char* kMadeEagle3 = R"({
  "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 2880,
  "intermediate_size": 17280, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
  "num_hidden_layers": 1, "vocab_size": 201088, "draft_vocab_size": 201088,
  "rms_norm_eps": 1e-5, "rope_theta": 150000,
  "eagle_config": {"eagle_aux_hidden_state_layer_ids": %layers%, "norm_before_fc": true,
                   "use_aux_hidden_state": true, "use_input_layernorm_in_first_layer": true,
                   "use_last_layernorm": true}})";

std::string filled(std::string text,
                   const std::vector<std::pair<std::string, std::string>>& values) {
  for (const auto& [key, value] : values) {
    const std::string mark = "%" + key + "%";
    if (const size_t at = text.find(mark); at != text.npos) text.replace(at, mark.size(), value);
  }
  return text;
}

}  // namespace

const DraftCheckpoint::Found* DraftCheckpoint::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::string DraftCheckpoint::stored_name(const std::string& name) const {
  return gguf_kind_ ? gguf_name_of_draft(*gguf_kind_, name) : name;
}

Status DraftCheckpoint::check_tensors() const {
  std::string faults;
  int num_faults = 0;
  const auto fault = [&](const std::string& text) {
    if (++num_faults <= 4) faults += (faults.empty() ? "" : "; ") + text;
  };
  for (const auto& [name, shape, is_required] : wanted_tensors(config_)) {
    const Found* found = find(name);
    if (found == nullptr) {
      if (is_required) fault("no tensor " + stored_name(name));
      continue;
    }
    const FileTensor& tensor = *found->tensor;
    const char* types = types_of(name, shape);
    if (!tensor.is_readable || !tensor.dtype || !is_one_of(tensor.dtype_text, types)) {
      fault(fmt::format("{} is {}, not {}", stored_name(name), tensor.dtype_text, types));
    } else if (tensor.shape != shape) {
      fault(fmt::format("{} is {}, the configuration says {}", stored_name(name),
                        tensor.shape.to_string(), shape.to_string()));
    }
  }
  if (const Found* d2t = find("d2t"); d2t != nullptr) {
    if (d2t->tensor->dtype_text != "I64" ||
        d2t->tensor->shape.num_elements() != config_.draft_vocab)
      fault(fmt::format("d2t is no list of {} I64 values", config_.draft_vocab));
  } else if (config_.draft_vocab != config_.vocab) {
    fault("no tensor d2t, which a reduced vocabulary needs");
  }
  for (const auto& [name, found] : tensors_)
    if (is_refused(name)) fault("tensor " + name + " belongs to a kind of head that is not known");
  if (num_faults == 0) return {};
  if (num_faults > 4) faults += fmt::format(" (and {} more)", num_faults - 4);
  return fail(faults, path_, "the head's files are damaged, or of another model");
}

void DraftCheckpoint::add_file(const TensorFile& file) {
  files_.push_back(file);
  for (const FileTensor& tensor : files_.back().tensors)
    tensors_[canonical(tensor.name)] = {&files_.back(), &tensor};
}

Status DraftCheckpoint::read(const std::string& config, const std::string& where,
                             const GptOssConfig& target, int32_t layer_id_offset) {
  // The forms are told apart by the names as they are stored.
  const auto has_tensor = [&](const std::string& name) {
    for (const TensorFile& file : files_)
      for (const FileTensor& tensor : file.tensors)
        if (tensor.name == name || tensor.name == "model." + name) return true;
    return false;
  };
  auto parsed = parse_draft_config(config, where, target, layer_id_offset, has_tensor);
  if (!parsed) return fail(std::move(parsed.error()));
  config_ = std::move(*parsed);
  return check_tensors();
}

Result<DraftCheckpoint> DraftCheckpoint::open_embedded(bool is_dflash, const GptOssConfig& target) {
  const EmbeddedHead& embedded = is_dflash ? embedded_dflash() : embedded_eagle3();
  DraftCheckpoint head;
  head.path_ = is_dflash ? "embedded DFlash head" : "embedded EAGLE-3 head";
  if (embedded.weights.empty())
    return fail("this build has no such head", head.path_, "name one with --spec-model");
  auto file = SafetensorsFile::read(MappedFile::borrow(head.path_, embedded.weights));
  if (!file) return fail(std::move(file.error()));
  head.add_file(file->contents());
  if (auto status = head.read(std::string(embedded.config_json), head.path_, target, -1); !status)
    return fail(std::move(status.error()));
  return head;
}

// A head of true shapes without data.
Result<DraftCheckpoint> DraftCheckpoint::make(const std::string& path, const GptOssConfig& target) {
  std::string config;
  if (path == "synthetic:gpt-oss-120b-dflash")
    config = filled(
        kMadeDflash,
        {{"block", "10"}, {"layers", "[1, 9, 17, 25, 33]"}, {"target", "36"}, {"num_layers", "8"}});
  else if (path == "synthetic:gpt-oss-20b-dflash")
    config = filled(
        kMadeDflash,
        {{"block", "8"}, {"layers", "[1, 6, 11, 16, 21]"}, {"target", "24"}, {"num_layers", "5"}});
  else if (path == "synthetic:gpt-oss-120b-eagle3")
    config = filled(kMadeEagle3, {{"layers", "[24, 30, 36]"}});
  else if (path == "synthetic:gpt-oss-20b-eagle3")
    config = filled(kMadeEagle3, {{"layers", "[2, 12, 21]"}});
  else
    return fail("is not a head that can be made", path,
                "synthetic:gpt-oss-120b-dflash, synthetic:gpt-oss-120b-eagle3, or the same of "
                "gpt-oss-20b");
  DraftCheckpoint head;
  head.path_ = path;
  const bool is_dflash = path.ends_with("-dflash");
  const auto has_tensor = [&](const std::string& name) {
    return name == "fc.weight" || name == "hidden_norm.weight" ||
           (!is_dflash && (name == "lm_head.weight" || name == "input_norm.weight"));
  };
  auto parsed = parse_draft_config(config, path, target, -1, has_tensor);
  if (!parsed) return fail(std::move(parsed.error()));
  head.config_ = std::move(*parsed);
  for (const auto& [name, shape, is_required] : wanted_tensors(head.config_)) {
    const bool is_bias = name.ends_with("bias") || name.ends_with("q_norm.weight") ||
                         name.ends_with("k_norm.weight");
    if (!is_required && !(is_dflash && is_bias) && !(!is_dflash && name == "lm_head.weight"))
      continue;
    head.made_.push_back({.name = name,
                          .dtype_text = "BF16",
                          .dtype = DType::kBF16,
                          .shape = shape,
                          .bytes = 2 * static_cast<uint64_t>(shape.num_elements()),
                          .is_readable = true});
    head.tensors_[name] = {nullptr, &head.made_.back()};
  }
  if (auto status = head.check_tensors(); !status) return fail(std::move(status.error()));
  return head;
}

// The .safetensors files of a folder with config.json, or its one .gguf file.
Status DraftCheckpoint::read_folder(const std::string& folder, const GptOssConfig& target,
                                    int32_t layer_id_offset) {
  std::vector<fs::path> files, ggufs;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
    if (entry.path().extension() == ".gguf") ggufs.push_back(entry.path());
  }
  if (files.empty() && ggufs.size() == 1)
    return read_gguf_file(ggufs.front().string(), target, layer_id_offset);
  if (files.empty() && ggufs.size() > 1)
    return fail(fmt::format("holds {} .gguf files", ggufs.size()), folder, "name one of them");
  if (files.empty() || files.size() > kMaxFiles)
    return fail(fmt::format("holds {} .safetensors files", files.size()), folder);
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    auto opened = SafetensorsFile::open(file.string());
    if (!opened) return fail(std::move(opened.error()));
    add_file(opened->contents());
  }
  const std::string config_path = (fs::path(folder) / "config.json").string();
  auto text = read_text_file(config_path, kMaxConfigBytes);
  if (!text) return fail(std::move(text.error()));
  return read(*text, config_path, target, layer_id_offset);
}

Status DraftCheckpoint::read_gguf_file(const std::string& path, const GptOssConfig& target,
                                       int32_t layer_id_offset) {
  auto mapped = MappedFile::open(path);
  if (!mapped) return fail(std::move(mapped.error()));
  return read_gguf_head(std::move(*mapped), target, layer_id_offset);
}

Result<DraftCheckpoint> DraftCheckpoint::open_gguf(std::shared_ptr<const MappedFile> file,
                                                   const GptOssConfig& target,
                                                   int32_t layer_id_offset) {
  DraftCheckpoint head;
  head.path_ = file->path();
  auto status = head.read_gguf_head(std::move(file), target, layer_id_offset);
  if (!status) return fail(std::move(status.error()));
  return head;
}

Status DraftCheckpoint::read_gguf_head(std::shared_ptr<const MappedFile> mapped,
                                       const GptOssConfig& target, int32_t layer_id_offset) {
  const std::string path = mapped->path();
  const GgufFile file = read_gguf(std::move(mapped));
  if (const auto& faults = file.contents.faults.all(); !faults.empty())
    return fail(faults.front().message(), "", "is the download complete?");
  gguf_kind_ = gguf_head_kind(file);
  if (!gguf_kind_)
    return fail("found the architecture \"" + file.text("general.architecture").value_or("") +
                    "\", expected a draft head",
                path, "eagle3 or dflash");
  files_.push_back(file.contents);
  for (const FileTensor& tensor : files_.back().tensors) {
    const std::string name = draft_name_of_gguf(*gguf_kind_, tensor.name);
    if (name.empty() && !is_gguf_side_tensor(tensor.name))
      return fail("tensor " + tensor.name + " belongs to a kind of head that is not known", path);
    if (!name.empty()) tensors_[name] = {&files_.back(), &tensor};
  }
  auto config =
      parse_gguf_draft_config(file, *gguf_kind_, target, layer_id_offset,
                              [&](const std::string& name) { return find(name) != nullptr; });
  if (!config) return fail(std::move(config.error()));
  config_ = std::move(*config);
  for (auto& [name, found] : tensors_)
    found.interleaved_head_dim = interleaved_head_dim(*gguf_kind_, name, config_);
  auto status = check_tensors();
  return status ? check_names() : status;
}

// SGLang and vLLM put it in the place of the target's row of the mask token. Heads of other kinds
// have no use for it.
Status DraftCheckpoint::read_mask_embedding(const std::string& folder) {
  const std::string path = (fs::path(folder) / "mask_embedding.pt").string();
  std::error_code error;
  if (config_.kind != DraftKind::kDflash || !fs::exists(path, error)) return {};
  auto file = MappedFile::open(path);
  if (!file) return fail(std::move(file.error()));
  auto vector = read_torch_vector(**file, config_.hidden);
  if (!vector) return fail(std::move(vector.error()));
  if (static_cast<int32_t>(vector->values.size()) != config_.hidden)
    return fail(
        fmt::format("holds {} values, the head is {} wide", vector->values.size(), config_.hidden),
        path, "the file of this head");
  const auto id = vector->numbers.find("mask_token_id");
  if (id != vector->numbers.end() && id->second != config_.mask_id)
    return fail(fmt::format("is of token {}, the head's mask is {}", id->second, config_.mask_id),
                path, "the file of this head");
  mask_embedding_ = std::move(vector->values);
  return {};
}

// A tensor of GGUF that the configuration has no place for is a layer too many or another head.
Status DraftCheckpoint::check_names() const {
  std::set<std::string> wanted{"d2t"};
  for (const Wanted& tensor : wanted_tensors(config_)) wanted.insert(tensor.name);
  for (const auto& [name, found] : tensors_)
    if (!wanted.contains(name))
      return fail("tensor " + found.tensor->name + " has no place in the configuration", path_,
                  "the head's files are damaged, or of another model");
  return {};
}

Result<DraftCheckpoint> DraftCheckpoint::open(const std::string& path, const GptOssConfig& target,
                                              int32_t layer_id_offset) {
  if (path.starts_with("synthetic:")) return make(path, target);
  DraftCheckpoint head;
  head.path_ = path;
  std::error_code error;
  if (!fs::exists(path, error)) {
    auto folder = find_in_hub_cache(path);
    if (!folder) return fail(std::move(folder.error()));
    head.path_ = *folder;
  }
  Status status;
  if (fs::is_directory(head.path_, error))
    status = head.read_folder(head.path_, target, layer_id_offset);
  else if (fs::path(head.path_).extension() == ".safetensors")
    status = fail("is no directory with config.json and .safetensors files, and no .gguf file",
                  head.path_, "name its folder");
  else
    status = head.read_gguf_file(head.path_, target, layer_id_offset);
  if (status)
    status = head.read_mask_embedding(fs::is_directory(head.path_, error)
                                          ? head.path_
                                          : fs::path(head.path_).parent_path().string());
  if (!status) return fail(std::move(status.error()));
  return head;
}

}  // namespace moxie
