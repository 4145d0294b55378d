// Parses and writes configurations, checks them, and computes YaRN.
#include "model/config.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>

namespace moxie {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxConfigBytes = size_t{16} << 20;

std::string kind_of(const Json& value) {
  if (value.is_number() || value.is_boolean()) return value.dump();
  if (value.is_string()) {
    std::string text = value.get<std::string>().substr(0, 60);
    for (char& c : text)
      if (static_cast<unsigned char>(c) < 32) c = '?';
    return '"' + text + '"';
  }
  return value.type_name();
}

// Reads fields of one object and collects what is wrong with them.
class FieldReader {
 public:
  FieldReader(const Json& object, std::string prefix, std::vector<std::string>* faults)
      : object_(object), prefix_(std::move(prefix)), faults_(faults) {}

  // The field, or null where it is absent or null.
  const Json* find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  bool has(const char* name) const { return find(name) != nullptr; }
  void integer(const char* name, bool is_required, int32_t* out) {
    const Json* value = find(name);
    if (value == nullptr) {
      if (is_required) fault(name, "nothing", "a whole number");
      return;
    }
    // Whole numbers may be written with a fraction of zero.
    const double number = value->is_number() ? value->get<double>() : std::nan("");
    if (!(std::fabs(number) <= std::numeric_limits<int32_t>::max()) ||
        number != std::floor(number)) {
      return fault(name, kind_of(*value), "a whole number of at most 31 bits");
    }
    *out = static_cast<int32_t>(number);
  }
  template <typename T>
  void real(const char* name, T* out) {
    const Json* value = find(name);
    if (value == nullptr) return;
    if (!value->is_number()) return fault(name, kind_of(*value), "a number");
    *out = static_cast<T>(value->get<double>());
  }
  void boolean(const char* name, bool* out) {
    const Json* value = find(name);
    if (value == nullptr) return;
    if (!value->is_boolean()) return fault(name, kind_of(*value), "true or false");
    *out = value->get<bool>();
  }
  std::string text(const char* name) {
    const Json* value = find(name);
    if (value == nullptr) return "";
    if (!value->is_string()) {
      fault(name, kind_of(*value), "text");
      return "";
    }
    return value->get<std::string>();
  }
  void fault(const std::string& name, const std::string& found, const std::string& expected) {
    faults_->push_back(fmt::format("{}{}: found {}, expected {}", prefix_, name, found, expected));
  }

 private:
  const Json& object_;
  std::string prefix_;
  std::vector<std::string>* faults_;
};

// rope_parameters or rope_scaling: YaRN, or none at all.
void read_rope(const Json& rope, const char* name, GptOssConfig* config,
               std::vector<std::string>* faults) {
  FieldReader fields(rope, std::string(name) + ".", faults);
  std::string type = fields.text("rope_type");
  if (type.empty()) type = fields.text("type");
  fields.real("rope_theta", &config->rope_theta);
  if (type == "default") {
    config->rope_factor = 1.0;
    return;
  }
  if (type != "yarn") return fields.fault("rope_type", '"' + type + '"', "\"yarn\" or \"default\"");
  fields.real("factor", &config->rope_factor);
  fields.real("beta_fast", &config->rope_beta_fast);
  fields.real("beta_slow", &config->rope_beta_slow);
  fields.integer("original_max_position_embeddings", false, &config->rope_original_context);
  // The transformers library truncates unless told not to; gpt-oss files say false.
  config->rope_truncate = true;
  fields.boolean("truncate", &config->rope_truncate);
  for (const char* other : {"attention_factor", "mscale", "mscale_all_dim"}) {
    if (fields.has(other)) fields.fault(other, kind_of(*fields.find(other)), "no such field");
  }
}

void read_layer_types(FieldReader& fields, GptOssConfig* config) {
  const Json* types = fields.find("layer_types");
  if (types == nullptr) return;
  if (!types->is_array()) return fields.fault("layer_types", kind_of(*types), "a list");
  config->is_window.clear();
  for (const Json& type : *types) {
    const bool is_window = type == "sliding_attention";
    if (!is_window && type != "full_attention") {
      return fields.fault(fmt::format("layer_types[{}]", config->is_window.size()), kind_of(type),
                          "\"sliding_attention\" or \"full_attention\"");
    }
    config->is_window.push_back(is_window ? 1 : 0);
  }
}

void read_activation(FieldReader& fields, GptOssConfig* config) {
  const std::string text = fields.text(kActivationField);
  if (!text.empty() && !parse_activation(text, &config->activation))
    fields.fault(kActivationField, '"' + text + '"', kActivationChoices);
}

// Even layers have a sliding window, unless the file says otherwise.
void default_layer_types(GptOssConfig* config) {
  const int32_t num_layers = config->num_layers;
  if (!config->is_window.empty() || num_layers <= 0 || num_layers > 4096) return;
  for (int32_t i = 0; i < num_layers; ++i) config->is_window.push_back(i % 2 == 0 ? 1 : 0);
}

void read_hugging_face(const Json& json, GptOssConfig* config, std::vector<std::string>* faults) {
  FieldReader fields(json, "", faults);
  const std::string type = fields.text("model_type");
  if (!type.empty() && type != "gpt_oss")
    fields.fault("model_type", '"' + type + '"', "\"gpt_oss\"");
  const std::string act = fields.text("hidden_act");
  if (!act.empty() && act != "silu") fields.fault("hidden_act", '"' + act + '"', "\"silu\"");
  bool is_tied = false;
  fields.boolean("tie_word_embeddings", &is_tied);
  if (is_tied) fields.fault("tie_word_embeddings", "true", "false: lm_head has weights of its own");
  fields.integer("num_local_experts", true, &config->num_experts);
  fields.integer("experts_per_token", false, &config->top_k);
  fields.integer("num_experts_per_tok", false, &config->top_k);
  fields.integer("max_position_embeddings", false, &config->max_positions);
  fields.real("rms_norm_eps", &config->rms_eps);
  fields.real("swiglu_alpha", &config->swiglu_alpha);
  fields.integer("initial_context_length", false, &config->rope_original_context);
  fields.integer("eos_token_id", false, &config->eos_id);
  fields.integer("pad_token_id", false, &config->pad_id);
  fields.real("rope_theta", &config->rope_theta);
  read_layer_types(fields, config);
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    const Json* rope = fields.find(name);
    if (rope == nullptr) continue;
    if (rope->is_object())
      read_rope(*rope, name, config, faults);
    else
      fields.fault(name, kind_of(*rope), "an object");
    break;
  }
}

void read_original(const Json& json, GptOssConfig* config, std::vector<std::string>* faults) {
  FieldReader fields(json, "", faults);
  fields.integer("num_experts", true, &config->num_experts);
  fields.integer("experts_per_token", false, &config->top_k);
  fields.integer("initial_context_length", false, &config->rope_original_context);
  fields.real("rope_theta", &config->rope_theta);
  fields.real("rope_scaling_factor", &config->rope_factor);
  fields.real("rope_ntk_alpha", &config->rope_beta_slow);
  fields.real("rope_ntk_beta", &config->rope_beta_fast);
  const double context = config->rope_factor * config->rope_original_context;
  if (context >= 1 && context <= std::numeric_limits<int32_t>::max())
    config->max_positions = static_cast<int32_t>(context);
}

}  // namespace

int32_t GptOssConfig::num_window_layers() const {
  int32_t count = 0;
  for (const uint8_t window : is_window) count += window != 0;
  return count;
}

std::vector<std::string> GptOssConfig::faults() const {
  std::vector<std::string> out;
  const auto in_range = [&](const char* name, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high)
      out.push_back(fmt::format("{}: found {}, expected {} to {}", name, value, low, high));
  };
  const auto multiple = [&](const char* name, int64_t value, int64_t of) {
    if (of > 0 && value % of != 0)
      out.push_back(fmt::format("{}: found {}, expected a multiple of {}", name, value, of));
  };
  // Several times the greatest models known: products of any of these stay below 2^62.
  in_range("num_hidden_layers", num_layers, 1, 1024);
  in_range("hidden_size", hidden, 32, 65536);
  in_range("intermediate_size", intermediate, 32, 131072);
  in_range("num_attention_heads", num_heads, 1, 1024);
  in_range("num_key_value_heads", num_kv_heads, 1, 1024);
  in_range("head_dim", head_dim, 16, 512);
  in_range("num_local_experts", num_experts, 1, 4096);
  in_range("num_experts_per_tok", top_k, 1, 16);
  in_range("vocab_size", vocab, 1, 4 << 20);
  in_range("sliding_window", sliding_window, 1, 1 << 24);
  in_range("max_position_embeddings", max_positions, 1, 1 << 24);
  if (top_k > num_experts) {
    out.push_back(fmt::format("num_experts_per_tok: found {}, expected at most {} experts", top_k,
                              num_experts));
  }
  if (!mlp_router && num_experts > 1)
    out.push_back("mlp_router: found false, expected true with more than one expert");
  multiple("hidden_size", hidden, 32);
  multiple("intermediate_size", intermediate, 32);
  multiple("head_dim", head_dim, 16);
  multiple("num_attention_heads", num_heads, num_kv_heads);
  multiple("num_attention_heads * head_dim", int64_t{num_heads} * head_dim, 32);
  if (is_window.size() != static_cast<size_t>(std::max(num_layers, 0))) {
    out.push_back(
        fmt::format("layer_types: found {} entries, expected {}", is_window.size(), num_layers));
  }
  const auto positive = [&](const char* name, double value, double low, double high) {
    if (!(value >= low && value <= high))
      out.push_back(fmt::format("{}: found {}, expected {} to {}", name, value, low, high));
  };
  positive("rms_norm_eps", rms_eps, 0, 1);
  positive("swiglu_alpha", swiglu_alpha, 0, 1e6);
  positive("swiglu_limit", swiglu_limit, 0, 1e30);
  positive("rope_theta", rope_theta, 1.000001, 1e15);
  positive("rope factor", rope_factor, 1, 1e6);
  positive("rope beta_fast", rope_beta_fast, 1e-6, 1e6);
  positive("rope beta_slow", rope_beta_slow, 1e-6, 1e6);
  in_range("rope original_max_position_embeddings", rope_original_context, 1, 1 << 24);
  return out;
}

bool parse_activation(const std::string& text, Activation* out) {
  if (text != "clamped_swiglu" && text != "swiglu") return false;
  *out = text == "swiglu" ? Activation::kSwiglu : Activation::kClampedSwiglu;
  return true;
}

Result<GptOssConfig> parse_config_json(const std::string& text, const std::string& where) {
  if (text.size() > kMaxConfigBytes)
    return fail(fmt::format("found {} bytes, expected a configuration", text.size()), where);
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return fail("is not a JSON object", where);
  GptOssConfig config;
  std::vector<std::string> faults;
  FieldReader fields(json, "", &faults);
  fields.integer("num_hidden_layers", true, &config.num_layers);
  fields.integer("hidden_size", true, &config.hidden);
  fields.integer("intermediate_size", true, &config.intermediate);
  fields.integer("num_attention_heads", true, &config.num_heads);
  fields.integer("num_key_value_heads", true, &config.num_kv_heads);
  fields.integer("head_dim", false, &config.head_dim);
  fields.integer("vocab_size", true, &config.vocab);
  fields.integer("sliding_window", false, &config.sliding_window);
  fields.real("swiglu_limit", &config.swiglu_limit);
  read_activation(fields, &config);
  for (const ConfigSwitch& one : kConfigSwitches) fields.boolean(one.name, &(config.*one.member));
  const bool is_original = fields.has("num_experts") && !fields.has("num_local_experts");
  if (is_original)
    read_original(json, &config, &faults);
  else
    read_hugging_face(json, &config, &faults);
  default_layer_types(&config);
  if (!faults.empty()) {
    std::string all;
    for (const std::string& fault : faults) all += (all.empty() ? "" : "; ") + fault;
    return fail(all, where, "only gpt-oss models are served");
  }
  return config;
}

std::string config_json(const GptOssConfig& config) {
  nlohmann::ordered_json json;
  json["architectures"] = {"GptOssForCausalLM"};
  json["model_type"] = "gpt_oss";
  json["num_hidden_layers"] = config.num_layers;
  json["num_local_experts"] = config.num_experts;
  json["experts_per_token"] = config.top_k;
  json["num_experts_per_tok"] = config.top_k;
  json["hidden_size"] = config.hidden;
  json["intermediate_size"] = config.intermediate;
  json["num_attention_heads"] = config.num_heads;
  json["num_key_value_heads"] = config.num_kv_heads;
  json["head_dim"] = config.head_dim;
  json["attention_bias"] = config.attention_bias;
  json["attention_dropout"] = 0.0;
  json["hidden_act"] = "silu";
  json["sliding_window"] = config.sliding_window;
  for (const uint8_t window : config.is_window)
    json["layer_types"].push_back(window ? "sliding_attention" : "full_attention");
  json["max_position_embeddings"] = config.max_positions;
  json["initial_context_length"] = config.rope_original_context;
  json["rope_theta"] = config.rope_theta;
  json["rope_scaling"] = {{"rope_type", "yarn"},
                          {"factor", config.rope_factor},
                          {"original_max_position_embeddings", config.rope_original_context},
                          {"beta_fast", config.rope_beta_fast},
                          {"beta_slow", config.rope_beta_slow},
                          {"truncate", config.rope_truncate}};
  // Converted through text, so that 1e-5f is not written as 9.999999747378752e-06.
  const auto short_number = [](float value) { return std::stod(fmt::format("{}", value)); };
  json["rms_norm_eps"] = short_number(config.rms_eps);
  json["swiglu_limit"] = short_number(config.swiglu_limit);
  json["swiglu_alpha"] = short_number(config.swiglu_alpha);
  for (const ConfigSwitch& one : kConfigSwitches)
    if (config.*one.member != GptOssConfig().*one.member) json[one.name] = config.*one.member;
  if (config.activation == Activation::kSwiglu) json[kActivationField] = "swiglu";
  json["vocab_size"] = config.vocab;
  json["tie_word_embeddings"] = false;
  if (config.eos_id >= 0) json["eos_token_id"] = config.eos_id;
  if (config.pad_id >= 0) json["pad_token_id"] = config.pad_id;
  return json.dump(1) + "\n";
}

YarnFrequencies yarn_frequencies(const GptOssConfig& config) {
  const int32_t half = config.head_dim / 2;
  const double factor = config.rope_factor;
  const auto correction_dim = [&](double rotations) {
    return half * std::log(config.rope_original_context / (rotations * 2 * std::numbers::pi)) /
           std::log(config.rope_theta);
  };
  double low = correction_dim(config.rope_beta_fast);
  double high = correction_dim(config.rope_beta_slow);
  if (config.rope_truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  // As in the reference libraries: clamped to the dimensions, without a division by zero.
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(config.head_dim - 1));
  if (low == high) high += 0.001;
  YarnFrequencies out;
  for (int32_t i = 0; i < half; ++i) {
    const double frequency = std::pow(config.rope_theta, -2.0 * i / config.head_dim);
    const double ramp = std::clamp((i - low) / (high - low), 0.0, 1.0);
    out.inverse.push_back(ramp * frequency / factor + (1.0 - ramp) * frequency);
  }
  out.concentration = factor > 1.0 ? 0.1 * std::log(factor) + 1.0 : 1.0;
  return out;
}

void fill_rotary_table(const YarnFrequencies& frequencies, int32_t first, int32_t num_positions,
                       float* table) {
  const auto half = static_cast<int32_t>(frequencies.inverse.size());
  for (int32_t p = 0; p < num_positions; ++p) {
    float* row = table + int64_t{p} * 2 * half;
    for (int32_t i = 0; i < half; ++i) {
      const double angle =
          static_cast<double>(first + p) * frequencies.inverse[static_cast<size_t>(i)];
      row[i] = static_cast<float>(std::cos(angle) * frequencies.concentration);
      row[half + i] = static_cast<float>(std::sin(angle) * frequencies.concentration);
    }
  }
}

void fill_rotary_table(const GptOssConfig& config, int32_t first, int32_t num_positions,
                       float* table) {
  fill_rotary_table(yarn_frequencies(config), first, num_positions, table);
}

}  // namespace moxie
