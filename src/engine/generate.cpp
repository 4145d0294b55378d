// An answer: prefill, then tokens until one ends it. Where the device can run ahead, the host reads
// what it drew; else, and where each draw depends on all before it (penalties), it is a launch and
// a draw a token.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <random>

#include "core/clock.h"
#include "engine/engine.h"

namespace moxie {
namespace {

bool is_penalised(const SamplingOptions& sampling) {
  return sampling.repetition_penalty != 1 || sampling.frequency_penalty != 0 ||
         sampling.presence_penalty != 0;
}

}  // namespace

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAborted:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  return "stop";
}

struct Engine::Generation {
  const SamplingOptions& sampling;
  const OnToken& on_token;
  const std::vector<int32_t>& model_stop_ids;
  SeqId seq = 0;
  int32_t budget = 0;
  Clock::time_point start = Clock::now();
  SampleRequest request{};
  std::vector<int32_t> bias_ids{};
  std::vector<float> bias_values{};
  std::map<int32_t, int32_t> counts{};  // of the output; 0 for tokens of the prompt alone
  Generated result{};

  /// Takes the next token; whether the answer goes on.
  Result<bool> take(const SampleAnswer& answer) {
    if (answer.token < 0) return fail("every token is forbidden", "sampling", "relax the mask");
    if (result.ids.empty()) {
      result.timing.prefill_s = seconds_since(start);
      start = Clock::now();
    }
    result.ids.push_back(answer.token);
    ++counts[answer.token];
    result.timing.completion_tokens = static_cast<int64_t>(result.ids.size());
    result.timing.decode_s = seconds_since(start);
    const auto is_in = [&](const std::vector<int32_t>& ids) {
      return std::find(ids.begin(), ids.end(), answer.token) != ids.end();
    };
    const bool stops = is_in(sampling.stop_ids) || (!sampling.ignore_eos && is_in(model_stop_ids));
    if (on_token && !on_token(answer)) {
      result.reason = stops ? FinishReason::kStop : FinishReason::kAborted;
      return false;
    }
    if (stops) return false;
    if (std::cmp_less(result.ids.size(), budget)) return true;
    result.reason = FinishReason::kLength;
    return false;
  }
};

Status Engine::prefill(SeqId seq, std::span<const int32_t> prompt) {
  const auto prompt_len = static_cast<int32_t>(prompt.size());
  for (int32_t at = 0; at < prompt_len; at += options_.max_batch_tokens) {
    const int32_t count = std::min(options_.max_batch_tokens, prompt_len - at);
    const Chunk chunk{seq, prompt.subspan(at, count),
                      at + count == prompt_len ? Logits::kLast : Logits::kNone};
    if (auto logits = step({&chunk, 1}); !logits) return fail(std::move(logits.error()));
  }
  return {};
}

Result<Generated> Engine::generate(std::span<const int32_t> prompt, const SamplingOptions& sampling,
                                   const OnToken& on_token) {
  if (prompt.empty()) return fail("no tokens", "prompt", "give at least one");
  const auto prompt_len = static_cast<int32_t>(prompt.size());
  if (prompt_len >= plan_.max_model_len) {
    return fail(fmt::format("{} tokens, where {} fit", prompt_len, plan_.max_model_len - 1),
                "prompt", "a shorter prompt, or a greater --max-model-len");
  }
  const int32_t room = plan_.max_model_len - prompt_len;
  Generation g{
      .sampling = sampling,
      .on_token = on_token,
      .model_stop_ids = stop_ids_,
      .seq = kv_->add_sequence(),
      .budget = sampling.max_tokens > 0 ? std::min(sampling.max_tokens, room) : room,
  };
  g.result.timing.load_s = load_seconds();
  g.result.timing.prompt_tokens = prompt_len;
  for (const int32_t id : prompt) g.counts.emplace(id, 0);
  for (const auto& [id, value] : sampling.logit_bias) {
    g.bias_ids.push_back(id);
    g.bias_values.push_back(value);
  }
  g.request = {.temperature = sampling.temperature,
               .top_k = sampling.top_k,
               .top_p = sampling.top_p,
               .min_p = sampling.min_p,
               .repetition_penalty = sampling.repetition_penalty,
               .frequency_penalty = sampling.frequency_penalty,
               .presence_penalty = sampling.presence_penalty,
               .num_logprobs = sampling.num_logprobs,
               .seed = sampling.seed ? *sampling.seed : std::random_device{}(),
               .bias_ids = g.bias_ids.data(),
               .bias_values = g.bias_values.data(),
               .num_bias = static_cast<int32_t>(g.bias_ids.size())};
  Status status = prefill(g.seq, prompt);
  if (status) {
    const bool ahead = device_->kind() != DeviceKind::kCpu && !is_penalised(sampling);
    status = ahead ? decode_ahead(g) : decode_by_launches(g);
  }
  kv_->free_sequence(g.seq);  // the sequence's pages go back however this ended
  if (!status) return fail(std::move(status.error()));
  return std::move(g.result);
}

Status Engine::decode_by_launches(Generation& g) {
  std::vector<int32_t> history_ids, history_counts;
  for (;;) {
    if (is_penalised(g.sampling)) {
      history_ids.clear();
      history_counts.clear();
      for (const auto& [id, count] : g.counts) {
        history_ids.push_back(id);
        history_counts.push_back(count);
      }
      g.request.history_ids = history_ids.data();
      g.request.history_counts = history_counts.data();
      g.request.num_history = static_cast<int32_t>(history_ids.size());
    }
    SampleAnswer answer;
    if (auto status = sample({&g.request, 1}, {&answer, 1}); !status) return status;
    ++g.request.step;
    auto go_on = g.take(answer);
    if (!go_on) return fail(std::move(go_on.error()));
    if (!*go_on) return {};
    const Chunk chunk{g.seq, {&g.result.ids.back(), 1}, Logits::kLast};
    if (auto logits = step({&chunk, 1}); !logits) return fail(std::move(logits.error()));
  }
}

Status Engine::decode_ahead(Generation& g) {
  DecodeLoop::Member member{.seq = g.seq, .request = g.request};
  if (g.request.num_bias > 0) {
    if (auto status = device_requests_->place({&g.request, 1}, *stream_); !status) return status;
    member.request = device_requests_->placed().front();
  }
  DecodeLoop& loop = *decode_loop_;
  auto status = loop.begin({&member, 1});
  if (!status) return status;
  int32_t num_asked = 1;  // begin draws the first
  while (status) {
    while (num_asked < g.budget) {
      auto launched = loop.launch();
      if (!launched) status = fail(std::move(launched.error()));
      if (!launched || !*launched) break;
      ++num_asked;
    }
    if (!status) break;
    if (loop.num_in_flight() == 0) {
      status = fail("no free pages in the KV cache", "step", "fewer streams or shorter contexts");
      break;
    }
    auto answers = loop.next();
    if (!answers) {
      status = fail(std::move(answers.error()));
      break;
    }
    auto go_on = g.take(answers->front());
    if (!go_on) status = fail(std::move(go_on.error()));
    if (!go_on || !*go_on) break;
  }
  const auto ended = loop.end();
  return status ? ended : status;
}

}  // namespace moxie
