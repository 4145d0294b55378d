// The scheduler, situation by situation: who is served when, what is found again, what a fault
// takes down, and what drafts change.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include "engine/testing/scheduler_drive.h"

namespace moxie {
namespace {

TEST(SchedulerTest, ARightDraftSavesStepsAndAWrongOneNone) {
  const auto num_steps = [](StandInDrafter::Manner manner, int32_t max_drafts, bool late) {
    Drive drive({.shape = {.full_pages = 100, .window_pages = 100},
                 .late = late,
                 .max_drafts = max_drafts,
                 .manner = manner});
    const RequestId id = drive.add(request_for(some_tokens(10, 1), 41));
    drive.run_out();
    FinishReason reason{};
    EXPECT_EQ(drive.records.at(id).drawn, naive_tokens(drive.records.at(id), &reason));
    drive.check_all_pages_back();
    return drive.scheduler.stats().num_steps;
  };
  for (const bool late : {false, true}) {
    EXPECT_EQ(num_steps(StandInDrafter::Manner::kAnyOf, 0, late), 41);
    // The prompt's, then four tokens each.
    EXPECT_EQ(num_steps(StandInDrafter::Manner::kRight, 3, late), 1 + 10);
    EXPECT_EQ(num_steps(StandInDrafter::Manner::kWrong, 1, late), 41);
    EXPECT_EQ(num_steps(StandInDrafter::Manner::kShort, 1, late), 41);
  }
}

// Requests that are not drafted have a token in every step, also while others wait for theirs.
TEST(SchedulerTest, WhoIsNotDraftedGoesOnAsBefore) {
  Drive drive({.shape = {.full_pages = 100, .window_pages = 100},
               .late = true,
               .max_drafts = 2,
               .manner = StandInDrafter::Manner::kRight});
  ServiceRequest plain = request_for(some_tokens(10, 1), 30);
  plain.use_drafter = false;
  const RequestId id = drive.add(std::move(plain));
  const RequestId drafted = drive.add(request_for(some_tokens(10, 2), 30));
  for (int turns = 0; turns < 6; ++turns) drive.turn();
  const size_t before = drive.records.at(id).drawn.size();
  const size_t drafted_before = drive.records.at(drafted).drawn.size();
  for (int turns = 0; turns < 6; ++turns) drive.turn();
  EXPECT_EQ(drive.records.at(id).drawn.size(), before + 6);
  EXPECT_EQ(drive.records.at(drafted).drawn.size(), drafted_before + 3 * 3);
  drive.run_out();
}

// A request in the queue waits for room, or for a running prompt whose pages it will share.
TEST(SchedulerTest, WaitingRequestsAreCountedByTheirReason) {
  Drive drive({.shape = {.full_pages = 16, .window_pages = 60}, .max_batch_tokens = 8});
  drive.add(request_for(some_tokens(40, 1), 2));
  for (int i = 0; i < 2; ++i) drive.add(request_for(some_tokens(40, 1), 2));
  drive.turn();
  EXPECT_EQ(drive.scheduler.stats().running, 1);
  EXPECT_EQ(drive.scheduler.stats().waiting, 2);
  EXPECT_EQ(drive.scheduler.stats().waiting_deferred, 2);
  EXPECT_EQ(drive.scheduler.stats().queued_tokens, 80);
  drive.run_out();
  EXPECT_EQ(drive.scheduler.stats().waiting_deferred, 0);
  EXPECT_EQ(drive.scheduler.stats().queued_tokens, 0);
  for (uint64_t i = 2; i < 4; ++i) drive.add(request_for(some_tokens(40, i), 2));
  drive.turn();
  EXPECT_EQ(drive.scheduler.stats().waiting, 1);
  EXPECT_EQ(drive.scheduler.stats().waiting_deferred, 0);
  drive.run_out();
}

// Drafts take what is left: they preempt nobody, and a prompt is not kept waiting.
TEST(SchedulerTest, DraftsMakeWayForTokensAndPrompts) {
  Drive drive({.shape = {.full_pages = 100, .window_pages = 100},
               .max_batch_tokens = 12,
               .max_logit_rows = 6,
               .max_drafts = 8,
               .manner = StandInDrafter::Manner::kRight});
  for (uint64_t i = 0; i < 4; ++i) drive.add(request_for(some_tokens(4, i), 40));
  for (int turns = 0; turns < 8; ++turns) drive.turn();
  const RequestId late = drive.add(request_for(some_tokens(20, 9), 3));
  for (int turns = 0; turns < 8; ++turns) drive.turn();
  EXPECT_GT(drive.records.at(late).drawn.size(), 0u);
  EXPECT_GT(drive.scheduler.stats().drafts.num_accepted, 0);
  EXPECT_LE(drive.loop.most_tokens(), 12);
  drive.run_out();

  // Pages for the tokens, and none for drafts: as without a drafter.
  for (const int32_t max_drafts : {0, 8}) {
    Drive tight({.shape = {.full_pages = 21, .window_pages = 60},
                 .prefix_cache = false,
                 .max_drafts = max_drafts,
                 .manner = StandInDrafter::Manner::kRight});
    tight.add(request_for(some_tokens(41, 1), 4));
    tight.add(request_for(some_tokens(36, 2), 4));
    tight.run_out();
    EXPECT_EQ(tight.scheduler.stats().num_preemptions, 0) << max_drafts;
    tight.check_all_pages_back();
  }
}

TEST(SchedulerTest, EveryMissSaysWhy) {
  Drive drive({.shape = {.page_tokens = 4, .window = 6, .full_pages = 40, .window_pages = 20}});
  const auto ask = [&](std::vector<int32_t> prompt, auto&& change) {
    ServiceRequest request = request_for(std::move(prompt), 1);
    change(request);
    const RequestId id = drive.add(std::move(request));
    drive.run_out();
    return finish_of(drive, id).cache;
  };
  const auto same = [](ServiceRequest&) {};
  const auto prompt = some_tokens(30, 1);
  EXPECT_EQ(ask(prompt, same).miss, CacheMiss::kUnseen);
  const CacheReport again = ask(prompt, same);
  EXPECT_EQ(again.miss, CacheMiss::kNone);
  EXPECT_EQ(again.hit_tokens, 28);
  EXPECT_EQ(ask({1, 2, 3}, same).miss, CacheMiss::kShort);
  EXPECT_EQ(ask(prompt, [](auto& r) { r.use_prefix_cache = false; }).miss, CacheMiss::kOff);
  EXPECT_EQ(ask(prompt, [](auto& r) { r.prompt_logprobs = 0; }).miss, CacheMiss::kLogprobs);
  EXPECT_EQ(ask(prompt, [](auto& r) { r.cache_salt = "s"; }).miss, CacheMiss::kUnseen);
  auto changed = prompt;
  changed[21] = (changed[21] + 1) % kVocab;
  const CacheReport differs = ask(changed, same);
  EXPECT_EQ(differs.miss, CacheMiss::kDiffers);
  EXPECT_EQ(differs.hit_tokens, 20);
  EXPECT_EQ(differs.text(30),
            "20 of 30 prompt tokens; cached prompts go on otherwise from token 20");
  // Others push it out.
  for (uint64_t i = 0; i < 6; ++i) ask(some_tokens(60, 10 + i), same);
  EXPECT_EQ(ask(prompt, same).miss, CacheMiss::kEvicted);
}

TEST(SchedulerTest, AHitEndsOnlyWhereTheWindowsKeysAreStillThere) {
  // Of a long prompt's window pages only those at its end are worth keeping once others need room.
  Drive drive({.shape = {.page_tokens = 4, .window = 6, .full_pages = 60, .window_pages = 12}});
  const auto prompt = some_tokens(60, 1);
  drive.add(request_for(prompt, 1));
  drive.run_out();
  drive.add(request_for(some_tokens(30, 2), 1));
  drive.run_out();
  const RequestId half = drive.add(request_for({prompt.begin(), prompt.begin() + 33}, 1));
  drive.run_out();
  const CacheReport report = finish_of(drive, half).cache;
  EXPECT_EQ(report.miss, CacheMiss::kWindow);
  EXPECT_EQ(report.full_tokens, 32);
  EXPECT_LT(report.hit_tokens, 32);
  auto longer = prompt;
  longer.push_back(3);
  const RequestId whole = drive.add(request_for(longer, 1));
  drive.run_out();
  EXPECT_EQ(finish_of(drive, whole).cache.hit_tokens, 60);
  // Where prompts have parted, more will: that end is kept now.
  const RequestId again = drive.add(request_for({prompt.begin(), prompt.begin() + 33}, 1));
  drive.run_out();
  EXPECT_EQ(finish_of(drive, again).cache.hit_tokens, 32);
}

TEST(SchedulerTest, ASecondTurnWithoutTheReasoningFindsTheFirstPrompt) {
  Drive drive({.shape = {.page_tokens = 4, .window = 6, .full_pages = 60, .window_pages = 20}});
  const auto first = some_tokens(24, 1);
  const RequestId turn = drive.add(request_for(first, 30));
  drive.run_out();
  // The answer comes back without its first 20 tokens.
  auto second = first;
  const auto& drawn = drive.records.at(turn).drawn;
  second.insert(second.end(), drawn.begin() + 20, drawn.end());
  const auto question = some_tokens(6, 9);
  second.insert(second.end(), question.begin(), question.end());
  const RequestId next = drive.add(request_for(second, 4));
  drive.run_out();
  EXPECT_EQ(finish_of(drive, next).cache.hit_tokens, 24);
  EXPECT_EQ(finish_of(drive, next).cache.miss, CacheMiss::kDiffers);
}

TEST(SchedulerTest, AnswersToOnePromptComputeItOnce) {
  for (const bool late : {false, true}) {
    Drive drive({.shape = {.full_pages = 200, .window_pages = 200}, .late = late});
    const auto prompt = some_tokens(41, 3);
    for (int i = 0; i < 5; ++i) drive.add(request_for(prompt, 3));
    drive.run_out();
    EXPECT_EQ(finish_of(drive, 1).cache.hit_tokens, 0);
    for (RequestId id = 2; id <= 5; ++id) EXPECT_EQ(finish_of(drive, id).cache.hit_tokens, 40);
  }
}

TEST(SchedulerTest, PreemptionChangesNoTokenAndTheOldestGoesOn) {
  Drive drive({.shape = {.full_pages = 24, .window_pages = 60}, .prefix_cache = false});
  for (uint64_t i = 0; i < 4; ++i) drive.add(request_for(some_tokens(12, i), 50));
  drive.run_out();
  EXPECT_GT(drive.scheduler.stats().num_preemptions, 0);
  EXPECT_EQ(finish_of(drive, 1).num_preemptions, 0);
  EXPECT_GT(finish_of(drive, 4).num_preemptions, 0);
  for (const auto& [id, record] : drive.records) {
    FinishReason reason{};
    EXPECT_EQ(record.drawn, naive_tokens(record, &reason)) << id;
  }
}

TEST(SchedulerTest, PriorityDecidesWhoIsServedFirstAndWhoIsPreempted) {
  Drive drive({.shape = {.full_pages = 24, .window_pages = 60}, .max_num_seqs = 2});
  ServiceRequest urgent = request_for(some_tokens(12, 7), 50);
  urgent.priority = -1;
  for (uint64_t i = 0; i < 3; ++i) drive.add(request_for(some_tokens(12, i), 50));
  const RequestId id = drive.add(std::move(urgent));
  drive.run_out();
  EXPECT_EQ(finish_of(drive, id).num_preemptions, 0);
  for (RequestId other = 1; other <= 3; ++other) {
    EXPECT_LE(finish_of(drive, id).times.admitted, finish_of(drive, other).times.admitted);
  }
}

TEST(SchedulerTest, ALongPromptLetsShortOnesPassAndDecodingGoesOn) {
  Drive drive({.shape = {.full_pages = 100, .window_pages = 100}, .max_batch_tokens = 9});
  const RequestId talker = drive.add(request_for(some_tokens(4, 1), 30));
  drive.turn();
  const RequestId slow = drive.add(request_for(some_tokens(70, 2), 1));
  const RequestId quick = drive.add(request_for(some_tokens(4, 3), 1));
  const size_t before = drive.records.at(talker).drawn.size();
  for (int turns = 0; turns < 3; ++turns) drive.turn();
  EXPECT_EQ(drive.records.at(talker).drawn.size(), before + 3);  // a token in every step
  EXPECT_EQ(drive.records.at(quick).drawn.size(), 1u);
  EXPECT_EQ(drive.records.at(slow).drawn.size(), 0u);
  EXPECT_EQ(drive.loop.most_tokens(), 9);
  drive.run_out();
}

TEST(SchedulerTest, StepsOfNothingButFreeDrawsAreInTheLoop) {
  Drive drive(
      {.shape = {.full_pages = 100, .window_pages = 100}, .max_loop_streams = 2, .late = true});
  const auto num_loop_steps = [&] { return drive.scheduler.stats().num_loop_steps; };
  const RequestId first = drive.add(request_for(some_tokens(10, 1), 30));
  drive.run_out();
  EXPECT_EQ(num_loop_steps(), 29);  // all but the prompt's
  EXPECT_EQ(drive.runner.max_in_flight(), 2u);
  // A prompt that comes waits for the two steps that are given to the device, and holds up nobody.
  const RequestId talker = drive.add(request_for(some_tokens(10, 2), 40));
  for (int turns = 0; turns < 10; ++turns) drive.turn();
  EXPECT_EQ(num_loop_steps(), 29 + 9);
  const size_t before = drive.records.at(talker).drawn.size();
  const RequestId guest = drive.add(request_for(some_tokens(10, 3), 20));
  for (int turns = 0; turns < 2; ++turns) drive.turn();
  EXPECT_EQ(drive.records.at(guest).drawn.size(), 1u);
  EXPECT_EQ(drive.records.at(talker).drawn.size(), before + 2);
  EXPECT_EQ(num_loop_steps(), 29 + 9 + 1);
  // More streams than the loop takes.
  const RequestId third = drive.add(request_for(some_tokens(10, 4), 10));
  for (int turns = 0; turns < 5; ++turns) drive.turn();
  const int64_t with_three = num_loop_steps();
  for (int turns = 0; turns < 4; ++turns) drive.turn();
  EXPECT_EQ(num_loop_steps(), with_three);
  drive.run_out();
  for (const RequestId id : {first, talker, guest, third}) {
    FinishReason reason{};
    EXPECT_EQ(drive.records.at(id).drawn, naive_tokens(drive.records.at(id), &reason)) << id;
  }
  EXPECT_GT(num_loop_steps(), with_three);
}

// Benchmarks: what follows is known, and goes to the device with the first step.
TEST(SchedulerTest, GivenTokensStayInTheLoop) {
  for (const int32_t loop_steps_ahead : {2, 4}) {
    Drive drive({.shape = {.full_pages = 100, .window_pages = 100},
                 .max_loop_streams = 2,
                 .loop_steps_ahead = loop_steps_ahead});
    for (const size_t num_given : {20, 30}) {
      ServiceRequest request = request_for(some_tokens(10, num_given), 30);
      request.given = some_tokens(static_cast<int32_t>(num_given), 99);
      drive.add(std::move(request));
    }
    drive.run_out();
    for (const auto& [id, record] : drive.records) {
      FinishReason reason{};
      EXPECT_EQ(record.drawn, naive_tokens(record, &reason)) << id;
      EXPECT_TRUE(std::equal(record.given.begin(), record.given.end(), record.drawn.begin()));
    }
    EXPECT_EQ(drive.runner.max_in_flight(), static_cast<size_t>(loop_steps_ahead));
    EXPECT_EQ(drive.scheduler.stats().num_loop_steps, 29);  // all but the two with prompts
    drive.check_all_pages_back();
  }
}

TEST(SchedulerTest, ARequestMayBeginWithPagesThatSomeoneFilled) {
  Drive drive({.shape = {.full_pages = 100, .window_pages = 100}});
  KvCache& kv = drive.runner.kv();
  const auto prompt = some_tokens(23, 3);
  const RequestId filler = drive.add(request_for(prompt, 2));
  drive.turn();
  const SeqId seq = *kv.fork(0);
  ASSERT_EQ(kv.num_tokens(seq), 16);
  drive.cancel(filler);
  drive.run_out();
  auto request = request_for(prompt, 9);
  const int64_t before = drive.scheduler.stats().computed_tokens;
  const RequestId id = drive.add(std::move(request), seq);
  drive.run_out();
  FinishReason reason{};
  EXPECT_EQ(drive.records.at(id).drawn, naive_tokens(drive.records.at(id), &reason));
  EXPECT_EQ(drive.scheduler.stats().computed_tokens - before, 23 - 16 + 8);
  EXPECT_EQ(kv.num_free_full_pages(), kv.num_full_pages());
  drive.check_all_pages_back();
}

TEST(SchedulerTest, DrawsThatWantSomethingOfTheHostAreNotInTheLoop) {
  const auto num_loop_steps = [](auto&& change) {
    Drive drive(
        {.shape = {.full_pages = 100, .window_pages = 100}, .max_loop_streams = 8, .late = true});
    ServiceRequest request = request_for(some_tokens(10, 1), 20);
    change(request);
    drive.add(std::move(request));
    drive.run_out();
    return drive.scheduler.stats().num_loop_steps;
  };
  EXPECT_EQ(num_loop_steps([](ServiceRequest&) {}), 19);
  EXPECT_EQ(num_loop_steps([](auto& r) { r.sampling.num_logprobs = 3; }), 19);
  EXPECT_EQ(num_loop_steps([](auto& r) { r.sampling.logit_bias = {{3, 1.0f}}; }), 19);
  EXPECT_EQ(num_loop_steps([](auto& r) { r.sampling.allowed_ids = {3, 4, 5}; }), 19);
  EXPECT_EQ(num_loop_steps([](auto& r) { r.sampling.min_tokens = 5; }), 19);
  EXPECT_EQ(num_loop_steps([](auto& r) { r.sampling.repetition_penalty = 1.1f; }), 0);
  EXPECT_EQ(num_loop_steps([](auto& r) { r.sampling.presence_penalty = 0.1f; }), 0);
  EXPECT_EQ(num_loop_steps([](auto& r) { r.constraint = std::make_shared<Thirds>(); }), 0);
}

TEST(SchedulerTest, CancellingFreesPagesAtOnce) {
  for (const auto& [late, max_loop_streams] : {std::pair{false, 0}, {true, 0}, {true, 8}}) {
    Drive drive({.shape = {.full_pages = 100, .window_pages = 100},
                 .max_loop_streams = max_loop_streams,
                 .late = late});
    const RequestId id = drive.add(request_for(some_tokens(40, 1), 0));
    for (int turns = 0; turns < 6; ++turns) drive.turn();
    EXPECT_GT(drive.scheduler.stats().full_pages_used, 0);
    drive.cancel(id);
    EXPECT_EQ(drive.scheduler.stats().full_pages_used, 0);
    EXPECT_EQ(drive.scheduler.stats().running, 0);
    drive.run_out();
    EXPECT_EQ(finish_of(drive, id).reason, FinishReason::kAborted);
  }
}

TEST(SchedulerTest, AFailedStepTakesTheRequestThatIsAloneInIt) {
  for (const bool late : {false, true}) {
    Drive drive({.shape = {.full_pages = 100, .window_pages = 100},
                 .max_num_seqs = 1,
                 .late = late,
                 .fault = [](int64_t number, std::span<const int32_t>) -> Status {
                   if (number == 3) return fail("made to fail", "step 3");
                   return {};
                 }});
    const RequestId hit = drive.add(request_for(some_tokens(10, 1), 20));
    const RequestId spared = drive.add(request_for(some_tokens(10, 2), 20));
    drive.run_out();
    EXPECT_EQ(finish_of(drive, hit).reason, FinishReason::kError);
    EXPECT_NE(finish_of(drive, hit).error.message().find("made to fail"), std::string::npos);
    EXPECT_EQ(finish_of(drive, spared).reason, FinishReason::kLength);
    drive.check_all_pages_back();
  }
}

TEST(SchedulerTest, OfAStepThatFailsOnceNobodyTakesHarm) {
  for (const bool late : {false, true}) {
    Drive drive({.shape = {.full_pages = 100, .window_pages = 100},
                 .late = late,
                 .fault = [](int64_t number, std::span<const int32_t>) -> Status {
                   if (number == 9) return fail("made to fail", "step 9");
                   return {};
                 }});
    for (uint64_t i = 0; i < 5; ++i) drive.add(request_for(some_tokens(10, i), 20));
    drive.run_out();
    EXPECT_EQ(drive.num_failed, 1);
    for (const auto& [id, record] : drive.records) {
      FinishReason reason{};
      EXPECT_EQ(record.drawn, naive_tokens(record, &reason));
      EXPECT_EQ(finish_of(drive, id).reason, FinishReason::kLength);
    }
    drive.check_all_pages_back();
  }
}

TEST(SchedulerTest, AFaultThatShowsInCompanyOnlyDoesNotGoOnForEver) {
  // Three decode together: no prompt, and nothing computed again, has three tokens in a step.
  Drive drive({.shape = {.full_pages = 100, .window_pages = 100},
               .max_batch_tokens = 40,
               .fault = [](int64_t, std::span<const int32_t> ids) -> Status {
                 return ids.size() == 3 ? Status(fail("company")) : Status{};
               }});
  for (uint64_t i = 0; i < 3; ++i) drive.add(request_for(some_tokens(10, i), 60));
  drive.run_out();
  EXPECT_EQ(drive.num_failed, 3);
  for (const auto& [id, record] : drive.records) {
    EXPECT_EQ(finish_of(drive, id).reason, FinishReason::kError);
    EXPECT_GE(record.drawn.size(), 3u);  // one after each failed step
  }
  drive.check_all_pages_back();
}

// The second request is let in on pages that the failing step was to write, and waits for its turn.
TEST(SchedulerTest, PagesThatAFailedStepShouldHaveWrittenAreNotUsed) {
  Drive drive({.shape = {.page_tokens = 1, .window = 2, .full_pages = 100, .window_pages = 100},
               .max_batch_tokens = 1,
               .late = true,
               .fault = [](int64_t number, std::span<const int32_t>) -> Status {
                 if (number == 10) return fail("made to fail");
                 return {};
               }});
  const auto prompt = some_tokens(20, 1);
  drive.add(request_for(prompt, 1));
  std::vector<int32_t> branch(prompt.begin(), prompt.begin() + 10);
  branch.insert(branch.end(), {prompt[10] == 1 ? 2 : 1, 3});
  const RequestId id = drive.add(request_for(branch, 5));
  drive.run_out();
  EXPECT_EQ(finish_of(drive, 1).reason, FinishReason::kError);
  EXPECT_EQ(finish_of(drive, id).cache.hit_tokens, 10);
  EXPECT_EQ(finish_of(drive, id).num_preemptions, 1);
  FinishReason reason{};
  EXPECT_EQ(drive.records.at(id).drawn, naive_tokens(drive.records.at(id), &reason));
}

TEST(SchedulerTest, AMaskWithoutATokenEndsItsRequestAlone) {
  struct Nothing : TokenConstraint {
    bool fill_mask(std::span<uint32_t> mask) override {
      std::fill(mask.begin(), mask.end(), 0u);
      return true;
    }
    Status accept(int32_t) override { return {}; }
    std::unique_ptr<TokenConstraint> fork() const override {
      return std::make_unique<Nothing>(*this);
    }
  };
  for (const bool late : {false, true}) {
    Drive drive({.late = late});
    ServiceRequest bound = request_for(some_tokens(10, 1), 5);
    bound.constraint = std::make_shared<Nothing>();
    const RequestId id = drive.add(std::move(bound));
    const RequestId other = drive.add(request_for(some_tokens(10, 2), 5));
    drive.run_out();
    EXPECT_EQ(finish_of(drive, id).reason, FinishReason::kError);
    EXPECT_EQ(finish_of(drive, other).reason, FinishReason::kLength);
  }
}

}  // namespace
}  // namespace moxie
