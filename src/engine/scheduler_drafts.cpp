// The scheduler's handling of drafts: how many fit in a launch, and which tokens are kept.
#include <algorithm>

#include "engine/scheduler.h"

namespace moxie {

// Adds the rows of decoding requests, each with its drafts.
void Scheduler::add_decodes(StepPlan* plan) {
  if (options_.drafting.drafter != nullptr) place_drafts();
  for (Request* request : decoding_) {
    const int32_t num_drafts = request->verification.num_drafts();
    add_row(plan, *request, 1 + num_drafts, num_drafts > 0 ? Logits::kAll : Logits::kLast,
            num_drafts);
  }
}

// Drafts take tokens, rows of logits and pages that the launch has left. No request is preempted
// for a draft, and running or waiting prompts keep at least half of the tokens.
void Scheduler::place_drafts() {
  const Drafting& drafting = options_.drafting;
  auto left = std::min(budget_, rows_left_) - static_cast<int32_t>(decoding_.size());
  if (!prefilling_.empty() || !waiting_.empty()) left /= 2;
  asks_.clear();
  asking_.clear();
  for (Request* request : decoding_) {
    request->verification.clear();
    // A row draws one token more than it has drafts.
    const int32_t limit =
        std::min({drafting.max_drafts, left, request->max_new - request->num_drawn() - 1});
    if (!request->speculates || limit <= 0) continue;
    request->proposal.clear();
    asking_.push_back(request);
    asks_.push_back({.request = request->id,
                     .seq = request->seq,
                     .tokens = request->tokens,
                     .limit = limit,
                     .drafts = &request->proposal});
  }
  if (asks_.empty()) return;
  drafting.drafter->propose_all(asks_);
  for (size_t i = 0; i < asks_.size(); ++i) {
    Request* request = asking_[i];
    Verification& verification = request->verification;
    const int32_t limit = std::min(asks_[i].limit, left);
    if (simulated_.is_on()) simulated_.fill(limit, runner_.limits().vocab, &request->proposal);
    verification.begin(request->tokens.back(), request->proposal, limit, runner_.limits().vocab,
                       request->sampler);
    if (!kv_.append(request->seq, verification.num_drafts())) verification.clear();
    left -= verification.num_drafts();
  }
}

// Token by token, as if each had its own launch: the token that ends the request is the last.
void Scheduler::absorb_draws(Request& request, const StepPlan::Row& row,
                             std::span<const SampleAnswer> answers) {
  const int32_t num_accepted = row.num_drafts == 0  ? 0
                               : simulated_.is_on() ? simulated_.num_accepted(row.num_drafts)
                                                    : request.verification.num_accepted(answers);
  const int32_t num_known = row.start + row.num_known();
  const auto num_before = request.tokens.size();
  if (row.num_drafts > 0) {
    counters_.drafts.add_launch(row.num_drafts);
    request.finish.drafts.add_launch(row.num_drafts);
  }
  const auto is_running = [&] { return request.state == Request::State::kRunning; };
  for (int32_t i = 0; i <= num_accepted; ++i) {
    if (i > 0) {  // draft i is accepted: its place in the cache counts
      counters_.drafts.add_accepted(i - 1);
      request.finish.drafts.add_accepted(i - 1);
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
