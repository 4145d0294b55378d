// A request as the scheduler keeps it: its tokens, its place in the cache, and how it draws.
#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/request.h"
#include "engine/verification.h"

namespace moxie {

/// Turns SamplingOptions into what each draw asks for; keeps the counts that penalties need.
class Sampler {
 public:
  Sampler(const SamplingOptions& options, std::span<const int32_t> prompt,
          std::span<const int32_t> model_stop_ids, int32_t vocab);

  /// What the draw after `num_drawn` tokens wants; valid until the next take(). `mask` is room for
  /// one mask, used if `constraint` binds.
  SampleRequest next(int32_t num_drawn, TokenConstraint* constraint, std::span<uint32_t> mask);
  /// To the requests of draws behind `drafts`, one a draft, the counts that penalties then have; of
  /// them `lists` keeps the memory.
  void add_drafts(std::span<const int32_t> drafts, std::span<SampleRequest> requests,
                  std::vector<int32_t>* lists) const;
  /// Whether that draw and all after it want the same, whatever is drawn: nothing of the host.
  bool is_free(int32_t num_drawn) const { return !is_penalised_ && num_drawn >= min_tokens_; }
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
  /// Tokens known and to be known once the steps on their way are done.
  int32_t num_coming() const { return static_cast<int32_t>(tokens.size()) + num_pending; }
  /// Of those, the ones without a place in the cache.
  int32_t num_left() const { return num_coming() - num_stored; }
  /// Whether its next step is planned only when the draws on their way are known: drafts follow
  /// known tokens.
  bool awaits_draws() const { return speculates && num_pending > 0; }
  /// Whether the prompt has log-probabilities that were not delivered yet.
  bool wants_scores() const { return prompt_logprobs >= 0 && num_scored < num_prompt - 1; }
  /// Serves before: by priority, then by arrival.
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
  int32_t num_pending = 0;  // draws on their way
  int32_t pending_answer = -1;  // the last of them: its place among its step's answers
  int32_t num_plans = 0;        // steps on their way that have it
  int32_t num_scored = 0;       // prompt tokens whose log-probability was delivered
  bool was_admitted = false;
  bool is_suspect = false;       // was in a step that failed; runs alone until it has drawn again
  int32_t num_failed_steps = 0;  // that it was in, and whose fault was not found

  bool uses_cache;
  std::vector<BlockHash> chain;  // of the whole pages of tokens
  int32_t num_inserted = 0;      // pages that the prefix cache knows

  const std::vector<int32_t> given;  // the first tokens of the answer, in place of those drawn
  bool speculates;                   // its answer is drafted
  Verification verification;         // of its drafts in the step on its way

  Sampler sampler;
  std::shared_ptr<TokenConstraint> constraint;
  RequestSink sink;
  Finish finish;
  bool was_told = false;  // of its end

 private:
  BlockHash start_;  // of the chain
};

class StepRunner;
/// The request as the scheduler takes it; its id is still to be given. It has been checked.
/// `room`: as for Request; none: what the runner's context leaves.
std::unique_ptr<Request> make_request(ServiceRequest request, StepRunner& runner,
                                      std::optional<int32_t> room = {});

}  // namespace moxie
