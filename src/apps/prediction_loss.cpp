#include "apps/prediction_loss.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/score.h"
#include "lab/logit_distance.h"
#include "text/harmony.h"

namespace moxie {
namespace {

// Logits of the unchanged model are kept for all texts.
constexpr uint64_t kMaxLogitBytes = uint64_t{4} << 30;

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

}  // namespace

Result<std::vector<ScoredText>> own_texts(Engine& engine, const Tokenizer* tokenizer) {
  if (tokenizer == nullptr) tokenizer = engine.tokenizer();
  if (tokenizer == nullptr) {
    return fail("this model carries no tokenizer", engine.checkpoint().path(),
                "give --ids-file: a JSON list of lists of ids");
  }
  std::vector<ScoredText> texts;
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
      ScoredText text{.ids = *prompt, .first = prompt->size()};
      text.ids.insert(text.ids.end(), answer->ids.begin(), answer->ids.end());
      texts.push_back(std::move(text));
    }
  }
  return texts;
}

Status check_texts(const std::vector<ScoredText>& texts, int32_t vocab) {
  uint64_t num_ids = 0;
  for (const ScoredText& text : texts) num_ids += text.ids.size();
  if (num_ids * 4 * static_cast<uint64_t>(vocab) <= kMaxLogitBytes) return {};
  return fail(fmt::format("the logits of {} ids take more than 4 GiB", num_ids), "score",
              "fewer ids");
}

Result<PredictionLoss> measure_loss(Engine& engine, const std::vector<ScoredText>& texts,
                                    std::vector<std::vector<float>>* base) {
  const int32_t vocab = engine.config().vocab;
  const bool fills = base->empty();
  PredictionLoss loss;
  for (size_t i = 0; i < texts.size(); ++i) {
    const ScoredText& text = texts[i];
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

}  // namespace moxie
