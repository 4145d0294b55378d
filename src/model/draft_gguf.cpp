// Reads the keys of a head in GGUF into the JSON of the form that it was converted from, so that
// one parser checks every head.
#include "model/draft_gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "model/gguf_keys.h"

namespace moxie {
namespace {

using Json = nlohmann::json;

struct NamePair {
  const char *gguf, *draft;
  bool in_eagle3 = true, in_dflash = true;
};
// enc.output_norm is the norm of the encoder: behind fc in dflash, before it in eagle3 (in files of
// converters that know norm_before_fc).
constexpr NamePair kNames[] = {{"fc.weight", "fc.weight"},
                               {"enc.output_norm.weight", "hidden_norm.weight", false, true},
                               {"enc.output_norm.weight", "input_norm.weight", true, false},
                               {"output_norm.weight", "norm.weight"},
                               {"output.weight", "lm_head.weight"},
                               {"token_embd.weight", "embed_tokens.weight"},
                               {"d2t", "d2t"}};
// Behind "blk.N." and "layers.N.". Norms of queries and keys of eagle3 are not known: whether they
// would be interleaved as the rows are is open.
constexpr NamePair kLayerNames[] = {{"attn_norm.weight", "input_layernorm.weight"},
                                    {"attn_norm_2.weight", "hidden_norm.weight", true, false},
                                    {"attn_q.weight", "self_attn.q_proj.weight"},
                                    {"attn_k.weight", "self_attn.k_proj.weight"},
                                    {"attn_v.weight", "self_attn.v_proj.weight"},
                                    {"attn_output.weight", "self_attn.o_proj.weight"},
                                    {"attn_q.bias", "self_attn.q_proj.bias"},
                                    {"attn_k.bias", "self_attn.k_proj.bias"},
                                    {"attn_v.bias", "self_attn.v_proj.bias"},
                                    {"attn_output.bias", "self_attn.o_proj.bias"},
                                    {"attn_q_norm.weight", "self_attn.q_norm.weight", false, true},
                                    {"attn_k_norm.weight", "self_attn.k_norm.weight", false, true},
                                    {"ffn_norm.weight", "post_attention_layernorm.weight"},
                                    {"ffn_gate.weight", "mlp.gate_proj.weight"},
                                    {"ffn_up.weight", "mlp.up_proj.weight"},
                                    {"ffn_down.weight", "mlp.down_proj.weight"}};

bool is_in(GgufHeadKind kind, const NamePair& pair) {
  return kind == GgufHeadKind::kEagle3 ? pair.in_eagle3 : pair.in_dflash;
}

// Parts "PREFIX12.rest" into "12" and "rest"; false if the name is not of this form.
bool split_layer(const std::string& name, const std::string& prefix, std::string* number,
                 std::string* rest) {
  if (!name.starts_with(prefix)) return false;
  const size_t dot = name.find('.', prefix.size());
  if (dot == name.npos || dot == prefix.size() || dot > prefix.size() + 4) return false;
  *number = name.substr(prefix.size(), dot - prefix.size());
  *rest = name.substr(dot + 1);
  return number->find_first_not_of("0123456789") == number->npos;
}

// Keys of heads that compute something else. Those that are numbers or switches say so unless they
// are 0 or false.
constexpr const char* kUnknownKinds[] = {"attention.sliding_window_pattern", "conv_kernel_size",
                                         "hyper_connection_count", "sample_from_anchor",
                                         "selector_rank"};
// Factors of YaRN that gpt-oss heads do not need, and whose meaning differs between programs.
constexpr const char* kFactorsOfOne[] = {
    "rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor"};

void refuse_unknown_kinds(const GgufFile& file, GgufKeys* keys) {
  for (const char* name : kUnknownKinds) {
    const GgufValue* value = file.find(keys->key(name));
    if (value == nullptr) continue;
    const auto* flag = std::get_if<bool>(value);
    const auto number = file.real(keys->key(name));
    const bool is_idle = flag != nullptr ? !*flag : number.has_value() && *number == 0;
    if (!is_idle)
      keys->fault(keys->key(name), "a value", "nothing: heads of this kind are not supported");
  }
  for (const char* name : kFactorsOfOne) {
    double value = 1;
    keys->real(name, &value);
    if (value != 1) keys->fault(keys->key(name), fmt::format("{}", value), "1");
  }
}

// The shapes of the layers, as transformers names them.
Json read_layers(const GgufFile& file, const GptOssConfig& target, GgufKeys* keys) {
  int32_t layers = 0, hidden = 0, intermediate = 0, heads = 0, context = 131072;
  keys->integer("block_count", true, &layers);
  keys->integer("embedding_length", true, &hidden);
  keys->integer("feed_forward_length", true, &intermediate);
  keys->integer("attention.head_count", true, &heads);
  int32_t kv_heads = heads;
  keys->integer("attention.head_count_kv", false, &kv_heads);
  int32_t head_dim = heads > 0 ? hidden / heads : 0;
  keys->integer("attention.key_length", false, &head_dim);
  for (const char* name : {"attention.value_length", "rope.dimension_count"}) {
    int32_t same = head_dim;
    keys->integer(name, false, &same);
    if (same != head_dim) keys->fault(keys->key(name), std::to_string(same), "the length of keys");
  }
  keys->integer("context_length", false, &context);
  if (!keys->has("attention.layer_norm_rms_epsilon"))
    keys->fault(keys->key("attention.layer_norm_rms_epsilon"), "nothing", "a number");
  double eps = 0;
  keys->real("attention.layer_norm_rms_epsilon", &eps);
  int32_t vocab = target.vocab;
  const GgufValue* tokens = file.find("tokenizer.ggml.tokens");
  if (const auto* list = tokens == nullptr ? nullptr : std::get_if<GgufArray>(tokens))
    vocab = static_cast<int32_t>(std::min<uint64_t>(list->count, INT32_MAX));
  keys->integer("vocab_size", false, &vocab);
  Json json = {{"num_hidden_layers", layers},
               {"hidden_size", hidden},
               {"intermediate_size", intermediate},
               {"num_attention_heads", heads},
               {"num_key_value_heads", kv_heads},
               {"head_dim", head_dim},
               {"max_position_embeddings", context},
               {"rms_norm_eps", eps},
               {"vocab_size", vocab}};
  int32_t window = 0;
  keys->integer("attention.sliding_window", false, &window);
  if (window > 0) {
    json["sliding_window"] = window;
    json["layer_types"] = std::vector<std::string>(static_cast<size_t>(std::clamp(layers, 0, 4096)),
                                                   "sliding_attention");
  }
  return json;
}

// GGUF cannot say whether YaRN's correction dimensions are truncated. llama.cpp always truncates;
// heads are trained with transformers, where heads of gpt-oss take the target's rotation.
void read_rope(const GptOssConfig& target, GgufKeys* keys, Json* json) {
  double base = 10000, factor = 1, beta_fast = 32, beta_slow = 1;
  keys->real("rope.freq_base", &base);
  keys->real("rope.scaling.factor", &factor);
  keys->real("rope.scaling.yarn_beta_fast", &beta_fast);
  keys->real("rope.scaling.yarn_beta_slow", &beta_slow);
  (*json)["rope_theta"] = base;
  std::string type = keys->text("rope.scaling.type");
  if (type.empty() && keys->has("rope.scaling.type"))
    keys->fault(keys->key("rope.scaling.type"), "another kind of value", "a text");
  if (type.empty()) type = factor != 1 ? "linear" : "none";
  if (type == "none") return;
  Json scaling = {{"rope_type", type}, {"factor", factor}};
  if (type == "yarn") {
    scaling["beta_fast"] = beta_fast;
    scaling["beta_slow"] = beta_slow;
    scaling["truncate"] = target.rope_truncate;
    int32_t original = 0;
    keys->integer("rope.scaling.original_context_length", false, &original);
    if (original > 0) scaling["original_max_position_embeddings"] = original;
  } else if (type != "linear") {
    keys->fault(keys->key("rope.scaling.type"), '"' + type + '"',
                "\"yarn\", \"linear\" or \"none\"");
  }
  (*json)["rope_scaling"] = std::move(scaling);
}

// What makes boundaries of dflash.target_layers. llama.cpp takes what goes into a layer: its
// converter adds 1 to z-lab's numbers, which count outputs from 0, and so the numbers are
// boundaries. A version of it before the merge wrote z-lab's numbers as they were, and the mask's
// id under dflash.mask_token_id. z-lab spaces layers evenly from the second to the last but two,
// which tells the two apart whatever else a file says.
int32_t dflash_offset(const std::vector<int32_t>& ids, int32_t num_layers, bool has_old_mask_key) {
  if (ids.size() > 1) {
    if (ids.front() == 1 && ids.back() == num_layers - 3) return 1;
    if (ids.front() == 2 && ids.back() == num_layers - 2) return 0;
  }
  return has_old_mask_key ? 1 : 0;
}

std::vector<int32_t> read_target_layers(const GptOssConfig& target, GgufKeys* keys) {
  int32_t width = target.hidden;
  keys->integer("target_hidden_size", false, &width);
  if (width != target.hidden)
    keys->fault(keys->key("target_hidden_size"), std::to_string(width), "the target's width");
  // eagle3.extract_layers is the older name.
  const char* name = keys->has("target_layers") ? "target_layers" : "extract_layers";
  std::vector<int32_t> ids = keys->integers(name);
  if (ids.empty())
    keys->fault(keys->key("target_layers"), keys->has(name) ? "another kind of value" : "nothing",
                "a list of layer numbers");
  return ids;
}

void read_dflash(const GgufFile& file, const std::vector<int32_t>& ids, GgufKeys* keys,
                 Json* json) {
  int32_t block = 0, mask = -1;
  bool is_causal = false;
  keys->integer("block_size", true, &block);
  keys->boolean("attention.causal", &is_causal);
  if (is_causal) keys->fault(keys->key("attention.causal"), "true", "false");
  keys->integer("mask_token_id", false, &mask);
  if (mask < 0)
    mask = static_cast<int32_t>(std::clamp<int64_t>(
        file.integer("tokenizer.ggml.mask_token_id").value_or(-1), -1, INT32_MAX));
  (*json)["architectures"] = Json::array({"DFlashDraftModel"});
  (*json)["block_size"] = block;
  (*json)["dflash_config"]["target_layer_ids"] = ids;
  if (mask >= 0) (*json)["dflash_config"]["mask_token_id"] = mask;
}

void read_eagle3(const std::vector<int32_t>& ids, bool has_input_norm, GgufKeys* keys, Json* json) {
  bool before_residual = false, before_fc = has_input_norm, output = false;
  keys->boolean("norm_before_residual", &before_residual);
  keys->boolean("norm_before_fc", &before_fc);
  keys->boolean("norm_output", &output);
  if (!before_fc && has_input_norm)
    keys->fault(keys->key("norm_before_fc"), "false",
                "true, since there is enc.output_norm.weight");
  (*json)["architectures"] = Json::array({"LlamaForCausalLMEagle3"});
  (*json)["eagle_config"] = {{"eagle_aux_hidden_state_layer_ids", ids},
                             {"norm_before_residual", before_residual},
                             {"norm_before_fc", before_fc},
                             {"norm_output", output}};
}

// llama3's scaling is a tensor of divisors of the frequencies, not keys.
Status read_rope_factors(const GgufFile& file, const std::string& where, DraftConfig* config) {
  for (const FileTensor& tensor : file.contents.tensors) {
    if (!tensor.name.ends_with("rope_freqs.weight")) continue;
    std::vector<double>& inverse = config->rotary.inverse;
    if (!tensor.is_readable || tensor.dtype_text != "F32" ||
        tensor.shape.num_elements() != static_cast<int64_t>(inverse.size()))
      return fail(fmt::format("{} is {} {}, not {} F32 values", tensor.name, tensor.dtype_text,
                              tensor.shape.to_string(), inverse.size()),
                  where);
    const std::byte* data = file.contents.data(tensor);
    for (size_t i = 0; i < inverse.size(); ++i) {
      float factor = 0;
      std::memcpy(&factor, data + 4 * i, 4);
      if (!std::isfinite(factor) || !(factor > 0))
        return fail(fmt::format("{}[{}] is {}", tensor.name, i, factor), where, "a factor above 0");
      inverse[i] /= factor;
    }
    return {};
  }
  return {};
}

int64_t rows_of(const GgufFile& file, const std::string& name, int64_t preset) {
  for (const FileTensor& tensor : file.contents.tensors)
    if (tensor.name == name && tensor.shape.rank > 0) return tensor.shape[0];
  return preset;
}

}  // namespace

std::optional<GgufHeadKind> gguf_head_kind(const GgufFile& file) {
  const std::string architecture = file.text("general.architecture").value_or("");
  if (architecture == "eagle3") return GgufHeadKind::kEagle3;
  if (architecture == "dflash") return GgufHeadKind::kDflash;
  return std::nullopt;
}

std::string draft_name_of_gguf(GgufHeadKind kind, const std::string& gguf_name) {
  for (const NamePair& pair : kNames)
    if (is_in(kind, pair) && gguf_name == pair.gguf) return pair.draft;
  std::string number, rest;
  if (!split_layer(gguf_name, "blk.", &number, &rest)) return "";
  for (const NamePair& pair : kLayerNames)
    if (is_in(kind, pair) && rest == pair.gguf) return "layers." + number + "." + pair.draft;
  return "";
}

std::string gguf_name_of_draft(GgufHeadKind kind, const std::string& name) {
  for (const NamePair& pair : kNames)
    if (is_in(kind, pair) && name == pair.draft) return pair.gguf;
  std::string number, rest;
  if (!split_layer(name, "layers.", &number, &rest)) return name;
  for (const NamePair& pair : kLayerNames)
    if (is_in(kind, pair) && rest == pair.draft) return "blk." + number + "." + pair.gguf;
  return name;
}

bool is_gguf_side_tensor(const std::string& gguf_name) {
  return gguf_name.ends_with("rope_freqs.weight") || gguf_name == "t2d";
}

int32_t interleaved_head_dim(GgufHeadKind kind, const std::string& name,
                             const DraftConfig& config) {
  const bool turns = name.find(".q_proj.") != name.npos || name.find(".k_proj.") != name.npos;
  return kind == GgufHeadKind::kEagle3 && turns ? config.head_dim : 0;
}

Result<DraftConfig> parse_gguf_draft_config(const GgufFile& file, GgufHeadKind kind,
                                            const GptOssConfig& target, int32_t layer_id_offset,
                                            const HasTensor& has_tensor) {
  const std::string& where = file.contents.file->path();
  const bool is_dflash = kind == GgufHeadKind::kDflash;
  GgufKeys keys(file, is_dflash ? "dflash" : "eagle3");
  if (const int64_t parts = file.integer("split.count").value_or(1); parts > 1)
    return fail(fmt::format("is one of {} parts", parts), where, "a head in one file");
  refuse_unknown_kinds(file, &keys);
  Json json = read_layers(file, target, &keys);
  read_rope(target, &keys, &json);
  const std::vector<int32_t> ids = read_target_layers(target, &keys);
  json["draft_vocab_size"] =
      rows_of(file, "d2t", rows_of(file, "output.weight", json["vocab_size"].get<int32_t>()));
  int32_t offset = layer_id_offset;
  if (is_dflash) {
    read_dflash(file, ids, &keys, &json);
    if (offset < 0) offset = dflash_offset(ids, target.num_layers, keys.has("mask_token_id"));
  } else {
    read_eagle3(ids, has_tensor("input_norm.weight"), &keys, &json);
    offset = std::max(offset, 0);
  }
  if (!keys.faults().empty()) return fail(keys.faults(), where);
  if (!has_tensor("fc.weight")) return fail("no tensor fc.weight", where);
  auto config = parse_draft_config(json.dump(), where, target, offset, has_tensor);
  if (!config) return config;
  config->form = "GGUF";
  if (auto status = read_rope_factors(file, where, &*config); !status)
    return fail(std::move(status.error()));
  return config;
}

}  // namespace moxie
