// Rows of a launch, admission, preemption, and the absorbing of drawn tokens.
#include "engine/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace moxie {
namespace {

// Stands in for a token that the launch before draws.
constexpr int32_t kAwaitedToken = 0;
// Added to the logit of a prompt's token, so that the greedy draw yields that token.
constexpr float kForced = 1e30f;
// The most requests at the head of the queue that one plan passes over because another request is
// computing their prefix.
constexpr int kMaxPassedOver = 64;
// Failed launches, with no request found at fault, after which a request that was in them ends: so
// ends a fault that shows only when requests run together.
constexpr int kMaxFailedSteps = 3;

// The number of requests whose windows fit at once beside the pages of a launch's prompts.
int32_t most_running(const KvCache& kv, int32_t max_model_len, int32_t max_batch_tokens) {
  const int64_t each = kv.shape().window_pages(max_model_len, 1);
  if (each == 0) return std::numeric_limits<int32_t>::max();
  const int64_t prompts = max_batch_tokens / kv.shape().page_tokens + 1;
  return static_cast<int32_t>(std::max<int64_t>(1, (kv.num_window_pages() - prompts) / each));
}

// A request that runs alone fits in the cache unless something else holds pages.
Error no_pages() {
  return {"no free pages in the KV cache", "step", "fewer streams or shorter contexts"};
}

}  // namespace

void StepPlan::clear() {
  rows.clear();
  chunks.clear();
  awaited.clear();
  given.clear();
  in_loop = InLoop::kNo;
  num_tokens = num_answers = 0;
  is_drafted = has_prompts = false;
  status = {};
  was_launched = was_run = false;
  seconds = 0;
}

void StepPlan::put_given() {
  for (const auto& [answer, token] : given) answers[static_cast<size_t>(answer)].token = token;
}

Scheduler::Scheduler(StepRunner& runner, const Options& options)
    : runner_(runner),
      kv_(runner.kv()),
      options_(options),
      page_tokens_(kv_.shape().page_tokens),
      max_running_(std::min(options.max_num_seqs, most_running(kv_, runner.limits().max_model_len,
                                                               options.max_batch_tokens))),
      simulated_(options.drafting.acceptance, options.drafting.seed),
      memory_(options.drafting.memory != nullptr ? *options.drafting.memory : own_memory_) {
  if (options.drafting.drafter != nullptr) {
    CHECK(options.drafting.max_drafts <= kMostDrafts);
    counters_.drafts.num_positions = options.drafting.max_drafts;
  }
  if (options.prefix_cache) {
    prefixes_ = std::make_unique<PrefixCache>(kv_, options.cache_listener);
  }
}

Scheduler::~Scheduler() {
  for (Request* request : running_) kv_.free_sequence(request->seq);
}

void Scheduler::add(std::unique_ptr<Request> request) {
  Request& added = *request;
  CHECK(added.id != 0 && !requests_.contains(added.id), "a request without an id of its own");
  if (prefixes_ == nullptr) added.uses_cache = false;
  if (options_.drafting.drafter == nullptr) added.speculates = false;
  if (added.speculates) {
    added.finish.drafts.num_positions = options_.drafting.max_drafts;
    added.acceptance = memory_.usual;
    added.acceptance.begin();
    added.num_rests = memory_.num_rests;
  }
  queued_tokens_ += added.num_prompt;
  waiting_.insert(&added);
  requests_.emplace(added.id, std::move(request));
}

void Scheduler::add(std::unique_ptr<Request> request, SeqId seq) {
  Request& added = *request;
  CHECK(kv_.num_tokens(seq) < added.num_prompt);
  add(std::move(request));
  added.uses_cache = false;
  start(added, seq, {.hit_tokens = kv_.num_tokens(seq)});
}

void Scheduler::cancel(RequestId id) {
  const auto found = requests_.find(id);
  if (found != requests_.end()) end(*found->second, FinishReason::kAborted);
}

void Scheduler::cancel_all() {
  for (auto& [id, request] : requests_) end(*request, FinishReason::kAborted);
}

void Scheduler::fail_all(const Error& error) {
  for (auto& [id, request] : requests_) end(*request, FinishReason::kError, error);
}

bool Scheduler::plan(StepPlan* plan) {
  for (;;) {
    plan->clear();
    plan->planned_at = Clock::now();
    budget_ = options_.max_batch_tokens;
    rows_left_ = runner_.limits().max_logit_rows;
    place_decodes(plan);
    admit();
    place_prefills(plan);
    if (!plan->rows.empty() || running_.empty() || num_under_way_ > 0) break;
    // Only prompts are left, and no pages for any of them: the last one gives up its pages.
    if (running_.size() == 1)
      end(*running_.back(), FinishReason::kError, no_pages());
    else
      preempt(*running_.back());
  }
  if (plan->rows.empty()) return false;
  plan->in_loop = place_in_loop(*plan);
  num_loop_rows_ = plan->in_loop == InLoop::kNo ? 0 : plan->rows.size();
  counters_.num_loop_steps += plan->in_loop != InLoop::kNo;
  runner_.build(plan->chunks, plan->in_loop, &plan->arrays);
  if (plan->in_loop == InLoop::kFirst) begin_loop(plan);
  if (plan->in_loop == InLoop::kNext) ++loop_step_;
  plan->number = ++counters_.num_steps;
  plan->answers.resize(static_cast<size_t>(plan->num_answers));
  counters_.computed_tokens += plan->num_tokens;
  counters_.last_step_tokens = plan->num_tokens;
  ++num_under_way_;
  return true;
}

// Places a token of every running request with one token left; collects those with more.
void Scheduler::place_decodes(StepPlan* plan) {
  prefilling_.clear();
  decoding_.clear();
  reserved_pages_ = 0;
  for (size_t i = 0; i < running_.size(); ++i) {  // make_room() shortens the list behind i
    Request& request = *running_[i];
    if (request.is_paused && request.pause_left == 0) end_rest(request);
    if (!has_turn(request) || request.awaits_draws()) continue;
    const int32_t left = request.num_left();
    if (left > 1) {
      prefilling_.push_back(&request);
      continue;
    }
    const bool draws_last = request.num_coming() - request.num_prompt >= request.max_new;
    const bool is_full = std::cmp_equal(decoding_.size(), std::min(budget_, rows_left_));
    if (left == 0 || draws_last || is_full) continue;
    if (make_room(request)) decoding_.push_back(&request);
  }
  add_decodes(plan);
  for (const Request* request : prefilling_) {
    reserved_pages_ +=
        kv_.shape().full_pages(request->num_coming()) - kv_.shape().full_pages(request->num_stored);
  }
}

// Makes room for one more token by preempting the last running request. False if that was this one.
bool Scheduler::make_room(Request& request) {
  while (!kv_.append(request.seq, 1)) {
    if (running_.size() == 1) {  // alone: waits for the window pages of launches under way
      if (num_under_way_ == 0) end(request, FinishReason::kError, no_pages());
      return false;
    }
    Request& victim = *running_.back();
    preempt(victim);
    if (&victim == &request) return false;
  }
  return true;
}

// The oldest prompt gets at least half of the tokens; then come those with the fewest left. So a
// long prompt neither starves nor delays short ones.
void Scheduler::place_prefills(StepPlan* plan) {
  if (prefilling_.empty() || budget_ == 0) return;
  const auto oldest = std::min_element(prefilling_.begin(), prefilling_.end(), Before{});
  std::iter_swap(prefilling_.begin(), oldest);
  std::sort(prefilling_.begin() + 1, prefilling_.end(), [](const Request* a, const Request* b) {
    return a->num_left() != b->num_left() ? a->num_left() < b->num_left() : a->is_before(*b);
  });
  int64_t others = 0;
  for (size_t i = 1; i < prefilling_.size(); ++i) others += prefilling_[i]->num_left();
  const auto rest = static_cast<int32_t>(std::max<int64_t>(0, budget_ - others));
  place_prefill(plan, *prefilling_.front(), std::max(rest, (budget_ + 1) / 2));
  for (size_t i = 1; i < prefilling_.size() && budget_ > 0; ++i) {
    place_prefill(plan, *prefilling_[i], budget_);
  }
}

void Scheduler::place_prefill(StepPlan* plan, Request& request, int32_t share) {
  int32_t count = std::min(request.num_left(), share);
  const bool scores = request.wants_scores();
  if (scores) count = std::min(count, rows_left_);
  // If no row of logits is left for the draw, the last token waits.
  if (count == request.num_left() && rows_left_ == 0) --count;
  while (count > 0 && !kv_.append(request.seq, count)) count /= 2;
  if (count == 0) return;
  plan->has_prompts = true;
  const bool ends = count == request.num_left();
  add_row(plan, request, count, scores ? Logits::kAll : ends ? Logits::kLast : Logits::kNone);
}

void Scheduler::add_row(StepPlan* plan, Request& request, int32_t count, Logits logits,
                        int32_t num_drafts) {
  const int32_t start = request.num_stored;
  const auto num_known = static_cast<int32_t>(request.tokens.size());
  StepPlan::Row row{.request = &request, .start = start, .count = count, .num_drafts = num_drafts};
  row.draws = start + row.num_known() == request.num_coming();
  row.first_answer = plan->num_answers;
  row.num_answers = logits == Logits::kAll ? count : logits == Logits::kLast ? 1 : 0;
  if (num_drafts > 0) {
    plan->chunks.push_back({request.seq, request.verification.tokens(), logits});
  } else if (start < num_known) {
    plan->chunks.push_back(
        {request.seq,
         std::span(request.tokens).subspan(static_cast<size_t>(start), static_cast<size_t>(count)),
         logits});
  } else {
    plan->chunks.push_back({request.seq, {&kAwaitedToken, 1}, logits});
    plan->awaited.emplace_back(plan->num_tokens, request.pending_answer);
  }
  plan->num_tokens += count;
  plan->num_answers += row.num_answers;
  budget_ -= count;
  rows_left_ -= row.num_answers;
  request.num_stored += count;
  if (row.draws) {
    ++request.num_pending;
    request.pending_answer = plan->num_answers - 1;
    const auto number = static_cast<size_t>(row.num_drawn());
    if (number < request.given.size()) {
      plan->given.emplace_back(request.pending_answer, request.given[number]);
    }
  }
  ++request.num_plans;
  plan->rows.push_back(row);
}

// Admits as many requests as fill the launch's tokens. A request that lacks pages is not overtaken.
void Scheduler::admit() {
  num_deferred_ = 0;
  if (num_suspects_ > 0) return admit_suspect();
  int64_t backlog = 0;  // without the oldest, which has its own share
  for (size_t i = 1; i < prefilling_.size(); ++i) backlog += prefilling_[i]->num_left();
  int num_passed_over = 0;
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    if (std::cmp_greater_equal(running_.size(), max_running_) || backlog >= budget_) return;
    Request& request = **next++;  // advance before start() removes it
    const Admission admission = request.num_plans > 0 ? Admission::kLater : try_admit(request);
    if (admission == Admission::kNoRoom) return;
    if (admission == Admission::kLater) {
      ++num_deferred_;
      if (++num_passed_over == kMaxPassedOver) return;
      continue;
    }
    if (prefilling_.size() > 1) backlog += request.num_left();
  }
}

// Admits the next suspect once the last one is cleared or has ended; running requests are preempted
// to make room for it.
void Scheduler::admit_suspect() {
  const auto is_suspect = [](const Request* request) { return request->is_suspect; };
  if (std::any_of(running_.begin(), running_.end(), is_suspect)) return;
  const auto next = std::find_if(waiting_.begin(), waiting_.end(), is_suspect);
  CHECK(next != waiting_.end());
  Request& request = **next;
  if (request.num_plans > 0) return;
  while (try_admit(request) != Admission::kDone) preempt(*running_.back());
}

void Scheduler::set_suspect(Request& request, bool is_suspect) {
  num_suspects_ += static_cast<int32_t>(is_suspect) - static_cast<int32_t>(request.is_suspect);
  request.is_suspect = is_suspect;
}

CacheReport Scheduler::look_up(const Request& request) const {
  if (!request.uses_cache) return {.miss = CacheMiss::kOff};
  if (request.wants_scores()) return {.miss = CacheMiss::kLogprobs};
  return prefixes_->find(request.chain, static_cast<int32_t>(request.tokens.size()));
}

Scheduler::Admission Scheduler::try_admit(Request& request) {
  const CacheReport report = look_up(request);
  const int32_t num_hit_blocks = report.hit_tokens / page_tokens_;
  if (waits_for_prefix(request, num_hit_blocks)) return Admission::kLater;
  const SeqId seq =
      num_hit_blocks > 0 ? prefixes_->take(request.chain, report.hit_tokens) : kv_.add_sequence();
  const int64_t needed =
      kv_.shape().full_pages(request.num_coming()) - kv_.shape().full_pages(report.hit_tokens);
  // Spare pages for the running requests, so that they do not preempt each other.
  const int64_t spare =
      std::min<int64_t>(static_cast<int64_t>(running_.size()), kv_.num_full_pages() / 16);
  if (!running_.empty() && needed + reserved_pages_ + spare > kv_.num_free_full_pages()) {
    kv_.free_sequence(seq);
    return Admission::kNoRoom;
  }
  reserved_pages_ += needed;
  start(request, seq, report);
  return Admission::kDone;
}

// Whether a running request is about to compute the block behind the hit.
bool Scheduler::waits_for_prefix(const Request& request, int32_t num_hit_blocks) const {
  const auto block = static_cast<size_t>(num_hit_blocks);
  if (!request.uses_cache || request.wants_scores() || block >= request.chain.size()) return false;
  if ((num_hit_blocks + 1) * page_tokens_ >= request.num_coming()) return false;
  return std::any_of(prefilling_.begin(), prefilling_.end(), [&](const Request* other) {
    return other->uses_cache && other->num_inserted <= num_hit_blocks &&
           block < other->chain.size() && other->chain[block] == request.chain[block];
  });
}

void Scheduler::start(Request& request, SeqId seq, const CacheReport& report) {
  waiting_.erase(&request);
  request.state = Request::State::kRunning;
  request.seq = seq;
  request.num_stored = report.hit_tokens;
  request.num_inserted = report.hit_tokens / page_tokens_;
  running_.insert(std::upper_bound(running_.begin(), running_.end(), &request, Before{}), &request);
  prefilling_.push_back(&request);
  if (request.uses_cache && report.hit_tokens > 0) {
    prefixes_->expect_end(
        std::span(request.chain).first(static_cast<size_t>(request.num_inserted)));
  }
  if (request.was_admitted) return;
  request.was_admitted = true;
  request.finish.cache = report;
  request.finish.times.admitted = Clock::now();
  queued_tokens_ -= request.num_prompt;
  counters_.prompt_tokens += request.num_prompt;
  if (!request.uses_cache) return;
  counters_.prefix_query_tokens += request.num_prompt;
  counters_.prefix_hit_tokens += report.hit_tokens;
}

void Scheduler::leave_running(Request& request) {
  const auto place = std::lower_bound(running_.begin(), running_.end(), &request, Before{});
  CHECK(place != running_.end() && *place == &request);
  running_.erase(place);
  kv_.free_sequence(request.seq);
  request.seq = -1;
  request.num_stored = request.num_inserted = 0;
}

void Scheduler::preempt(Request& request) {
  leave_running(request);
  request.state = Request::State::kWaiting;
  waiting_.insert(&request);
  ++request.finish.num_preemptions;
  ++counters_.num_preemptions;
}

void Scheduler::end(Request& request, FinishReason reason, Error error) {
  if (request.state == Request::State::kEnded) return;
  if (request.state == Request::State::kRunning) {
    if (request.uses_cache && request.num_inserted > 0) {
      prefixes_->expect_end(
          std::span(request.chain).first(static_cast<size_t>(request.num_inserted)));
    }
    leave_running(request);
  } else {
    waiting_.erase(&request);
  }
  if (!request.was_admitted) queued_tokens_ -= request.num_prompt;
  set_suspect(request, false);
  if (request.speculates) options_.drafting.drafter->forget(request.id);
  request.state = Request::State::kEnded;
  Finish& finish = request.finish;
  finish.reason = reason;
  finish.error = std::move(error);
  finish.completion_tokens = request.num_drawn();
  finish.times.finished = Clock::now();
  ++counters_.num_finished[static_cast<size_t>(reason)];
  news_.push_back({.request = &request});
}

void Scheduler::arm(StepPlan* plan) {
  if (plan->in_loop == InLoop::kNo) arm_draws(plan);
  for (const StepPlan::Row& row : plan->rows) {
    if (row.request->state != Request::State::kRunning) continue;
    const int32_t num_known = row.start + row.num_known();
    insert_pages(*row.request, num_known);
    kv_.release_window(row.request->seq, num_known);
  }
}

void Scheduler::arm_draws(StepPlan* plan) {
  plan->requests.resize(static_cast<size_t>(plan->num_answers));
  const auto mask_words = static_cast<size_t>(ceil_div(runner_.limits().vocab, 32));
  size_t num_masks = 0;
  for (const StepPlan::Row& row : plan->rows) {
    if (row.request->constraint != nullptr) num_masks += static_cast<size_t>(1 + row.num_drafts);
  }
  if (num_masks > 0) plan->masks.resize(num_masks * mask_words);
  std::span<uint32_t> masks = plan->masks;
  for (const StepPlan::Row& row : plan->rows) {
    Request& request = *row.request;
    const auto answers =
        std::span(plan->requests)
            .subspan(static_cast<size_t>(row.first_answer), static_cast<size_t>(row.num_answers));
    std::span<uint32_t> mask;
    if (request.constraint != nullptr) {
      mask = masks.first(mask_words * static_cast<size_t>(1 + row.num_drafts));
      masks = masks.subspan(mask.size());
    }
    if (request.state == Request::State::kEnded) {
      std::fill(answers.begin(), answers.end(), SampleRequest{});
      continue;
    }
    arm_scores(request, row, answers);
    if (row.num_drafts > 0) {
      request.verification.arm(request.sampler, row.num_drawn(), request.constraint.get(), mask,
                               answers);
    } else if (row.draws) {
      answers.back() = request.sampler.next(request.num_drawn(), request.constraint.get(), mask);
    }
  }
}

// Log-probabilities of the prompt are greedy draws whose tokens are forced.
void Scheduler::arm_scores(const Request& request, const StepPlan::Row& row,
                           std::span<SampleRequest> answers) {
  const auto num_scores = answers.size() - row.num_draws();
  for (size_t i = 0; i < num_scores; ++i) {
    answers[i] = {.num_logprobs = request.prompt_logprobs,
                  .bias_ids = &request.tokens[static_cast<size_t>(row.start) + i + 1],
                  .bias_values = &kForced,
                  .num_bias = 1};
  }
}

// Tells the prefix cache of pages that have become full with known tokens.
void Scheduler::insert_pages(Request& request, int32_t num_stored) {
  if (!request.uses_cache) return;
  const int32_t num_whole = num_stored / page_tokens_;
  const int32_t prompt_end = request.num_prompt / page_tokens_;
  const int32_t known_end = request.finish.cache.full_tokens / page_tokens_;
  while (request.num_inserted < num_whole) {
    const int32_t block = request.num_inserted++;
    prefixes_->insert(request.seq, block, {request.chain, request.tokens, request.salt});
    // The next turn will differ from here on; and where prompts have differed before, more will.
    if (block + 1 == prompt_end || block + 1 == known_end) {
      prefixes_->expect_end(std::span(request.chain).first(static_cast<size_t>(block) + 1));
    }
  }
}

void Scheduler::absorb(StepPlan* plan) {
  --num_under_way_;
  if (options_.drafting.is_adaptive) measure(*plan);
  for (const StepPlan::Row& row : plan->rows) absorb_row(*plan, row);
}

bool Scheduler::release_row(const StepPlan::Row& row) {
  Request& request = *row.request;
  --request.num_plans;
  if (row.draws) --request.num_pending;
  if (request.state != Request::State::kEnded) return true;
  if (request.was_told && request.num_plans == 0) requests_.erase(request.id);
  return false;
}

void Scheduler::absorb_row(const StepPlan& plan, const StepPlan::Row& row) {
  if (!release_row(row)) return;
  Request& request = *row.request;
  auto answers =
      std::span(plan.answers)
          .subspan(static_cast<size_t>(row.first_answer), static_cast<size_t>(row.num_answers));
  const size_t num_scores = answers.size() - row.num_draws();
  if (num_scores > 0) {
    // If the prompt is computed again, some of these have been delivered before.
    const auto from = static_cast<size_t>(std::max(0, request.num_scored - row.start));
    const auto scores = answers.first(num_scores);
    if (from < num_scores) {
      news_.push_back({.request = &request, .prompt_tokens = scores.subspan(from)});
    }
    request.num_scored = std::max(request.num_scored, row.start + static_cast<int32_t>(num_scores));
  }
  if (!row.draws) return;
  set_suspect(request, false);
  absorb_draws(request, row, answers.last(row.num_draws()));
}

void Scheduler::absorb_token(Request& request, const SampleAnswer& answer) {
  if (answer.token < 0) {
    end(request, FinishReason::kError,
        {"every token is forbidden", "sampling", "relax what restricts the tokens"});
    return;
  }
  if (request.num_drawn() == 0) request.finish.times.first_token = Clock::now();
  request.push_token(answer.token, page_tokens_);
  ++counters_.generation_tokens;
  News* last = news_.empty() ? nullptr : &news_.back();
  if (last != nullptr && last->request == &request && !last->tokens.empty()) {
    last->tokens = {last->tokens.data(), last->tokens.size() + 1};  // the answer behind its last
  } else {
    news_.push_back({.request = &request, .tokens = {&answer, 1}});
  }
  if (request.constraint != nullptr) {
    if (auto status = request.constraint->accept(answer.token); !status) {
      end(request, FinishReason::kError, std::move(status.error()));
      return;
    }
  }
  if (request.sampler.stops_at(answer.token)) {
    request.finish.stop_id = answer.token;
    end(request, FinishReason::kStop);
  } else if (request.num_drawn() >= request.max_new) {
    end(request, FinishReason::kLength);
  }
}

void Scheduler::fail_step(StepPlan* plan, const Error& error) {
  --num_under_way_;
  ++counters_.num_failed_steps;
  const bool was_alone = plan->rows.size() == 1;
  if (was_alone) {  // it is at fault: clears the others
    for (auto& [id, request] : requests_) request->num_failed_steps = 0;
  }
  for (const StepPlan::Row& row : plan->rows) {
    if (!release_row(row)) continue;
    Request& request = *row.request;
    if (was_alone || ++request.num_failed_steps == kMaxFailedSteps) {
      end(request, FinishReason::kError, error);
    } else {
      set_suspect(request, true);
    }
  }
  // The cache knew pages that the failed launch should have written: others may share them.
  forget_prefixes();
  while (!running_.empty()) preempt(*running_.back());
}

void Scheduler::drop_step(StepPlan* plan) {
  --num_under_way_;
  for (const StepPlan::Row& row : plan->rows) {
    if (release_row(row) && row.request->state == Request::State::kRunning) preempt(*row.request);
  }
}

void Scheduler::deliver() {
  if (news_.empty()) return;
  RequestUpdate update{.at = Clock::now()};
  for (const News& news : news_) {
    Request& request = *news.request;
    update.id = request.id;
    update.tokens = news.tokens;
    update.prompt_tokens = news.prompt_tokens;
    const bool ends = news.tokens.empty() && news.prompt_tokens.empty();
    update.finish = ends ? &request.finish : nullptr;
    if (request.sink) request.sink(update);
    if (!ends) continue;
    request.was_told = true;
    if (request.num_plans == 0) requests_.erase(request.id);
  }
  news_.clear();
}

ServiceStats Scheduler::stats() const {
  ServiceStats stats = counters_;
  stats.running = static_cast<int32_t>(running_.size());
  stats.waiting = static_cast<int32_t>(waiting_.size());
  stats.waiting_deferred = std::min(num_deferred_, stats.waiting);
  stats.queued_tokens = queued_tokens_;
  stats.max_num_seqs = max_running_;
  stats.max_model_len = runner_.limits().max_model_len;
  stats.page_tokens = page_tokens_;
  stats.full_pages = kv_.num_full_pages();
  stats.full_pages_used = kv_.num_full_pages() - kv_.num_free_full_pages();
  stats.full_pages_cached = kv_.num_kept_free_pages(PageKind::kFull);
  stats.window_pages = kv_.num_window_pages();
  stats.window_pages_used = kv_.num_window_pages() - kv_.num_free_window_pages();
  stats.window_pages_cached = kv_.num_kept_free_pages(PageKind::kWindow);
  return stats;
}

void Scheduler::check_integrity() const {
  kv_.check_integrity();
  if (prefixes_ != nullptr) prefixes_->check_integrity();
  CHECK(std::is_sorted(running_.begin(), running_.end(), Before{}));
  size_t num_live = 0;
  int64_t queued = 0;
  int32_t num_suspects = 0, num_running_suspects = 0;
  for (const auto& [id, request] : requests_) {
    CHECK(request->id == id);
    const bool running = request->state == Request::State::kRunning;
    num_live += request->state != Request::State::kEnded;
    num_suspects += static_cast<int32_t>(request->is_suspect);
    num_running_suspects += static_cast<int32_t>(request->is_suspect && running);
    if (!request->was_admitted && request->state == Request::State::kWaiting) {
      queued += request->num_prompt;
    }
    CHECK(running == (request->seq >= 0));
    if (running) CHECK(kv_.num_tokens(request->seq) == request->num_stored);
  }
  CHECK(num_live == running_.size() + waiting_.size());
  CHECK(queued == queued_tokens_);
  CHECK(num_suspects == num_suspects_ && num_running_suspects <= 1);
}

}  // namespace moxie
