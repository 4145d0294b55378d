// Reads the switches of speculation. Every field of the JSON is checked: a field that is misspelt
// would be without effect, and nobody would notice.
#include "apps/speculation_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "core/nearest.h"
#include "engine/draft_counts.h"
#include "engine/ngram_drafter.h"

namespace moxie {
namespace {

using Json = nlohmann::json;

constexpr const char* kConfig = "--speculative-config";
// vLLM's fields without a counterpart here.
constexpr std::array kUnused = {"acceptance_method",
                                "attention_backend",
                                "disable_by_batch_size",
                                "disable_padded_drafter_batch",
                                "draft_lm_head_quantization",
                                "draft_sample_method",
                                "draft_tensor_parallel_size",
                                "enable_adaptive_verification",
                                "enforce_eager",
                                "kv_cache_dtype",
                                "max_model_len",
                                "num_speculative_tokens_per_batch_size",
                                "parallel_drafting",
                                "quantization",
                                "rejection_sample_method",
                                "revision",
                                "synthetic_acceptance_length",
                                "synthetic_acceptance_rates"};
// vLLM's methods that are not here.
constexpr std::array kOtherMethods = {"suffix", "eagle",       "mtp",
                                      "dspark", "draft_model", "custom_class"};

tl::unexpected<Error> wrong(const std::string& field, const std::string& expected) {
  return fail(fmt::format("{} must be {}", field, expected), kConfig);
}

Status read_count(const std::string& field, const Json& value, int32_t least, int32_t most,
                  int32_t* out) {
  const bool is_whole = value.is_number_integer();
  if (!is_whole || value < least || value > most) {
    return wrong(field, fmt::format("an integer from {} to {}", least, most));
  }
  *out = value.get<int32_t>();
  return {};
}

Status read_method(const std::string& name, SpecMethod* method) {
  for (size_t i = 0; i < std::size(kSpecMethodNames); ++i) {
    if (name == kSpecMethodNames[i]) {
      *method = static_cast<SpecMethod>(i);
      return {};
    }
  }
  if (name == "ngram_gpu") {  // vLLM's other place for the same drafts
    *method = SpecMethod::kNgram;
    return {};
  }
  const bool is_other =
      std::find(kOtherMethods.begin(), kOtherMethods.end(), name) != kOtherMethods.end();
  return fail(fmt::format("{} '{}'", is_other ? "Moxie does not draft by" : "unknown method", name),
              kConfig, "ngram, eagle3 or dflash");
}

struct Config {
  SpeculationOptions options;
  bool has_method = false;
};

// The fields, and the switch that each stands for.
struct Field {
  const char* name;
  const char* flag;
  Status (*read)(const std::string& field, const Json& value, Config* config);
};
constexpr Field kFields[] = {
    {"method", "--spec",
     [](const std::string& field, const Json& value, Config* config) -> Status {
       if (!value.is_string()) return wrong(field, "a string");
       config->has_method = true;
       return read_method(value.get<std::string>(), &config->options.method);
     }},
    {"model", "--spec-model",
     [](const std::string& field, const Json& value, Config* config) -> Status {
       if (!value.is_string()) return wrong(field, "a string");
       config->options.head = value.get<std::string>();
       return {};
     }},
    {"num_speculative_tokens", "--spec-tokens",
     [](const std::string& field, const Json& value, Config* config) {
       return read_count(field, value, 1, kMostDrafts, &config->options.max_drafts);
     }},
    {"prompt_lookup_min", "--prompt-lookup-min",
     [](const std::string& field, const Json& value, Config* config) {
       return read_count(field, value, 1, kLongestNgram, &config->options.lookup_min);
     }},
    {"prompt_lookup_max", "--prompt-lookup-max",
     [](const std::string& field, const Json& value, Config* config) {
       return read_count(field, value, 1, kLongestNgram, &config->options.lookup_max);
     }},
    {"layer_id_offset", "", [](const std::string& field, const Json& value, Config* config) {
       return read_count(field, value, 0, 1, &config->options.layer_id_offset);
     }}};

bool is_unused(const std::string& field) {
  return std::find(kUnused.begin(), kUnused.end(), field) != kUnused.end();
}

std::vector<std::string> known_names() {
  std::vector<std::string> names(kUnused.begin(), kUnused.end());
  for (const Field& field : kFields) names.emplace_back(field.name);
  return names;
}

// As vLLM: the model's name says the method where no field does.
void guess_method(Config* config) {
  std::string& head = config->options.head;
  if (head == "ngram") {
    config->options.method = SpecMethod::kNgram;
    head.clear();
    return;
  }
  std::string name = head;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (name.find("eagle3") != name.npos) config->options.method = SpecMethod::kEagle3;
  if (name.find("dflash") != name.npos) config->options.method = SpecMethod::kDflash;
}

// Sets in `options` what the JSON says; `given` are the switches.
Status apply_config(const std::string& text, const Flags& given, SpeculationOptions* options) {
  const Json document = Json::parse(text, nullptr, false);
  if (!document.is_object()) {
    return fail("expected a JSON object", kConfig,
                R"(such as {"method": "ngram", "num_speculative_tokens": 5})");
  }
  Config config{.options = *options};
  for (const auto& [name, value] : document.items()) {
    const auto field = std::find_if(std::begin(kFields), std::end(kFields),
                                    [&](const Field& one) { return one.name == name; });
    if (field == std::end(kFields)) {
      if (!is_unused(name)) {
        return fail(fmt::format("unknown field '{}'", name), kConfig,
                    fmt::format("did you mean {}?", nearest_name(name, known_names())));
      }
      const bool says_nothing =
          value.is_null() || (name == "draft_tensor_parallel_size" && value == 1);
      if (!says_nothing) log_warn(fmt::format("{}: {} is not used here", kConfig, name));
      continue;
    }
    if (value.is_null()) continue;
    if (given.given(field->flag)) {
      return fail("two values of one switch", fmt::format("{}, {}: {}", field->flag, kConfig, name),
                  "give one of them");
    }
    if (auto status = field->read(name, value, &config); !status) return status;
  }
  if (!config.has_method && !given.given("--spec")) {
    guess_method(&config);
    if (config.options.method == SpecMethod::kOff) {
      return fail("no method, and the model's name says none", kConfig,
                  R"("method": "ngram", "eagle3" or "dflash")");
    }
  }
  *options = std::move(config.options);
  return {};
}

}  // namespace

void SpeculationFlags::declare(Flags& flags) {
  flags.choice("--spec", &method_, {"off", "ngram", "eagle3", "dflash"},
               "draft tokens ahead, and verify them together: by looking up what repeats, or with "
               "a draft head; the text is the same");
  flags.text("--spec-model", &options.head,
             "the draft head: directory, .gguf file or repo id; without it the embedded model "
             "takes its own");
  flags.integer("--spec-tokens", &options.max_drafts, {0, kMostDrafts},
                "drafted tokens of a request at most; 0: what the method takes");
  flags.choice("--spec-adaptive", &adaptive_, {"on", "off"},
               "on: verify as many drafts as pay, by measured costs; off: all");
  flags.integer("--prompt-lookup-min", &options.lookup_min, {0, kLongestNgram},
                "ngram: the shortest match, in tokens; 0: as --prompt-lookup-max, or 5");
  flags.integer("--prompt-lookup-max", &options.lookup_max, {0, kLongestNgram},
                "ngram: the longest match; 0: as --prompt-lookup-min, or 5");
  flags.choice("--spec-dtype", &options.dtype, {"auto", "mxfp4", "bf16"},
               "the draft head's matrices; auto: mxfp4");
  flags.text(kConfig, &config_, "JSON with vLLM's fields, instead of the switches above");
}

Status SpeculationFlags::complete(const Flags& flags) {
  for (size_t i = 0; i < std::size(kSpecMethodNames); ++i) {
    if (method_ == kSpecMethodNames[i]) options.method = static_cast<SpecMethod>(i);
  }
  options.is_adaptive = adaptive_ == "on";
  if (flags.given(kConfig)) {
    if (auto status = apply_config(config_, flags, &options); !status) return status;
  } else if (!flags.given("--spec")) {
    for (const char* flag : {"--spec-model", "--spec-tokens", "--spec-adaptive", "--spec-dtype",
                             "--prompt-lookup-min", "--prompt-lookup-max"}) {
      if (flags.given(flag)) {
        return fail("nothing is drafted without a method", flag,
                    "add --spec ngram, eagle3 or dflash");
      }
    }
  }
  return check_speculation(options);
}

}  // namespace moxie
