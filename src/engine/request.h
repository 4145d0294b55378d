// A request to a Service, and the updates that its sink receives.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/clock.h"
#include "engine/constraint.h"
#include "engine/draft_counts.h"
#include "engine/drafter.h"
#include "engine/engine.h"
#include "engine/prefix_cache.h"
#include "kernels/sample/sample.h"

namespace moxie {

/// The times of a request's events.
struct RequestTimes {
  Clock::time_point submitted{};
  Clock::time_point admitted{};     ///< first time it left the queue
  Clock::time_point first_token{};  ///< drawn; each time is zero if the event never came
  Clock::time_point finished{};
};

/// How a request ended.
struct Finish {
  FinishReason reason = FinishReason::kStop;
  Error error;           ///< with kError: for the client; the request's own fault, or the launch's
  int32_t stop_id = -1;  ///< with kStop: the token that ended it, the last one delivered
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;  ///< delivered ones, a stop token included
  CacheReport cache;              ///< prompt tokens found in the prefix cache, and why no more
  int32_t num_preemptions = 0;
  DraftCounts drafts;
  RequestTimes times;
};

/// News of one request, delivered in order. Spans and pointers are valid during the call only.
struct RequestUpdate {
  RequestId id = 0;
  Clock::time_point at{};
  /// Tokens drawn since the last update: one, or with drafts several. logprob, rank and top_* are
  /// set as SamplingOptions::num_logprobs asks.
  std::span<const SampleAnswer> tokens;
  /// With ServiceRequest::prompt_logprobs: the next tokens of the prompt, from its second token on
  /// (the first has no log-probability). All come before or with the first drawn token.
  std::span<const SampleAnswer> prompt_tokens;
  /// Null while the request goes on. Set exactly once for every accepted request, in its last
  /// update, which has no tokens and mostly comes right after the update with the last token.
  const Finish* finish = nullptr;
};

/// Called on the scheduling thread: must not block nor throw, and may come before submit() returns.
/// It may call cancel() and submit(), not drain() nor stop().
using RequestSink = std::function<void(const RequestUpdate&)>;

struct ServiceRequest {
  std::vector<int32_t> prompt;
  /// num_logprobs is at most kMaxTopLogprobs. Without a seed a random one is chosen.
  SamplingOptions sampling;
  int32_t priority = 0;  ///< lower is served first, and preempted last (as vLLM has it)
  /// Requests share cached prefixes only with those of the same salt.
  std::string cache_salt;
  bool use_prefix_cache = true;
  /// -1: none; 0: log-probabilities of the prompt's tokens; n: also of the n best at each position.
  /// From 0 on the whole prompt is computed, without the prefix cache.
  int32_t prompt_logprobs = -1;
  std::shared_ptr<TokenConstraint> constraint;  ///< null: none
  bool use_drafter = true;                      ///< if the service has one
  bool passes_queue_limits = false;             ///< is taken however many wait: for probes
  /// Benchmarks: the first tokens of the answer, instead of drawn ones.
  std::vector<int32_t> given;
  RequestSink sink;
};

/// Checks a request against a model's vocabulary; `where` of the error names the field at fault.
Status check_request(const ServiceRequest& request, int32_t vocab);
/// Fails if the prompt leaves no room for a token.
Status check_length(int64_t num_prompt, int32_t max_model_len);

}  // namespace moxie
