// Level 1: the model loads, answers, and its kernels are known. Level 1.5: the rows that ran are
// those that were planned, asked for and not forbidden.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "engine/chat.h"
#include "lab/validate_requests.h"
#include "lab/validate_run.h"

namespace moxie {
namespace {

constexpr const char* kQuestion = "What is 12 + 30?";

// One line of at most so many characters.
std::string one_line(std::string text, size_t most = 60) {
  std::ranges::replace(text, '\n', ' ');
  if (text.size() > most) text = text.substr(0, most) + "...";
  return text;
}

// A conversation, if the model is one that was trained for it.
Status check_chat(Validation& run) {
  harmony::Conversation conversation;
  conversation.messages.push_back(
      harmony::default_system_message("2026-01-15", harmony::ReasoningEffort::kLow));
  conversation.messages.push_back(harmony::user_message(kQuestion));
  const auto reply =
      answer(run.engine(), conversation, {.temperature = 0, .seed = 0, .max_tokens = 256});
  if (!reply) return fail(reply.error());
  run.check("answers a conversation", reply->finish_reason == "stop" && !reply->content.empty(),
            fmt::format("'{}' to '{}', {} tokens, finish reason {}", one_line(reply->content),
                        kQuestion, reply->timing.completion_tokens, reply->finish_reason),
            "text of the final channel and a stop token");
  return {};
}

Status check_text(Validation& run) {
  Engine& engine = run.engine();
  constexpr int32_t kPromptTokens = 24, kTokens = 16;
  const auto prompt = random_ids(kPromptTokens, engine.config().vocab, 1);
  const auto text = engine.generate(
      prompt, {.temperature = 0, .seed = 0, .max_tokens = kTokens, .ignore_eos = true});
  if (!text) return fail(text.error());
  run.check("answers a request", text->ids.size() == kTokens,
            fmt::format("{} tokens to a prompt of {}", text->ids.size(), kPromptTokens),
            fmt::format("{} tokens", kTokens));
  return {};
}

// Prompts of several sizes, alone and together, and tokens behind them.
Status run_launches(Validation& run) {
  const Engine& engine = run.engine();
  const int32_t vocab = engine.config().vocab, context = engine.plan().max_model_len;
  constexpr int32_t kTokens = 8;
  const int32_t longest = std::min(engine.plan().max_batch_tokens + 9, context - kTokens - 1);
  const auto service = run.make_service({.prefix_cache = false});
  std::vector<ServiceRequest> requests;
  uint64_t seed = 10;
  for (const int32_t length : {longest, std::min(40, longest), 1, std::min(17, longest)})
    requests.push_back(greedy_request(random_ids(length, vocab, ++seed), kTokens));
  for (const int32_t concurrency : {1, kValidateStreams}) {
    const auto answers = answer_all(
        *service, requests, {.concurrency = concurrency, .patience_s = run.seams().patience_s});
    if (const std::string fault = answers_fault(answers, kTokens); !fault.empty())
      return fail(fault, fmt::format("{} requests at once", concurrency));
  }
  return {};
}

}  // namespace

Status run_smoke(Validation& run) {
  if (auto status = run.open(); !status) return status;
  Engine& engine = run.engine();
  run.check("loads", true,
            fmt::format("{} on {} in {:.2f} s", engine.checkpoint().path(),
                        engine.device().properties().name, engine.load_seconds()),
            "no fault");
  const bool is_chat = engine.options().model == "embedded" && engine.tokenizer() != nullptr;
  if (auto status = is_chat ? check_chat(run) : check_text(run); !status) return status;
  const auto ran = launches_that_ran(engine.kernels().counts());
  check_steps(run, ran);
  return {};
}

Status run_path(Validation& run) {
  run.start_path();
  if (auto status = run_launches(run); !status) return status;
  const auto fault = run.path_fault();
  if (!fault) return fail(fault.error());
  uint64_t num_launches = 0;
  for (const auto& [bracket, times] : run.launches()) num_launches += times;
  run.check("rows that ran are those planned", fault->empty(),
            fault->empty()
                ? fmt::format("{} launches of {} sizes", num_launches, run.launches().size())
                : *fault,
            "for every row as many launches as its plans have");
  if (takes_head(run.options().engine.speculation.method))
    run.omit("rows that were not planned", "a draft head's passes run rows of the same steps");
  check_named_rows(run, launches_that_ran(run.engine().kernels().counts()));
  return {};
}

}  // namespace moxie
