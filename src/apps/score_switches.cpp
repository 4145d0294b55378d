// Loads the model once for each switch and compares all predictions with the unchanged model's.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/cli.h"
#include "apps/output.h"
#include "apps/prediction_loss.h"
#include "apps/score.h"
#include "text/harmony.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

struct Variant {
  std::string name;  // the switch as it is typed
  std::string EngineOptions::*field = nullptr;
  std::string value = {};
  std::string kernel = {};  // a forced row, instead of the field

  void apply(EngineOptions& options) const {
    if (kernel.empty())
      options.*field = value;
    else
      options.kernels.push_back(kernel);
  }
};

std::vector<Variant> variants(const EngineOptions& options, Engine& engine) {
  const bool on_cuda = engine.device().kind() == DeviceKind::kCuda;
  std::vector<Variant> list;
  const auto add = [&](const char* flag, std::string EngineOptions::*field, const char* value) {
    if (options.*field != value) list.push_back({fmt::format("{} {}", flag, value), field, value});
  };
  for (const char* layers : {"qkv", "o", "lm_head", "all"}) {
    add("--mxfp4-layers", &EngineOptions::mxfp4_layers, layers);
  }
  if (on_cuda) {
    for (const char* layers : {"qkv", "o", "lm_head", "all"}) {
      add("--mxfp8-layers", &EngineOptions::mxfp8_layers, layers);
    }
  }
  for (const char* dtype : {"bf16", "fp8_e4m3"}) {
    add("--kv-dtype", &EngineOptions::kv_dtype, dtype);
  }
  if ((engine.kernels().features() & kInt8Features) != 0) {
    if (engine.config().hidden >= kLeastInt8Hidden)  // else the switch changes nothing
      add("--activation", &EngineOptions::activation, "bf16");
    add("--activation", &EngineOptions::activation, "int8");
  }
  for (const char* format : {"mxfp8", "mxfp6", "mxfp6_e3m2", "mxfp4"})
    add("--activation", &EngineOptions::activation, format);
  if ((engine.kernels().features() & kSm90a) != 0) {
    for (const char* row : {"experts=w4a16", "experts=w4a8", "qkv=w8a8", "out=w8a8"})
      list.push_back({.name = fmt::format("--kernel {}", row), .kernel = row});
  }
  return list;
}

Json to_json(const std::string& name, const PredictionLoss& loss, const PredictionLoss& base) {
  return {{"switch", name},
          {"perplexity", loss.perplexity()},
          {"perplexity_change", loss.perplexity() - base.perplexity()},
          {"mean_kl", loss.mean_kl()},
          {"best_token_equal", loss.agreement()}};
}

}  // namespace

int compare_switches(EngineOptions options, const std::vector<std::vector<int32_t>>& lists,
                     bool as_json) {
  options.show_progress = options.show_progress && !as_json;
  if (options.max_model_len == 0 && lists.empty()) options.max_model_len = 1024;
  auto engine = Engine::load(options);
  if (!engine) return report(engine.error());
  std::vector<ScoredText> texts;
  for (const auto& ids : lists) {
    if (ids.size() < 2) return report({"a list of fewer than two ids", "score", ""});
    texts.push_back({ids});
  }
  if (texts.empty()) {
    auto own = own_texts(**engine);
    if (!own) return report(own.error());
    texts = std::move(*own);
  }
  if (auto status = check_texts(texts, (*engine)->config().vocab); !status)
    return report(status.error());
  const bool on_cuda = (*engine)->device().kind() == DeviceKind::kCuda;
  std::vector<std::vector<float>> logits;
  auto base = measure_loss(**engine, texts, &logits);
  if (!base) return report(base.error());
  const std::string kv(dtype_name((*engine)->kv_dtype()));
  const std::vector<Variant> switches = variants(options, **engine);
  engine->reset();  // its memory is needed
  Json rows = Json::array();
  if (!as_json) {
    fmt::print("{} on {}: {} predictions of {} texts, perplexity {:.5f}, cache {}\n\n",
               options.model, on_cuda ? "CUDA" : "the CPU", base->count, texts.size(),
               base->perplexity(), kv);
    fmt::print(
        "| {:<24} | {:>10} | {:>10} | {:>10} | {:>16} |\n|{:-<26}|{:->12}|{:->12}|{:->12}|"
        "{:->18}|\n",
        "switch", "perplexity", "change", "mean KL", "best token equal", "", ":", ":", ":", ":");
  }
  for (const Variant& variant : switches) {
    if (variant.field == &EngineOptions::kv_dtype && variant.value == kv) continue;
    EngineOptions changed = options;
    variant.apply(changed);
    auto other = Engine::load(changed);
    if (!other && !variant.kernel.empty()) {
      // The error names what the row does not support in this model.
      rows.push_back(Json{{"switch", variant.name}, {"not_run", other.error().message()}});
      if (!as_json) fmt::print("| {:<24} | not run: {} |\n", variant.name, other.error().message());
      continue;
    }
    if (!other) return report(other.error());
    auto loss = measure_loss(**other, texts, &logits);
    if (!loss) return report(loss.error());
    rows.push_back(to_json(variant.name, *loss, *base));
    if (as_json) continue;
    fmt::print("| {:<24} | {:>10.5f} | {:>+10.5f} | {:>10.2e} | {:>15.2f}% |\n", variant.name,
               loss->perplexity(), loss->perplexity() - base->perplexity(), loss->mean_kl(),
               100 * loss->agreement());
    std::fflush(stdout);
  }
  if (as_json) {
    print_document(Json{{"model", options.model},
                        {"device", on_cuda ? "cuda" : "cpu"},
                        {"kv_dtype", kv},
                        {"num_scored", base->count},
                        {"perplexity", base->perplexity()},
                        {"switches", rows}});
  }
  return kExitDone;
}

}  // namespace moxie
