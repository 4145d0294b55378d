// Finds out which form a head has, and reads it.
#include "model/draft_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>

namespace moxie {
namespace {

using Json = nlohmann::json;

constexpr int32_t kMostLayers = 64, kMostWidth = 1 << 16, kMostBlock = 64, kMostVocab = 1 << 21;

// Looks a field up in several objects, the first that has it.
class Fields {
 public:
  Fields(std::vector<const Json*> objects, std::string where)
      : objects_(std::move(objects)), where_(std::move(where)) {}

  const Json* find(const char* name) const {
    for (const Json* object : objects_) {
      if (!object->is_object()) continue;
      const auto found = object->find(name);
      if (found != object->end() && !found->is_null()) return &*found;
    }
    return nullptr;
  }
  bool flag(const char* name, bool preset) {
    const Json* value = find(name);
    if (value == nullptr) return preset;
    if (!value->is_boolean()) fault(name, "true or false");
    return value->is_boolean() ? value->get<bool>() : preset;
  }
  // In 0 .. most; `preset` where it is absent, unless that is negative.
  int32_t integer(const char* name, int32_t preset, int32_t most) {
    const Json* value = find(name);
    if (value == nullptr && preset >= 0) return preset;
    if (value == nullptr || !value->is_number_integer() || value->get<int64_t>() < 0 ||
        value->get<int64_t>() > most) {
      fault(name, fmt::format("a whole number of at most {}", most));
      return 0;
    }
    return static_cast<int32_t>(value->get<int64_t>());
  }
  double real(const char* name, double preset) {
    const Json* value = find(name);
    if (value == nullptr) return preset;
    if (!value->is_number() || !std::isfinite(value->get<double>())) {
      fault(name, "a number");
      return preset;
    }
    return value->get<double>();
  }
  std::string text(const char* name) {
    const Json* value = find(name);
    return value != nullptr && value->is_string() ? value->get<std::string>() : "";
  }
  std::optional<std::vector<int32_t>> integers(const char* name) {
    const Json* value = find(name);
    if (value == nullptr) return std::nullopt;
    std::vector<int32_t> list;
    bool is_sound = value->is_array() && !value->empty() && value->size() <= kMostLayers;
    for (size_t i = 0; is_sound && i < value->size(); ++i) {
      const Json& entry = (*value)[i];
      is_sound =
          entry.is_number_integer() && entry.get<int64_t>() >= 0 && entry.get<int64_t>() <= 100000;
      if (is_sound) list.push_back(static_cast<int32_t>(entry.get<int64_t>()));
    }
    if (!is_sound) fault(name, "a list of layer numbers");
    return is_sound ? std::optional(list) : std::nullopt;
  }
  void fault(const std::string& name, const std::string& expected) {
    if (fault_.empty()) fault_ = fmt::format("{}: expected {}", name, expected);
  }
  const std::string& first_fault() const { return fault_; }

 private:
  std::vector<const Json*> objects_;
  std::string where_, fault_;
};

const Json kNothing = Json::object();

const Json& member(const Json& object, const char* name) {
  if (!object.is_object()) return kNothing;
  const auto found = object.find(name);
  return found != object.end() && found->is_object() ? *found : kNothing;
}

// Default, linear, llama3 and YaRN, as transformers computes them.
Status read_rope(Fields& layer, const Json& config, DraftConfig* out, const std::string& where) {
  const Json* scaling = &member(config, "rope_parameters");
  if (scaling->empty()) scaling = &member(config, "rope_scaling");
  Fields rope({scaling, &config}, where);
  const double theta = rope.real("rope_theta", 10000.0);
  const double factor = rope.real("factor", 1.0);
  const double original =
      rope.real("original_max_position_embeddings", layer.real("max_position_embeddings", 131072));
  std::string type = rope.text("rope_type");
  if (type.empty()) type = rope.text("type");
  if (!(theta > 1) || !(factor > 0) || !(original > 0))
    return fail("rope_theta, factor and original_max_position_embeddings must be positive", where);
  const int32_t half = out->head_dim / 2;
  for (int32_t i = 0; i < half; ++i)
    out->rotary.inverse.push_back(std::pow(theta, -2.0 * i / out->head_dim));
  if (type.empty() || type == "default") return {};
  if (type == "linear") {
    for (double& frequency : out->rotary.inverse) frequency /= factor;
    return {};
  }
  if (type == "llama3") {
    const double low = rope.real("low_freq_factor", 1), high = rope.real("high_freq_factor", 4);
    if (!(high > low) || !(low > 0)) return fail("high_freq_factor must exceed the low one", where);
    for (double& frequency : out->rotary.inverse) {
      const double length = 2 * std::numbers::pi / frequency;
      const double smooth = std::clamp((original / length - low) / (high - low), 0.0, 1.0);
      frequency = (1 - smooth) * frequency / factor + smooth * frequency;
    }
    return {};
  }
  if (type != "yarn")
    return fail("unknown rope_type '" + type + "'", where, "yarn, llama3, linear");
  GptOssConfig yarn;
  yarn.head_dim = out->head_dim;
  yarn.rope_theta = theta;
  yarn.rope_factor = factor;
  yarn.rope_beta_fast = rope.real("beta_fast", 32);
  yarn.rope_beta_slow = rope.real("beta_slow", 1);
  yarn.rope_original_context = static_cast<int32_t>(std::min(original, 1e9));
  yarn.rope_truncate = rope.flag("truncate", true);
  const YarnFrequencies found = yarn_frequencies(yarn);
  out->rotary.inverse = found.inverse;
  out->rotary.concentration = rope.real("attention_factor", found.concentration);
  return {};
}

Status read_layers(Fields& layer, const Json& config, const GptOssConfig& target,
                   const std::string& where, DraftConfig* out) {
  out->hidden = layer.integer("hidden_size", -1, kMostWidth);
  out->intermediate = layer.integer("intermediate_size", -1, kMostWidth);
  out->num_heads = layer.integer("num_attention_heads", -1, 1024);
  out->num_kv_heads = layer.integer("num_key_value_heads", out->num_heads, 1024);
  out->num_layers = layer.integer("num_hidden_layers", 1, kMostLayers);
  const int32_t by_width = out->num_heads > 0 ? out->hidden / out->num_heads : 0;
  out->head_dim = layer.integer("head_dim", by_width, 256);
  out->vocab = layer.integer("vocab_size", target.vocab, kMostVocab);
  out->rms_eps = static_cast<float>(layer.real("rms_norm_eps", 1e-6));
  if (const std::string& act = layer.text("hidden_act"); !act.empty() && act != "silu")
    layer.fault("hidden_act", "silu");
  if (layer.first_fault().empty() &&
      (out->hidden <= 0 || out->intermediate <= 0 || out->num_heads <= 0 ||
       out->num_kv_heads <= 0 || out->num_heads % out->num_kv_heads != 0 || out->num_layers <= 0 ||
       out->head_dim % 32 != 0 || out->head_dim <= 0 || out->intermediate % 16 != 0 ||
       out->hidden % 32 != 0))
    return fail("sizes of layers that no head has (heads, widths)", where);
  if (!layer.first_fault().empty()) return fail(layer.first_fault(), where);
  if (out->hidden != target.hidden)
    return fail(fmt::format("the head is {} wide, the target {}", out->hidden, target.hidden),
                where, "a head of this model");
  out->windows.assign(static_cast<size_t>(out->num_layers), 0);
  if (const Json* types = layer.find("layer_types"); types != nullptr && types->is_array()) {
    const int32_t window = layer.integer("sliding_window", 0, 1 << 30);
    for (size_t i = 0; i < std::min(types->size(), out->windows.size()); ++i)
      if ((*types)[i] == "sliding_attention") out->windows[i] = window;
  }
  return read_rope(layer, config, out, where);
}

// The boundaries that most heads of EAGLE's kind are trained with.
std::vector<int32_t> default_boundaries(int32_t num_layers) {
  return {2, num_layers / 2, num_layers - 3};
}

Status set_boundaries(std::vector<int32_t> ids, int32_t offset, const GptOssConfig& target,
                      const std::string& where, DraftConfig* out) {
  for (int32_t& id : ids) id += offset;
  std::sort(ids.begin(), ids.end());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] > target.num_layers || ids[i] < 0 || (i > 0 && ids[i] == ids[i - 1]))
      return fail(
          fmt::format("layer id {} does not fit a target of {} layers", ids[i], target.num_layers),
          where, "a head of this model, or another layer_id_offset");
  }
  out->boundaries = std::move(ids);
  return {};
}

Status read_eagle(Fields& top, const Json& config, const GptOssConfig& target, int32_t offset,
                  const HasTensor& has_tensor, const std::string& where, DraftConfig* out) {
  const Json& eagle = member(config, "eagle_config");
  Fields flags({&eagle, &config}, where);
  const bool is_speculators = out->form == "speculators";
  out->norm_before_residual = flags.flag("norm_before_residual", is_speculators);
  out->norm_before_fc = flags.flag("norm_before_fc", has_tensor("input_norm.weight"));
  out->fc_norm = flags.flag("fc_norm", has_tensor("fc_norm.0.weight"));
  out->norm_output = flags.flag("norm_output", false);
  if (out->norm_before_fc && out->fc_norm)
    return fail("norm_before_fc and fc_norm exclude each other", where);
  out->draft_vocab = top.integer("draft_vocab_size", out->vocab, kMostVocab);
  out->takes_final_norm = !has_tensor("fc.weight") || !flags.flag("use_aux_hidden_state", true);
  const bool is_peagle = has_tensor("mask_hidden");
  if (is_peagle) {
    out->kind = DraftKind::kPeagle;
    out->form = is_speculators ? out->form : "P-EAGLE";
    out->num_drafts = 5;
    for (const char* name : {"mask_token_id", "ptd_token_id"})
      if (out->mask_id < 0 && flags.find(name) != nullptr)
        out->mask_id = flags.integer(name, 0, kMostVocab);
    if (out->mask_id < 0 || out->mask_id >= target.vocab)
      return fail("the head has mask_hidden, and no ptd_token_id in the vocabulary", where);
  }
  if (!flags.first_fault().empty() || !top.first_fault().empty())
    return fail(flags.first_fault() + top.first_fault(), where);
  if (out->takes_final_norm) {
    out->boundaries = {target.num_layers};
    return {};
  }
  const bool is_specforge = out->form == "SpecForge";
  auto ids = flags.integers("eagle_aux_hidden_state_layer_ids");
  if (!ids) ids = flags.integers("aux_hidden_state_layer_ids");
  if (!flags.first_fault().empty()) return fail(flags.first_fault(), where);
  if (!ids) return set_boundaries(default_boundaries(target.num_layers), 0, target, where, out);
  const bool names_the_end = *std::max_element(ids->begin(), ids->end()) == target.num_layers;
  const int32_t by_form = is_specforge && !names_the_end ? 1 : 0;
  return set_boundaries(std::move(*ids), offset >= 0 ? offset : by_form, target, where, out);
}

Status read_dflash(Fields& top, const Json& config, const GptOssConfig& target, int32_t offset,
                   const HasTensor& has_tensor, const std::string& where, DraftConfig* out) {
  const Json& nested = member(config, "dflash_config");
  Fields fields({&nested, &config}, where);
  out->kind = DraftKind::kDflash;
  if (const std::string type = fields.text("projector_type"); !type.empty())
    return fail("dflash_config.projector_type '" + type + "' is not supported", where);
  for (const char* name : {"causal", "use_swa"})
    if (fields.flag(name, false)) return fail(std::string(name) + " is not supported", where);
  out->block = fields.integer("block_size", -1, kMostBlock);
  for (const char* name : {"mask_token_id", "dspark_noise_token_id", "pard_token"})
    if (out->mask_id < 0 && fields.find(name) != nullptr)
      out->mask_id = fields.integer(name, 0, kMostVocab);
  out->draft_vocab = top.integer("draft_vocab_size", target.vocab, kMostVocab);
  out->num_target_layers = top.integer("num_target_layers", 0, 1000);
  if (!fields.first_fault().empty() || !top.first_fault().empty())
    return fail(fields.first_fault() + top.first_fault(), where);
  if (out->block < 2) return fail("block_size is below 2", where);
  if (out->mask_id < 0 || out->mask_id >= target.vocab)
    return fail("no mask_token_id in the vocabulary of the target", where);
  if (out->num_target_layers > 0 && out->num_target_layers != target.num_layers)
    return fail(fmt::format("the head is for a target of {} layers, this one has {}",
                            out->num_target_layers, target.num_layers),
                where, "a head of this model");
  for (const int32_t window : out->windows)
    if (window > 0)
      return fail("layer_types other than full_attention are not supported for DFlash", where);
  if (!has_tensor("fc.weight")) return fail("the head has no fc.weight", where);
  out->num_drafts = out->block - 1;
  const bool is_speculators = out->form == "speculators";
  auto ids = is_speculators ? fields.integers("aux_hidden_state_layer_ids")
                            : fields.integers("target_layer_ids");
  if (!fields.first_fault().empty()) return fail(fields.first_fault(), where);
  const int32_t by_form = is_speculators ? 0 : 1;
  if (!ids) {  // z-lab's default: evenly from the second layer to the last but two
    ids.emplace();
    const int32_t n = target.num_layers, count = out->num_layers;
    for (int32_t i = 0; i < count; ++i)
      ids->push_back(count == 1 ? n / 2
                                : static_cast<int32_t>(std::lround(
                                      1 + i * static_cast<double>(n - 4) / (count - 1))));
  }
  return set_boundaries(std::move(*ids), offset >= 0 ? offset : by_form, target, where, out);
}

}  // namespace

Result<DraftConfig> parse_draft_config(const std::string& text, const std::string& where,
                                       const GptOssConfig& target, int32_t layer_id_offset,
                                       const HasTensor& has_tensor) {
  const Json config = Json::parse(text, nullptr, false);
  if (!config.is_object()) return fail("the configuration is no JSON object", where);
  Fields top({&config}, where);
  const std::string speculators = top.text("speculators_model_type");
  const Json& nested = member(config, "transformer_layer_config");
  std::string architecture;
  if (const Json* list = top.find("architectures");
      list != nullptr && list->is_array() && !list->empty() && (*list)[0].is_string())
    architecture = (*list)[0].get<std::string>();
  if (speculators == "dflash2" || speculators == "dspark")
    return fail("heads of kind '" + speculators + "' are not supported", where);
  const bool is_dflash = speculators == "dflash" || !member(config, "dflash_config").empty() ||
                         architecture.find("DFlash") != architecture.npos;
  const bool is_eagle =
      speculators == "eagle3" || speculators == "peagle" || has_tensor("mask_hidden") ||
      !member(config, "eagle_config").empty() || has_tensor("midlayer.hidden_norm.weight") ||
      has_tensor("layers.0.hidden_norm.weight") || architecture.find("Eagle3") != architecture.npos;
  if (!is_dflash && !is_eagle)
    return fail("this is no draft head that is known", where,
                "EAGLE-3 (speculators_model_type, eagle_config, fc and hidden_norm), P-EAGLE "
                "(mask_hidden) or DFlash (dflash_config)");
  DraftConfig out;
  out.form = !speculators.empty() ? "speculators"
             : is_dflash          ? "z-lab"
             : has_tensor("midlayer.hidden_norm.weight") && !has_tensor("mask_hidden") ? "SpecForge"
                                                                                       : "ModelOpt";
  const Json& layer_config = nested.empty() ? config : nested;
  Fields layer({&layer_config}, where);
  if (auto status = read_layers(layer, layer_config, target, where, &out); !status)
    return fail(std::move(status.error()));
  if (out.vocab != target.vocab)
    return fail(
        fmt::format("the head's vocabulary has {} ids, the target's {}", out.vocab, target.vocab),
        where, "a head of this model");
  auto status = is_dflash
                    ? read_dflash(top, config, target, layer_id_offset, has_tensor, where, &out)
                    : read_eagle(top, config, target, layer_id_offset, has_tensor, where, &out);
  if (!status) return fail(std::move(status.error()));
  if (out.draft_vocab <= 0 || out.draft_vocab > target.vocab)
    return fail("draft_vocab_size is not in the vocabulary of the target", where);
  const Json& proposals = member(config, "speculators_config");
  if (const auto found = proposals.find("proposal_methods");
      found != proposals.end() && found->is_array() && !found->empty()) {
    Fields method({&(*found)[0]}, where);
    const int32_t stated = method.integer("speculative_tokens", 0, kMostBlock);
    if (stated > 0 && !is_dflash) out.num_drafts = stated;
  }
  return out;
}

std::string describe_boundaries(const DraftConfig& config) {
  if (config.takes_final_norm) return "the target's final norm";
  return fmt::format("boundaries {} of the target", fmt::join(config.boundaries, ", "));
}

}  // namespace moxie
