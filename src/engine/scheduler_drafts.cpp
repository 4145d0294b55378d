// The scheduler's handling of drafts: how many fit in a launch, and which tokens are kept.
#include <algorithm>

#include "engine/acceptance_watch.h"
#include "engine/scheduler.h"

namespace moxie {
namespace {

// Launches without drafts, from which number on a drafter misses them.
constexpr int32_t kLeastUnfollowed = 16;
// Requests of one launch that are tried.
constexpr int32_t kMostTries = 4;

}  // namespace

// Adds the rows of decoding requests, each with its drafts.
void Scheduler::add_decodes(StepPlan* plan) {
  if (options_.drafting.drafter != nullptr) place_drafts();
  for (Request* request : decoding_) {
    if (request->is_paused) --request->pause_left;
    const bool is_plain =
        request->is_paused && (request->runs_ahead || options_.max_loop_streams == 0);
    plan->is_drafted |= request->speculates && !is_plain;
    const int32_t num_drafts = request->verification.num_drafts();
    add_row(plan, *request, 1 + num_drafts, num_drafts > 0 ? Logits::kAll : Logits::kLast,
            num_drafts);
    plan->rows.back().is_try = num_drafts > 0 && request->is_tried;
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
    request->is_tried = false;
    // A row draws one token more than it has drafts.
    const int32_t limit =
        std::min({drafting.max_drafts, left, request->max_new - request->num_drawn() - 1});
    if (!request->speculates || request->is_paused || limit <= 0) continue;
    request->proposal.clear();
    asking_.push_back(request);
    asks_.push_back({.request = request->id,
                     .seq = request->seq,
                     .tokens = request->tokens,
                     .limit = limit,
                     .drafts = &request->proposal});
  }
  if (drafting.is_adaptive && !asks_.empty()) limit_by_cost(left);
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
    // Where nothing is proposed again and again, the request is not held back for it.
    constexpr int32_t kLongestRest = 8;
    request->num_empty = request->proposal.empty() ? request->num_empty + 1 : 0;
    if (request->num_empty > 1 && drafting.is_adaptive && options_.max_loop_streams > 0) {
      pause_drafts(*request, std::min(request->num_empty - 1, kLongestRest));
    }
  }
}

// Leaves those requests that drafts pay for, each with as many as pay.
void Scheduler::limit_by_cost(int32_t left) {
  // Launches without drafts, for their time: nothing may wait for the host in them.
  const int32_t kMeasured = options_.max_loop_streams > 0 ? kLeastUnfollowed : 4;
  const auto num_tokens = static_cast<int32_t>(decoding_.size());
  const bool knows_plain = memory_.costs.knows_plain(num_tokens);
  places_.clear();
  for (size_t i = 0; i < asks_.size(); ++i) {
    places_.push_back({&asking_[i]->acceptance, asks_[i].limit});
  }
  lengths_.assign(asks_.size(), 0);
  if (knows_plain) chooser_.choose(memory_.costs, num_tokens, left, places_, &lengths_);
  size_t num_kept = 0;
  int32_t num_tries = 0;
  const auto may_try = [&] { return num_tries < kMostTries && memory_.probes.may_try(); };
  for (size_t i = 0; i < asks_.size(); ++i) {
    Request& request = *asking_[i];
    int32_t length = lengths_[i];
    if (!knows_plain) {
      pause_drafts(request, kMeasured);
    } else if (length == 0 && request.is_probe && may_try()) {
      ++num_tries;
      length = std::min(kProbeDrafts, asks_[i].limit);
      request.is_tried = true;
    } else if (length == 0) {
      // Shorter at first: what is known of this request and of costs may be chance.
      constexpr int32_t kFirst = 4, kDoublings = 10;
      const int32_t rest = std::min(kFirst << std::min(kDoublings, request.num_rests++),
                                    launches_until_probe(memory_.costs, num_tokens));
      pause_drafts(request, may_try() ? rest : std::max(rest, kLeastUnfollowed));
      memory_.num_rests = request.num_rests;
    } else {
      memory_.num_rests = request.num_rests = 0;
    }
    if (length == 0) continue;
    asks_[num_kept] = asks_[i];
    asks_[num_kept].limit = length;
    asking_[num_kept++] = &request;
  }
  asks_.resize(num_kept);
  asking_.resize(num_kept);
}

// A rest is over. Without a budget for a try it goes on, which leaves a decode loop alone.
void Scheduler::end_rest(Request& request) {
  if (options_.drafting.is_adaptive && request.num_rests > 0 && !memory_.probes.may_try()) {
    return pause_drafts(request, kLeastUnfollowed);
  }
  request.is_paused = request.runs_ahead = false;
  request.is_probe = true;
}

void Scheduler::pause_drafts(Request& request, int32_t num_launches) {
  request.is_paused = true;
  request.pause_left = num_launches;
  // A drafter that follows launches loses acceptance by those that it misses, and costs time in
  // those that it sees: it is spared the latter where drafts have not paid for long.
  request.runs_ahead = options_.drafting.drafter->may_miss_launches() ||
                       (num_launches >= kLeastUnfollowed && options_.max_loop_streams > 0);
}

// A launch takes from the end of the one before to its own, or from its planning where the host had
// been idle.
void Scheduler::measure(const StepPlan& plan) {
  constexpr auto kIdle = std::chrono::milliseconds(1);
  const auto now = Clock::now();
  const auto start = plan.planned_at - last_absorb_ < kIdle ? last_absorb_ : plan.planned_at;
  last_absorb_ = now;
  if (plan.has_prompts) return;
  const double seconds = std::chrono::duration<double>(now - start).count();
  memory_.costs.add(plan.is_drafted, plan.num_tokens, seconds);
  const auto num_tries = std::count_if(plan.rows.begin(), plan.rows.end(),
                                       [](const StepPlan::Row& row) { return row.is_try; });
  memory_.probes.add(seconds, memory_.costs.plain_s(static_cast<int32_t>(plan.rows.size())),
                     static_cast<int32_t>(num_tries));
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
    request.acceptance.add(row.num_drafts, num_accepted);
    memory_.usual.add(row.num_drafts, num_accepted);
    if (row.is_try && num_accepted == row.num_drafts) memory_.probes.give_back();
    request.is_probe = num_accepted == row.num_drafts && request.acceptance.may_learn_from_probe();
    counters_.drafts.add_launch(row.num_drafts);
    request.finish.drafts.add_launch(row.num_drafts);
    if (options_.drafting.watch != nullptr) options_.drafting.watch->add(num_accepted > 0);
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
