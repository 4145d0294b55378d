// A request's state in the scheduler: its tokens, its sequence in the cache, and its sampler.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/draft_length.h"
#include "engine/request.h"
#include "engine/verification.h"

namespace moxie {

/// Turns SamplingOptions into the SampleRequest of each draw; keeps the counts for penalties.
class Sampler {
 public:
  Sampler(const SamplingOptions& options, std::span<const int32_t> prompt,
          std::span<const int32_t> model_stop_ids, int32_t vocab);

  /// The SampleRequest of the draw after `num_drawn` tokens; valid until the next take(). `mask`
  /// has room for one mask, used if `constraint` binds.
  SampleRequest next(int32_t num_drawn, TokenConstraint* constraint, std::span<uint32_t> mask);
  /// Sets, in the requests of the draws behind `drafts` (one a draft), the counts for penalties as
  /// if the drafts before were drawn. `lists` owns the memory of the counts.
  void add_drafts(std::span<const int32_t> drafts, std::span<SampleRequest> requests,
                  std::vector<int32_t>* lists) const;
  /// Whether the requests of all draws are independent of the tokens drawn.
  bool is_free() const { return !is_penalised_; }
  /// Whether the request of that draw differs from the one before in more than its number, though
  /// it is free: stop tokens are no longer forbidden.
  bool changes_at(int32_t num_drawn) const {
    return num_drawn == min_tokens_ && std::cmp_less(num_own_bias_, bias_ids_.size());
  }
  /// The token was drawn.
  void take(int32_t token);
  bool stops_at(int32_t token) const;

 private:
  SampleRequest base_;
  int32_t min_tokens_;
  int32_t num_own_bias_;           // entries of the lists before those of forbidden stop tokens
  std::vector<int32_t> stop_ids_;  // sorted
  std::vector<int32_t> bias_ids_;
  std::vector<float> bias_values_;
  std::vector<uint32_t> allowed_;  // empty: all
  bool is_penalised_;
  std::vector<int32_t> history_ids_, history_counts_;
  std::unordered_map<int32_t, int32_t> history_places_;
};

struct Request {
  enum class State : uint8_t { kWaiting, kRunning, kEnded };

  /// `room`: tokens that fit behind the prompt.
  Request(ServiceRequest request, Sampler request_sampler, int32_t room, int32_t page_tokens);

  int32_t num_drawn() const { return static_cast<int32_t>(tokens.size()) - num_prompt; }
  /// Known tokens, and those that launches under way will draw.
  int32_t num_coming() const { return static_cast<int32_t>(tokens.size()) + num_pending; }
  /// Those of num_coming() that have no place in the cache.
  int32_t num_left() const { return num_coming() - num_stored; }
  /// Whether its next launch is planned only after the draws under way: drafts follow known tokens.
  bool awaits_draws() const { return speculates && !runs_ahead && num_pending > 0; }
  /// Whether log-probabilities of the prompt are still to be delivered.
  bool wants_scores() const { return prompt_logprobs >= 0 && num_scored < num_prompt - 1; }
  /// Whether it is served before `other`: by priority, then by arrival.
  bool is_before(const Request& other) const {
    return priority != other.priority ? priority < other.priority : id < other.id;
  }
  void push_token(int32_t token, int32_t page_tokens);

  RequestId id = 0;  // given before the scheduler sees it
  State state = State::kWaiting;
  const int32_t priority, prompt_logprobs;
  const int32_t num_prompt;
  const int32_t max_new;        // tokens to draw at most
  std::vector<int32_t> tokens;  // prompt, then drawn ones

  SeqId seq = -1;           // while running
  int32_t num_stored = 0;   // tokens with a place in the cache: computed, or given to the device
  int32_t num_pending = 0;  // draws under way
  int32_t pending_answer = -1;  // index of the last one among its launch's answers
  int32_t num_plans = 0;        // launches under way that have a row of it
  int32_t num_scored = 0;       // prompt tokens whose log-probability was delivered
  bool was_admitted = false;
  bool is_suspect = false;       // was in a failed launch; runs alone until it has drawn again
  int32_t num_failed_steps = 0;  // failed launches that it was in, no request found at fault

  bool uses_cache;
  const std::string salt;        // of the chain
  std::vector<BlockHash> chain;  // of the whole pages of tokens
  int32_t num_inserted = 0;      // pages that the prefix cache knows

  const std::vector<int32_t> given;  // the first tokens of the answer, instead of drawn ones
  bool speculates;                   // its answer is drafted
  Verification verification;         // of its drafts in the launch under way
  std::vector<int32_t> proposal;     // what they were taken from
  AcceptanceEstimate acceptance;
  // Drafts that do not pay are left out for a while, and then tried again.
  bool is_paused = false, is_probe = true;
  bool is_tried = false;    // in the launch that is planned
  bool runs_ahead = false;  // while paused, if the drafter allows it
  int32_t pause_left = 0;   // launches
  int32_t num_empty = 0;    // proposals without a token, one after another
  int32_t num_rests = 0;    // times that drafts did not pay, one after another

  Sampler sampler;
  std::shared_ptr<TokenConstraint> constraint;
  RequestSink sink;
  Finish finish;
  bool was_told = false;  // the sink has been told of the end

 private:
  BlockHash start_;  // of the chain
};

class StepRunner;
/// Makes the scheduler's form of a checked request, still without an id. `room` as for Request;
/// none: the tokens that the runner's context leaves.
std::unique_ptr<Request> make_request(ServiceRequest request, StepRunner& runner,
                                      std::optional<int32_t> room = {});

}  // namespace moxie
