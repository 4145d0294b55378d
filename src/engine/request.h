// What is asked of a Service, and what its answers are made of.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/clock.h"
#include "engine/constraint.h"
#include "engine/drafter.h"
#include "engine/engine.h"
#include "engine/prefix_cache.h"
#include "kernels/sample/sample.h"

namespace moxie {

/// When what happened to a request.
struct RequestTimes {
  Clock::time_point submitted{};
  Clock::time_point admitted{};     ///< first time it left the queue
  Clock::time_point first_token{};  ///< drawn; all zero where it never came to that
  Clock::time_point finished{};
};

/// How a request ended.
struct Finish {
  FinishReason reason = FinishReason::kStop;
  Error error;           ///< with kError: for the client; its fault alone, or the step's
  int32_t stop_id = -1;  ///< with kStop: the token that ended it, the last one delivered
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;  ///< delivered ones, a stop token included
  CacheReport cache;              ///< prompt tokens found in the prefix cache, and why not more
  int32_t num_preemptions = 0;
  RequestTimes times;
};

/// News of one request, delivered in order. Everything borrowed ends with the call.
struct RequestUpdate {
  RequestId id = 0;
  Clock::time_point at{};
  /// Tokens drawn since the last update: one, or with drafts a few. logprob, rank and top_* are set
  /// as SamplingOptions::num_logprobs asked.
  std::span<const SampleAnswer> tokens;
  /// With ServiceRequest::prompt_logprobs: the next tokens of the prompt, from its second on (the
  /// first follows nothing), all of them before or with the first drawn token.
  std::span<const SampleAnswer> prompt_tokens;
  /// Null while the request goes on. Comes exactly once for every request that was taken, last and
  /// without tokens, mostly right behind the update with the last token.
  const Finish* finish = nullptr;
};

/// Called on the scheduling thread: must not block nor throw, and may come before submit() returns.
/// It may call cancel() and submit(), not drain() nor stop().
using RequestSink = std::function<void(const RequestUpdate&)>;

struct ServiceRequest {
  std::vector<int32_t> prompt;
  /// Of num_logprobs at most kMaxTopLogprobs. Without a seed one is drawn.
  SamplingOptions sampling;
  int32_t priority = 0;  ///< lower is served first, and preempted last (as vLLM has it)
  /// Requests share cached prefixes only with those of the same salt.
  std::string cache_salt;
  bool use_prefix_cache = true;
  /// -1: none; 0: log-probabilities of the prompt's tokens; n: and the n best of each place.
  /// Such a prompt is computed whole, the cache notwithstanding.
  int32_t prompt_logprobs = -1;
  std::shared_ptr<TokenConstraint> constraint;  ///< null: none
  bool use_drafter = true;                      ///< where the service has one
  /// Benchmarks: the first tokens of the answer, in place of those drawn.
  std::vector<int32_t> given;
  RequestSink sink;
};

/// What is wrong with a request for a model of this vocabulary; `where` of the error names a field.
Status check_request(const ServiceRequest& request, int32_t vocab);
/// Fails where the prompt leaves no room for a token.
Status check_length(int64_t num_prompt, int32_t max_model_len);

}  // namespace moxie
