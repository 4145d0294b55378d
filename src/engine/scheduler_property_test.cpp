// The scheduler, its pools and the prefix cache against a naive model: whatever arrives, is
// cancelled, preempted, drafted or fails beside a request, its tokens are those it has alone.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "engine/testing/scheduler_drive.h"

namespace moxie {
namespace {

bool holds_token(const Record& record, int32_t token) {
  return std::count(record.prompt.begin(), record.prompt.end(), token) > 0 ||
         std::count(record.drawn.begin(), record.drawn.end(), token) > 0;
}

// Where nothing else fails, a request fails of the poison that it holds, and of nothing else: but
// of its company's, where that was `cancelled` again and again before it was found.
void check_poison(const Record& record, int32_t poison, bool cancelled) {
  const bool has_failed = record.finishes.front().reason == FinishReason::kError;
  const auto holds = [&](std::span<const int32_t> tokens) {
    return std::find(tokens.begin(), tokens.end(), poison) != tokens.end();
  };
  // A token drawn last is never run.
  const bool was_run =
      holds(record.prompt) ||
      (!record.drawn.empty() && holds(std::span(record.drawn).first(record.drawn.size() - 1)));
  RC_ASSERT(has_failed || !was_run || record.was_cancelled);
  RC_ASSERT(!has_failed || cancelled || holds_token(record, poison));
}

void check_drafts(const DraftCounts& counts) {
  int64_t before = counts.num_drafts, total = 0;
  for (size_t i = 0; i < counts.accepted_at.size(); ++i) {  // accepted from the first one on
    RC_ASSERT(counts.accepted_at[i] <= before);
    RC_ASSERT(counts.accepted_at[i] == 0 || std::cmp_less(i, counts.num_positions));
    total += before = counts.accepted_at[i];
  }
  RC_ASSERT(total == counts.num_accepted);
  RC_ASSERT(counts.num_accepted <= counts.num_tokens);
  RC_ASSERT(counts.num_drafts <= counts.num_tokens);
}

void add_drafts(const DraftCounts& counts, DraftCounts* total) {
  check_drafts(counts);
  total->num_drafts += counts.num_drafts;
  total->num_tokens += counts.num_tokens;
  for (size_t i = 0; i < counts.accepted_at.size(); ++i)
    total->accepted_at[i] += counts.accepted_at[i];
}

void life_of_a_scheduler() {
  const int32_t page_tokens = *rc::gen::element(1, 3, 4, 16);
  const int32_t window = *rc::gen::element(1, 2, 6, 20);
  const int32_t chunk = *rc::gen::element(4, 16, 64);
  const KvShape shape{
      .num_full_layers = 1, .num_window_layers = 1, .window = window, .page_tokens = page_tokens};
  const int fault_rate = *rc::gen::element(0, 0, 12);
  const int32_t poison = *rc::gen::element(-1, -1, 11);  // a token that fails any step
  Drive drive({.shape = {.page_tokens = page_tokens,
                         .window = window,
                         .full_pages = static_cast<int32_t>(shape.full_pages(kContext)) +
                                       *rc::gen::inRange(0, 60),
                         .window_pages = static_cast<int32_t>(shape.window_pages(kContext, 1)) +
                                         *rc::gen::inRange(0, 60)},
               .max_num_seqs = *rc::gen::inRange(1, 8),
               .max_batch_tokens = chunk + 8,
               .max_logit_rows = 8 + *rc::gen::inRange(0, 8),
               .max_loop_streams = *rc::gen::element(0, 1, 3, 8),
               .prefix_cache = *rc::gen::inRange(0, 6) != 0,
               .late = *rc::gen::arbitrary<bool>(),
               .fault = [=](int64_t number, std::span<const int32_t> ids) -> Status {
                 if (fault_rate > 0 && number % fault_rate == 0) return fail("made to fail");
                 if (std::find(ids.begin(), ids.end(), poison) != ids.end()) {
                   return fail("poisoned");
                 }
                 return {};
               },
               .loop_steps_ahead = *rc::gen::element(0, 0, 4),
               .max_drafts = *rc::gen::element(0, 1, 3, 8),
               .is_adaptive = *rc::gen::arbitrary<bool>(),
               .seed = *rc::gen::arbitrary<uint64_t>()});
  drive.drafter.avoid(poison);
  drive.drafter.let_miss_launches(*rc::gen::arbitrary<bool>());
  const int num_events = *rc::gen::inRange(1, 60);
  for (int i = 0; i < num_events; ++i) {
    const int kind = *rc::gen::inRange(0, 8);
    if (kind < 3) {
      const RequestId id = drive.add(random_request());
      if (*rc::gen::inRange(0, 4) == 0) drive.stop_within(id, *rc::gen::inRange<size_t>(0, 40));
    } else if (kind == 3 && !drive.records.empty()) {
      drive.cancel(1 + *rc::gen::inRange<RequestId>(0, drive.records.size()));
    } else {
      drive.turn();
    }
  }
  drive.run_out();
  drive.check_all_pages_back();
  ServiceStats stats = drive.scheduler.stats();
  int64_t num_drawn = 0, num_ended = 0;
  DraftCounts drafts;
  const bool poison_cancelled =
      std::any_of(drive.records.begin(), drive.records.end(), [&](const auto& entry) {
        return entry.second.was_cancelled && holds_token(entry.second, poison);
      });
  for (const auto& [id, record] : drive.records) {
    check_record(record);
    if (fault_rate == 0) check_poison(record, poison, poison_cancelled);
    num_drawn += static_cast<int64_t>(record.drawn.size());
    add_drafts(record.finishes.front().drafts, &drafts);
  }
  for (const int64_t count : stats.num_finished) num_ended += count;
  RC_ASSERT(stats.generation_tokens == num_drawn);
  check_drafts(stats.drafts);
  RC_ASSERT(stats.drafts.num_drafts == drafts.num_drafts);
  RC_ASSERT(stats.drafts.num_tokens == drafts.num_tokens);
  RC_ASSERT(stats.drafts.accepted_at == drafts.accepted_at);
  RC_ASSERT(num_ended == static_cast<int64_t>(drive.records.size()));
  RC_ASSERT(stats.num_finished[static_cast<size_t>(FinishReason::kError)] == 0 ||
            drive.num_failed > 0);
  RC_CLASSIFY(stats.num_preemptions > 0, "preempted");
  RC_CLASSIFY(stats.prefix_hit_tokens > 0, "hits");
  RC_CLASSIFY(drive.num_failed > 0, "failed steps");
  RC_CLASSIFY(drive.replay.num_removed > 0, "blocks lost their full pages");
  RC_CLASSIFY(drive.replay.num_cleared > 0, "the prefix cache was emptied");
  RC_CLASSIFY(stats.drafts.num_accepted > 0, "drafts accepted");
  RC_CLASSIFY(stats.drafts.num_accepted < stats.drafts.num_tokens, "drafts rejected");
  RC_CLASSIFY(drive.runner.max_in_flight() > 1, "went on in the decode loop");
}

TEST(SchedulerTest, WhateverHappensBesideItARequestDrawsWhatItDrawsAlone) {
  EXPECT_TRUE(rc::check([] {
    for (int i = 0; i < 12; ++i) life_of_a_scheduler();
  }));
}

TEST(SchedulerTest, HitsAreExactlyThoseOfTheNaiveModelWhileNothingIsEvicted) {
  EXPECT_TRUE(rc::check([] {
    Drive drive({.shape = {.page_tokens = *rc::gen::element(1, 3, 4, 16),
                           .full_pages = 1000,
                           .window_pages = 1000},
                 .late = *rc::gen::arbitrary<bool>()});
    const int32_t page_tokens = drive.runner.kv().shape().page_tokens;
    std::vector<std::vector<int32_t>> run;
    for (int i = 0; i < 10; ++i) {
      ServiceRequest request = random_request();
      request.cache_salt.clear();
      request.use_prefix_cache = true;
      request.prompt_logprobs = -1;
      const auto prompt = request.prompt;
      const RequestId id = drive.add(std::move(request));
      drive.run_out();
      const Finish& finish = finish_of(drive, id);
      RC_ASSERT(finish.cache.hit_tokens == naive_hit(run, prompt, page_tokens));
      auto tokens = prompt;
      const auto& drawn = drive.records.at(id).drawn;
      tokens.insert(tokens.end(), drawn.begin(), drawn.end() - 1);  // the last is never run...
      run.push_back(std::move(tokens));
    }
  }));
}

// However answers are drafted, the cache knows the tokens that stand and no others: another turn
// finds all of the last one that was run, and goes on as it would alone.
TEST(SchedulerTest, NoRejectedDraftEntersTheCache) {
  EXPECT_TRUE(rc::check([] {
    Drive drive({.shape = {.page_tokens = *rc::gen::element(1, 3, 4, 16),
                           .full_pages = 1000,
                           .window_pages = 1000},
                 .max_batch_tokens = 32,
                 .max_logit_rows = 16,
                 .late = *rc::gen::arbitrary<bool>(),
                 .max_drafts = *rc::gen::inRange(1, 9),
                 .manner = *rc::gen::element(
                     StandInDrafter::Manner::kRight, StandInDrafter::Manner::kWrong,
                     StandInDrafter::Manner::kTooLong, StandInDrafter::Manner::kAnyOf),
                 .seed = *rc::gen::arbitrary<uint64_t>()});
    const int32_t page_tokens = drive.runner.kv().shape().page_tokens;
    std::vector<std::vector<int32_t>> run;
    std::vector<int32_t> prompt = some_tokens(*rc::gen::inRange(1, 12), 1);
    for (int turn = 0; turn < 5; ++turn) {
      ServiceRequest request = request_for(prompt, *rc::gen::inRange(1, 14));
      request.sampling.ignore_eos = *rc::gen::arbitrary<bool>();
      const RequestId id = drive.add(std::move(request));
      drive.run_out();
      const Record& record = drive.records.at(id);
      check_record(record);
      RC_ASSERT(finish_of(drive, id).cache.hit_tokens == naive_hit(run, prompt, page_tokens));
      prompt.insert(prompt.end(), record.drawn.begin(), record.drawn.end());
      run.emplace_back(prompt.begin(), prompt.end() - 1);
    }
    drive.check_all_pages_back();
  }));
}

}  // namespace
}  // namespace moxie
