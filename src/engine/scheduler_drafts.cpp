// The scheduler's part in drafts: which a step has room for, and what is kept of them.
#include <algorithm>

#include "engine/scheduler.h"

namespace moxie {

// Rows of the requests that decode, each with its drafts.
void Scheduler::add_decodes(StepPlan* plan) {
  if (options_.drafting.drafter != nullptr) place_drafts();
  for (Request* request : decoding_) {
    const int32_t num_drafts = request->verification.num_drafts();
    add_row(plan, *request, 1 + num_drafts, num_drafts > 0 ? Logits::kAll : Logits::kLast,
            num_drafts);
  }
}

// With what the step has left, of tokens, rows of logits and pages: nobody makes room for a draft,
// and prompts that run or wait keep half of it at least.
void Scheduler::place_drafts() {
  const Drafting& drafting = options_.drafting;
  auto left = std::min(budget_, rows_left_) - static_cast<int32_t>(decoding_.size());
  if (!prefilling_.empty() || !waiting_.empty()) left /= 2;
  for (Request* request : decoding_) {
    Verification& verification = request->verification;
    verification.clear();
    // A step draws one token more than it has drafts.
    const int32_t limit =
        std::min({drafting.max_drafts, left, request->max_new - request->num_drawn() - 1});
    if (!request->speculates || limit <= 0) continue;
    proposal_.clear();
    drafting.drafter->propose(request->id, request->tokens, limit, &proposal_);
    verification.begin(request->tokens.back(), proposal_, limit, runner_.limits().vocab,
                       request->sampler);
    if (!kv_.append(request->seq, verification.num_drafts())) verification.clear();
    left -= verification.num_drafts();
    counters_.num_drafted_steps += verification.num_drafts() > 0;
    counters_.num_drafts += verification.num_drafts();
  }
}

// Token by token, as if each had a step of its own: the one that ends the request is its last.
void Scheduler::absorb_draws(Request& request, const StepPlan::Row& row,
                             std::span<const SampleAnswer> answers) {
  const int32_t num_accepted = row.num_drafts > 0 ? request.verification.num_accepted(answers) : 0;
  const int32_t num_known = row.start + row.num_known();
  const auto num_before = request.tokens.size();
  const auto is_running = [&] { return request.state == Request::State::kRunning; };
  for (int32_t i = 0; i <= num_accepted; ++i) {
    if (i > 0) {  // draft i is a token of the request, and has its place
      ++counters_.num_accepted_drafts;
      if (is_running()) insert_pages(request, num_known + i);
    }
    absorb_token(request, answers[static_cast<size_t>(i)]);
    if (request.state == Request::State::kEnded) return;
  }
  if (row.num_drafts > 0 && is_running()) {
    request.num_stored = num_known + num_accepted;
    const auto cut = kv_.truncate(request.seq, request.num_stored);
    CHECK(cut.has_value(), cut ? "" : cut.error().message());
    kv_.release_window(request.seq);
  }
  if (!request.speculates) return;
  options_.drafting.drafter->observe(request.id, std::span(request.tokens).subspan(num_before),
                                     num_accepted);
}

}  // namespace moxie
