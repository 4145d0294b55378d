// The scheduler, its pools and the prefix cache against a naive model: whatever arrives, is
// cancelled, preempted or fails beside a request, its tokens are those it has alone.
#include "engine/scheduler.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <map>

#include "engine/step_thread.h"
#include "engine/testing/fake_runner.h"

namespace moxie {
namespace {

constexpr int32_t kVocab = 50;
constexpr int32_t kStop = 7;
constexpr int32_t kContext = 80;

// Allows every third token, another third after each.
class Thirds : public TokenConstraint {
 public:
  bool fill_mask(std::span<uint32_t> mask) override {
    std::fill(mask.begin(), mask.end(), 0u);
    for (int32_t id = 0; id < kVocab; ++id) {
      if (allows(num_accepted_, id)) mask[static_cast<size_t>(id / 32)] |= 1u << (id % 32);
    }
    return num_accepted_ % 5 != 4;  // now and then anything goes
  }
  Status accept(int32_t token) override {
    if (num_accepted_ % 5 != 4) CHECK(allows(num_accepted_, token));
    ++num_accepted_;
    return {};
  }
  static bool allows(int32_t num_accepted, int32_t id) { return id % 3 == num_accepted % 3; }

 private:
  int32_t num_accepted_ = 0;
};

// What came to a request's sink.
struct Record {
  std::vector<int32_t> prompt;
  SamplingOptions sampling;
  bool is_bound = false;
  bool was_cancelled = false;
  std::vector<int32_t> drawn;
  std::vector<SampleAnswer> scores;
  std::vector<Finish> finishes;
};

// The tokens a request draws alone, by definition.
std::vector<int32_t> naive_tokens(const Record& record, FinishReason* reason) {
  std::vector<int32_t> tokens = record.prompt;
  const auto num_prompt = static_cast<int32_t>(tokens.size());
  const int32_t room = kContext - num_prompt;
  const int32_t most =
      record.sampling.max_tokens > 0 ? std::min(room, record.sampling.max_tokens) : room;
  *reason = FinishReason::kLength;
  for (int32_t n = 0; n < most; ++n) {
    int32_t token =
        FakeRunner::next_token(tokens, *record.sampling.seed, static_cast<uint64_t>(n), kVocab);
    while (record.is_bound && n % 5 != 4 && !Thirds::allows(n, token)) {
      token = (token + 1) % kVocab;
    }
    tokens.push_back(token);
    if (token != kStop || record.sampling.ignore_eos) continue;
    *reason = FinishReason::kStop;
    break;
  }
  return {tokens.begin() + num_prompt, tokens.end()};
}

// The scheduler with its steps run in place, at once or one step late.
class Drive {
 public:
  struct Setup {
    FakeRunner::Shape shape;
    int32_t max_num_seqs = 8, max_batch_tokens = 16, max_logit_rows = 8;
    int32_t max_loop_streams = 0;
    bool prefix_cache = true, late = false;
    StepThread::Fault fault;
  };
  explicit Drive(const Setup& setup)
      : late_(setup.late),
        runner(setup.shape, {.max_num_seqs = setup.max_num_seqs,
                             .max_batch_tokens = setup.max_batch_tokens,
                             .max_logit_rows = setup.max_logit_rows,
                             .max_loop_streams = setup.max_loop_streams,
                             .max_model_len = kContext,
                             .vocab = kVocab,
                             .stop_ids = {kStop}}),
        scheduler(runner, {.max_num_seqs = setup.max_num_seqs,
                           .max_batch_tokens = setup.max_batch_tokens,
                           .max_loop_streams = setup.max_loop_streams,
                           .prefix_cache = setup.prefix_cache}),
        steps_(runner, false, setup.fault) {}

  RequestId add(ServiceRequest request) {
    const RequestId id = ++last_id_;
    Record& record = records[id];
    record.prompt = request.prompt;
    record.sampling = request.sampling;
    record.is_bound = request.constraint != nullptr;
    request.sink = [&record, id](const RequestUpdate& update) {
      CHECK(update.id == id && record.finishes.empty(), "news after the end");
      for (const SampleAnswer& answer : update.tokens) record.drawn.push_back(answer.token);
      for (const SampleAnswer& answer : update.prompt_tokens) {
        CHECK(record.drawn.empty(), "scores of the prompt behind its answer");
        record.scores.push_back(answer);
      }
      if (update.finish != nullptr) record.finishes.push_back(*update.finish);
    };
    Sampler sampler(request.sampling, request.prompt, runner.limits().stop_ids, kVocab);
    const auto room = kContext - static_cast<int32_t>(request.prompt.size());
    auto made = std::make_unique<Request>(std::move(request), std::move(sampler), room,
                                          runner.kv().shape().page_tokens);
    made->id = id;
    scheduler.add(std::move(made));
    return id;
  }
  void cancel(RequestId id) {
    records.at(id).was_cancelled = true;
    scheduler.cancel(id);
  }

  // One turn of the service's loop.
  void turn() {
    StepPlan* next = &plans_[num_turns_++ % 3];
    if (!scheduler.plan(next)) next = nullptr;
    if (next != nullptr) {
      max_tokens_seen = std::max(max_tokens_seen, next->num_tokens);
      steps_.begin(next, under_way_);
    }
    if (under_way_ != nullptr) finish(under_way_, &next);
    if (next != nullptr) {
      scheduler.arm(next);
      steps_.allow_draws(next);
      if (!late_) {
        under_way_ = std::exchange(next, nullptr);
        finish(under_way_, &next);
      }
    }
    scheduler.deliver();
    scheduler.check_integrity();
    under_way_ = next;
  }
  bool is_idle() const { return scheduler.num_requests() == 0 && under_way_ == nullptr; }
  void run_out() {
    for (int turns = 0; !is_idle(); ++turns) {
      CHECK(turns < 100000, "does not come to an end");
      turn();
    }
  }
  void check_all_pages_back() {
    CHECK(runner.kv().num_free_full_pages() == runner.kv().num_full_pages());
    CHECK(runner.kv().num_free_window_pages() == runner.kv().num_window_pages());
  }

 private:
  void finish(StepPlan* step, StepPlan** behind) {
    steps_.wait(step);
    if (step->status) {
      scheduler.absorb(step);
      return;
    }
    ++num_failed;
    scheduler.fail_step(step, step->status.error());
    if (*behind == nullptr) return;
    steps_.wait(*behind);
    scheduler.drop_step(*behind);
    *behind = nullptr;
  }

  const bool late_;

 public:
  FakeRunner runner;
  Scheduler scheduler;
  std::map<RequestId, Record> records;
  int32_t max_tokens_seen = 0;
  int num_failed = 0;

 private:
  StepThread steps_;
  std::array<StepPlan, 3> plans_;
  StepPlan* under_way_ = nullptr;
  size_t num_turns_ = 0;
  RequestId last_id_ = 0;
};

std::vector<int32_t> some_tokens(int32_t count, uint64_t seed) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) {
    tokens.push_back(FakeRunner::next_token(tokens, seed, 0, kVocab));
  }
  return tokens;
}

// Prompts of a few families, so that they share beginnings of all lengths.
ServiceRequest random_request() {
  const auto family = static_cast<uint64_t>(*rc::gen::inRange(0, 3));
  ServiceRequest request{.prompt = some_tokens(*rc::gen::inRange(1, 50), family)};
  const auto own = some_tokens(*rc::gen::inRange(0, 12), *rc::gen::arbitrary<uint64_t>());
  request.prompt.insert(request.prompt.end(), own.begin(), own.end());
  request.sampling.seed = *rc::gen::inRange<uint64_t>(0, 3);
  request.sampling.max_tokens = *rc::gen::element(0, 1, 2, 10, 40);
  request.priority = *rc::gen::element(0, 0, 0, 1, -1);
  request.cache_salt = *rc::gen::element<std::string>("", "", "other");
  request.use_prefix_cache = *rc::gen::inRange(0, 8) != 0;
  if (*rc::gen::inRange(0, 5) == 0) request.prompt_logprobs = 0;
  if (*rc::gen::inRange(0, 4) == 0) {
    request.constraint = std::make_shared<Thirds>();
  } else {
    request.sampling.ignore_eos = *rc::gen::arbitrary<bool>();
  }
  return request;
}

void check_record(const Record& record) {
  RC_ASSERT(record.finishes.size() == 1u);
  const Finish& finish = record.finishes.front();
  FinishReason reason{};
  const auto expected = naive_tokens(record, &reason);
  RC_ASSERT(finish.prompt_tokens == static_cast<int32_t>(record.prompt.size()));
  RC_ASSERT(finish.completion_tokens == static_cast<int32_t>(record.drawn.size()));
  RC_ASSERT(finish.cache.hit_tokens < finish.prompt_tokens);
  if (finish.reason == FinishReason::kAborted || finish.reason == FinishReason::kError) {
    RC_ASSERT(finish.reason == FinishReason::kError || record.was_cancelled);
    RC_ASSERT(record.drawn.size() <= expected.size());
    RC_ASSERT(std::equal(record.drawn.begin(), record.drawn.end(), expected.begin()));
    return;
  }
  RC_ASSERT(record.drawn == expected);
  RC_ASSERT(finish.reason == reason);
  RC_ASSERT(finish.stop_id == (reason == FinishReason::kStop ? kStop : -1));
  for (size_t i = 0; i < record.scores.size(); ++i) {
    RC_ASSERT(record.scores[i].token == record.prompt[i + 1]);
    const auto before = std::span(record.prompt).first(i + 1);
    RC_ASSERT(record.scores[i].logprob == FakeRunner::logprob_of(FakeRunner::hash_of(before)));
  }
}

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
               }});
  const int num_events = *rc::gen::inRange(1, 60);
  for (int i = 0; i < num_events; ++i) {
    const int kind = *rc::gen::inRange(0, 8);
    if (kind < 3) {
      drive.add(random_request());
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
  const bool poison_cancelled =
      std::any_of(drive.records.begin(), drive.records.end(), [&](const auto& entry) {
        return entry.second.was_cancelled && holds_token(entry.second, poison);
      });
  for (const auto& [id, record] : drive.records) {
    check_record(record);
    if (fault_rate == 0) check_poison(record, poison, poison_cancelled);
    num_drawn += static_cast<int64_t>(record.drawn.size());
  }
  for (const int64_t count : stats.num_finished) num_ended += count;
  RC_ASSERT(stats.generation_tokens == num_drawn);
  RC_ASSERT(num_ended == static_cast<int64_t>(drive.records.size()));
  RC_ASSERT(stats.num_finished[static_cast<size_t>(FinishReason::kError)] == 0 ||
            drive.num_failed > 0);
  RC_CLASSIFY(stats.num_preemptions > 0, "preempted");
  RC_CLASSIFY(stats.prefix_hit_tokens > 0, "hits");
  RC_CLASSIFY(drive.num_failed > 0, "failed steps");
  RC_CLASSIFY(drive.runner.max_in_flight() > 1, "went on in the decode loop");
}

TEST(SchedulerTest, WhateverHappensBesideItARequestDrawsWhatItDrawsAlone) {
  EXPECT_TRUE(rc::check([] {
    for (int i = 0; i < 12; ++i) life_of_a_scheduler();
  }));
}

ServiceRequest request_for(std::vector<int32_t> prompt, int32_t max_tokens) {
  ServiceRequest request{.prompt = std::move(prompt)};
  request.sampling.seed = 1;
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  return request;
}

const Finish& finish_of(const Drive& drive, RequestId id) {
  CHECK(drive.records.at(id).finishes.size() == 1);
  return drive.records.at(id).finishes.front();
}

// The cache by definition: all tokens that any request has had run, page by page.
int32_t naive_hit(const std::vector<std::vector<int32_t>>& earlier,
                  const std::vector<int32_t>& prompt, int32_t page_tokens) {
  int32_t best = 0;
  for (const auto& tokens : earlier) {
    const auto differs =
        std::mismatch(tokens.begin(), tokens.end(), prompt.begin(), prompt.end()).first;
    const auto same = static_cast<int32_t>(differs - tokens.begin());
    const int32_t most = std::min(same, static_cast<int32_t>(prompt.size()) - 1);
    best = std::max(best, most / page_tokens * page_tokens);
  }
  return best;
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
  EXPECT_EQ(drive.max_tokens_seen, 9);
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
  // The first draw of five is the prompt's.
  EXPECT_EQ(num_loop_steps([](auto& r) { r.sampling.min_tokens = 5; }), 15);
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

TEST(SamplerTest, StopTokensAreForbiddenBeforeTheLeastNumberOfTokens) {
  SamplingOptions options{.logit_bias = {{3, 1.5f}}, .min_tokens = 2};
  Sampler sampler(options, {}, std::vector<int32_t>{kStop}, kVocab);
  const SampleRequest first = sampler.next(0, nullptr, {});
  ASSERT_EQ(first.num_bias, 2);
  EXPECT_EQ(first.bias_ids[1], kStop);
  EXPECT_EQ(first.bias_values[1], -std::numeric_limits<float>::infinity());
  const SampleRequest third = sampler.next(2, nullptr, {});
  ASSERT_EQ(third.num_bias, 1);
  EXPECT_EQ(third.bias_ids[0], 3);
  EXPECT_EQ(third.step, 2u);
}

TEST(SamplerTest, PenaltiesCountPromptAndOutput) {
  SamplingOptions options{.repetition_penalty = 1.2f};
  Sampler sampler(options, std::vector<int32_t>{4, 5, 4}, {}, kVocab);
  sampler.take(5);
  sampler.take(6);
  sampler.take(6);
  const SampleRequest request = sampler.next(3, nullptr, {});
  ASSERT_EQ(request.num_history, 3);
  const std::map<int32_t, int32_t> counts = {{request.history_ids[0], request.history_counts[0]},
                                             {request.history_ids[1], request.history_counts[1]},
                                             {request.history_ids[2], request.history_counts[2]}};
  EXPECT_EQ(counts, (std::map<int32_t, int32_t>{{4, 0}, {5, 1}, {6, 2}}));
}

TEST(SamplerTest, AllowedIdsAndAConstraintBothBind) {
  SamplingOptions options{.allowed_ids = {3, 4, 40}};
  Sampler sampler(options, {}, {}, kVocab);
  Thirds thirds;  // ids divisible by three
  std::vector<uint32_t> mask(2);
  const SampleRequest request = sampler.next(0, &thirds, mask);
  EXPECT_EQ(request.allowed_mask[0], 1u << 3);
  EXPECT_EQ(request.allowed_mask[1], 0u);
  EXPECT_EQ(sampler.next(0, nullptr, {}).allowed_mask[1], 1u << 8);
}

}  // namespace
}  // namespace moxie
