// Loads the model once for each switch and compares all predictions with the unchanged model's.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/cli.h"
#include "apps/score.h"
#include "lab/logit_distance.h"
#include "text/harmony.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

// Logits of the unchanged model are kept for all texts.
constexpr uint64_t kMaxLogitBytes = uint64_t{4} << 30;

// A text and the first position whose prediction counts.
struct Text {
  std::vector<int32_t> ids;
  size_t first = 1;
};

constexpr const char* kQuestions[] = {
    "What is 4127 + 985?",
    "What is 47 * 86?",
    "Sort these numbers from small to large: 812, 45, 300, 7",
    "Which is larger, 9.11 or 9.9?",
    "How many times does the letter r occur in strawberry?",
    "Spell the word elephant letter by letter.",
    "What is the next number: 3, 6, 12, 24?",
    "Who are you?",
    "What comes three days after Monday?",
    "Tom has 12 apples and gives away 5. How many are left?",
    "What is 9 squared?",
    "Reverse the word planet.",
};

// The model's answers at temperature 1: texts of the kind that it was trained for.
Result<std::vector<Text>> own_texts(Engine& engine) {
  const Tokenizer* tokenizer = engine.tokenizer();
  if (tokenizer == nullptr) {
    return fail("this model carries no tokenizer", engine.checkpoint().path(),
                "give --ids-file: a JSON list of lists of ids");
  }
  std::vector<Text> texts;
  uint64_t seed = 0;
  for (const auto effort : {harmony::ReasoningEffort::kMedium, harmony::ReasoningEffort::kHigh}) {
    for (const char* question : kQuestions) {
      harmony::Conversation conversation;
      conversation.messages.push_back(harmony::default_system_message("2026-01-15", effort));
      conversation.messages.push_back(harmony::user_message(question));
      auto prompt = harmony::render(conversation, harmony::RenderMode::kCompletion, {}, *tokenizer);
      if (!prompt) return fail(std::move(prompt.error()));
      auto answer = engine.generate(*prompt, {.temperature = 1, .seed = ++seed, .max_tokens = 200});
      if (!answer) return fail(std::move(answer.error()));
      Text text{.ids = *prompt, .first = prompt->size()};
      text.ids.insert(text.ids.end(), answer->ids.begin(), answer->ids.end());
      texts.push_back(std::move(text));
    }
  }
  return texts;
}

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
  if ((engine.kernels().features() & kSm90a) != 0) {
    for (const char* experts : {"experts=w4a16", "experts=w4a8"})
      list.push_back({.name = fmt::format("--kernel {}", experts), .kernel = experts});
  }
  return list;
}

struct Loss {
  double nll = 0, kl = 0;
  size_t same = 0, count = 0;
  double perplexity() const { return std::exp(nll / static_cast<double>(count)); }
  double mean_kl() const { return kl / static_cast<double>(count); }
  double agreement() const { return static_cast<double>(same) / static_cast<double>(count); }
};

// Scores all texts. An empty `base` is filled; otherwise predictions are compared with its logits.
Result<Loss> measure(Engine& engine, const std::vector<Text>& texts,
                     std::vector<std::vector<float>>* base) {
  const int32_t vocab = engine.config().vocab;
  const bool fills = base->empty();
  Loss loss;
  for (size_t i = 0; i < texts.size(); ++i) {
    const Text& text = texts[i];
    std::vector<float> logits;
    auto nll = score_ids(engine, text.ids, &logits);
    if (!nll) return fail(std::move(nll.error()));
    if (fills) base->push_back(logits);
    for (size_t at = text.first; at < text.ids.size(); ++at) {
      const auto row = static_cast<int64_t>(at - 1) * vocab;
      const float *p = (*base)[i].data() + row, *q = logits.data() + row;
      loss.nll += (*nll)[at - 1];
      if (!fills) loss.kl += row_kl(p, q, vocab);
      loss.same += std::max_element(p, p + vocab) - p == std::max_element(q, q + vocab) - q;
      ++loss.count;
    }
  }
  return loss;
}

Json to_json(const std::string& name, const Loss& loss, const Loss& base) {
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
  std::vector<Text> texts;
  for (const auto& ids : lists) {
    if (ids.size() < 2) return report({"a list of fewer than two ids", "score", ""});
    texts.push_back({ids});
  }
  if (texts.empty()) {
    auto own = own_texts(**engine);
    if (!own) return report(own.error());
    texts = std::move(*own);
  }
  uint64_t num_ids = 0;
  for (const Text& text : texts) num_ids += text.ids.size();
  if (num_ids * 4 * static_cast<uint64_t>((*engine)->config().vocab) > kMaxLogitBytes) {
    return report(
        {fmt::format("the logits of {} ids take more than 4 GiB", num_ids), "score", "fewer ids"});
  }
  const bool on_cuda = (*engine)->device().kind() == DeviceKind::kCuda;
  std::vector<std::vector<float>> logits;
  auto base = measure(**engine, texts, &logits);
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
    auto loss = measure(**other, texts, &logits);
    if (!loss) return report(loss.error());
    rows.push_back(to_json(variant.name, *loss, *base));
    if (as_json) continue;
    fmt::print("| {:<24} | {:>10.5f} | {:>+10.5f} | {:>10.2e} | {:>15.2f}% |\n", variant.name,
               loss->perplexity(), loss->perplexity() - base->perplexity(), loss->mean_kl(),
               100 * loss->agreement());
    std::fflush(stdout);
  }
  if (as_json) {
    fmt::print("{}\n", Json{{"model", options.model},
                            {"device", on_cuda ? "cuda" : "cpu"},
                            {"kv_dtype", kv},
                            {"num_scored", base->count},
                            {"perplexity", base->perplexity()},
                            {"switches", rows}}
                           .dump(2));
  }
  return kExitDone;
}

}  // namespace moxie
