// Requests of a validation: some at once on a service, with their tokens, times and ends.
#pragma once

#include <span>
#include <vector>

#include "engine/service.h"

namespace moxie {

struct ValidateAnswer {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;                 ///< of ids, where asked for
  std::vector<float> prompt_logprobs;          ///< of the prompt from its second token on, likewise
  std::vector<Clock::time_point> token_times;  ///< of ids
  Finish finish;
  int32_t num_finishes = 0;  ///< 1 where nothing is wrong
  std::string refusal;       ///< why it was not taken; empty: it was
};

struct AnswerOptions {
  int32_t concurrency = 1;
  double patience_s = 300;  ///< without news of any request for so long, the rest is given up
  std::function<void(size_t index)> on_finish;  ///< on the caller's thread; null: nobody
};

/// Submits the requests in order, so many at once, and waits for all of them. Their sinks are
/// replaced. A request that never ends has num_finishes 0.
std::vector<ValidateAnswer> answer_all(Service& service, std::vector<ServiceRequest> requests,
                                       const AnswerOptions& options = {});

/// Ids from 0 to vocab - 1, the same on every machine.
std::vector<int32_t> random_ids(int32_t count, int32_t vocab, uint64_t seed);

/// A greedy request of exactly `max_tokens` tokens.
ServiceRequest greedy_request(std::vector<int32_t> prompt, int32_t max_tokens);

/// What is wrong with the answers, as text: refused, failed, ended twice or never, too short.
/// Empty: each has `num_tokens` tokens and one end.
std::string answers_fault(std::span<const ValidateAnswer> answers, size_t num_tokens);

}  // namespace moxie
