// The service with its threads, on small models: the same tokens as an answer alone, whatever the
// loop, and every request with one end.
#include "engine/service.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <future>
#include <mutex>
#include <random>
#include <thread>

#include "core/testing/paths.h"
#include "engine/step_runner.h"
#include "engine/testing/fake_runner.h"
#include "engine/testing/stand_in_drafter.h"
#include "engine/testing/tokens.h"

namespace moxie {
namespace {

const std::string kNano = test_data() + "/goldens/nano-a";

// Collects what comes for one request; waits for its end.
class Answer {
 public:
  RequestSink sink() {
    return [this](const RequestUpdate& update) {
      const std::lock_guard lock(mutex_);
      for (const SampleAnswer& answer : update.tokens) answers_.push_back(answer);
      num_scored_ += update.prompt_tokens.size();
      if (update.finish != nullptr) ends_.push_back(*update.finish);
      changed_.notify_all();
    };
  }
  Finish wait() {
    std::unique_lock lock(mutex_);
    CHECK(changed_.wait_for(lock, std::chrono::seconds(600), [&] { return !ends_.empty(); }));
    return ends_.front();
  }
  void wait_for_tokens(size_t count) {
    std::unique_lock lock(mutex_);
    CHECK(changed_.wait_for(lock, std::chrono::seconds(600),
                            [&] { return answers_.size() >= count || !ends_.empty(); }));
  }
  std::vector<int32_t> ids() const {
    const std::lock_guard lock(mutex_);
    std::vector<int32_t> ids;
    for (const SampleAnswer& answer : answers_) ids.push_back(answer.token);
    return ids;
  }
  std::vector<SampleAnswer> answers() const {
    const std::lock_guard lock(mutex_);
    return answers_;
  }
  size_t num_ends() const {
    const std::lock_guard lock(mutex_);
    return ends_.size();
  }
  size_t num_scored() const {
    const std::lock_guard lock(mutex_);
    return num_scored_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<SampleAnswer> answers_;
  std::vector<Finish> ends_;
  size_t num_scored_ = 0;
};

std::unique_ptr<Engine> open(EngineOptions options, int32_t max_num_seqs) {
  options.model = options.model == "embedded" ? kNano : source_dir() + "/" + options.model;
  options.show_progress = false;
  options.device = "cpu";
  fit_service(max_num_seqs, &options);
  auto engine = Engine::load(options);
  CHECK(engine.has_value(), engine ? "" : engine.error().message());
  return std::move(*engine);
}

void expect_all_pages_back(Engine& engine) {
  engine.kv().check_integrity();
  EXPECT_EQ(engine.kv().num_free_full_pages(), engine.kv().num_full_pages());
  EXPECT_EQ(engine.kv().num_free_window_pages(), engine.kv().num_window_pages());
}

// One of each kind of sampling.
SamplingOptions sampling_of(size_t i) {
  SamplingOptions sampling{.seed = i, .max_tokens = 12, .ignore_eos = true};
  switch (i % 6) {
    case 0:
      sampling.temperature = 0;
      break;
    case 1:
      sampling.top_p = 0.9f;
      sampling.num_logprobs = 2;
      break;
    case 2:
      sampling.frequency_penalty = 0.7f;
      sampling.presence_penalty = 0.3f;
      break;
    case 3:
      sampling.repetition_penalty = 1.3f;
      sampling.temperature = 0;
      break;
    case 4:
      sampling.top_k = 5;
      sampling.logit_bias = {{11, 2.0f}, {12, -100.0f}};
      break;
    default:
      sampling.min_p = 0.1f;
      break;
  }
  return sampling;
}

TEST(ServiceTest, BothLoopsDrawWhatEveryRequestDrawsAlone) {
  // The reference rows compute a token alike in any company.
  auto engine =
      open({.kernels = {"all=reference"}, .max_model_len = 96, .max_batch_tokens = 24}, 4);
  std::vector<std::vector<int32_t>> prompts, expected;
  for (size_t i = 0; i < 8; ++i) {
    prompts.push_back(tokens(static_cast<int32_t>(12 + 5 * i), static_cast<uint32_t>(i / 3)));
    auto generated = engine->generate(prompts[i], sampling_of(i));
    ASSERT_TRUE(generated.has_value());
    expected.push_back(generated->ids);
  }
  for (const bool async : {false, true}) {
    auto service = Service::create(*engine, {.async_scheduling = async});
    std::vector<Answer> answers(prompts.size());
    for (size_t i = 0; i < prompts.size(); ++i) {
      const auto id = service->submit(
          {.prompt = prompts[i], .sampling = sampling_of(i), .sink = answers[i].sink()});
      ASSERT_TRUE(id.has_value());
    }
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(answers[i].wait().reason, FinishReason::kLength);
      EXPECT_EQ(answers[i].ids(), expected[i]) << "request " << i << " async " << async;
    }
    EXPECT_GT(service->stats().prefix_hit_tokens, 0);
    service.reset();
    expect_all_pages_back(*engine);
  }
}

// More streams than the loop takes, then fewer; answers end, are cancelled and give way to others.
TEST(ServiceTest, InTheDecodeLoopEveryRequestDrawsWhatItDrawsAlone) {
  auto engine =
      open({.kernels = {"all=reference"}, .max_model_len = 96, .max_batch_tokens = 24}, 3);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::vector<SampleAnswer>> expected(7);
  const auto sampling_of_nth = [](size_t i) {
    SamplingOptions sampling = sampling_of(i);  // penalties now and then
    sampling.max_tokens = static_cast<int32_t>(10 + 8 * i);
    if (i == 6) sampling.min_tokens = 6;
    return sampling;
  };
  for (size_t i = 0; i < expected.size(); ++i) {
    prompts.push_back(tokens(static_cast<int32_t>(9 + 3 * i), static_cast<uint32_t>(i)));
    ASSERT_TRUE(engine->generate(prompts[i], sampling_of_nth(i), [&](const SampleAnswer& answer) {
      expected[i].push_back(answer);
      return true;
    }));
  }
  auto service = Service::create(make_step_runner(*engine, true), {});
  std::vector<Answer> answers(expected.size());
  Answer gone;
  const auto id = service->submit(
      {.prompt = tokens(20, 99), .sampling = {.seed = 5, .ignore_eos = true}, .sink = gone.sink()});
  ASSERT_TRUE(id.has_value());
  gone.wait_for_tokens(10);
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_TRUE(service->submit(
        {.prompt = prompts[i], .sampling = sampling_of_nth(i), .sink = answers[i].sink()}));
  }
  answers[0].wait_for_tokens(3);
  service->cancel(*id);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(answers[i].wait().reason, FinishReason::kLength);
    const auto drawn = answers[i].answers();
    ASSERT_EQ(drawn.size(), expected[i].size());
    for (size_t n = 0; n < drawn.size(); ++n) {
      EXPECT_EQ(drawn[n].token, expected[i][n].token) << "request " << i << " token " << n;
      EXPECT_EQ(drawn[n].num_top, expected[i][n].num_top);
      if (sampling_of_nth(i).num_logprobs >= 0) {
        EXPECT_EQ(drawn[n].logprob, expected[i][n].logprob);
      }
    }
  }
  EXPECT_TRUE(service->drain(10));
  const ServiceStats stats = service->stats();
  EXPECT_GT(stats.num_loop_steps, 20);
  EXPECT_LT(stats.num_loop_steps, stats.num_steps);
  service.reset();
  expect_all_pages_back(*engine);
  EXPECT_EQ(engine->decode_loop().num_in_flight(), 0);
  // The engine is free again, its loop too.
  EXPECT_EQ(engine->generate(prompts[0], sampling_of_nth(0))->ids, answers[0].ids());
}

// Allows the ids that leave the same rest as the number of tokens so far.
class Rests final : public TokenConstraint {
 public:
  bool fill_mask(std::span<uint32_t> mask) override {
    std::fill(mask.begin(), mask.end(), 0u);
    for (size_t id = num_accepted_ % 5; id < 500; id += 5) mask[id / 32] |= 1u << (id % 32);
    return num_accepted_ % 4 != 3;
  }
  Status accept(int32_t token) override {
    const auto id = static_cast<size_t>(token);
    if (num_accepted_ % 4 != 3 && id % 5 != num_accepted_ % 5) return fail("not allowed");
    ++num_accepted_;
    return {};
  }
  std::unique_ptr<TokenConstraint> fork() const override { return std::make_unique<Rests>(*this); }

 private:
  size_t num_accepted_ = 0;
};

ServiceRequest drafted_request(size_t i) {
  ServiceRequest request{
      .prompt = tokens(static_cast<int32_t>(12 + 5 * i), static_cast<uint32_t>(i / 3)),
      .sampling = sampling_of(i)};
  request.sampling.max_tokens = static_cast<int32_t>(15 + 3 * i);
  if (i % 4 == 1) request.sampling.min_tokens = 9;
  if (i == 6) request.sampling.allowed_ids = {4, 5, 6, 7, 8, 9, 300, 301};
  if (i % 3 == 2) {
    request.constraint = std::make_shared<Rests>();
    request.sampling.ignore_eos = false;
  }
  return request;
}

void expect_same(const std::vector<SampleAnswer>& found, const std::vector<SampleAnswer>& wanted,
                 bool logprobs) {
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t n = 0; n < found.size(); ++n) {
    ASSERT_EQ(found[n].token, wanted[n].token) << "token " << n;
    if (!logprobs) continue;
    EXPECT_EQ(found[n].logprob, wanted[n].logprob);
    EXPECT_EQ(found[n].top_ids[1], wanted[n].top_ids[1]);
  }
}

TEST(ServiceTest, HoweverAnswersAreDraftedTheyAreTheSame) {
  constexpr size_t kRequests = 9;
  auto engine =
      open({.kernels = {"all=reference"}, .max_model_len = 96, .max_batch_tokens = 24}, 4);
  // The last request is cancelled, but for the first time.
  std::vector<std::vector<SampleAnswer>> expected;
  const auto run = [&](const ServiceOptions& options) {
    auto service = Service::create(*engine, options);
    std::vector<Answer> answers(kRequests);
    std::vector<RequestId> ids;
    for (size_t i = 0; i < kRequests; ++i) {
      ServiceRequest request = drafted_request(i);
      request.sink = answers[i].sink();
      const auto id = service->submit(std::move(request));
      CHECK(id.has_value(), id ? "" : id.error().error.message());
      ids.push_back(*id);
    }
    if (!expected.empty()) {
      answers.back().wait_for_tokens(5);
      service->cancel(ids.back());
    }
    for (Answer& answer : answers) answer.wait();
    EXPECT_TRUE(service->drain(60));
    for (size_t i = 0; i < kRequests && !expected.empty(); ++i) {
      SCOPED_TRACE(i);
      auto found = answers[i].answers();
      if (i + 1 == kRequests) found.resize(std::min<size_t>(found.size(), 5));
      auto wanted = expected[i];
      if (i + 1 == kRequests) wanted.resize(5);
      expect_same(found, wanted, drafted_request(i).sampling.num_logprobs >= 0);
    }
    if (expected.empty()) {
      for (const Answer& answer : answers) expected.push_back(answer.answers());
    }
    const ServiceStats stats = service->stats();
    service.reset();
    expect_all_pages_back(*engine);
    return stats;
  };
  EXPECT_EQ(run({}).drafts.num_tokens, 0);
  const auto truth = [&](RequestId id) {
    auto all = drafted_request(id - 1).prompt;
    for (const SampleAnswer& answer : expected[id - 1]) all.push_back(answer.token);
    return all;
  };
  using Manner = StandInDrafter::Manner;
  for (const auto& [manner, async] : {std::pair{Manner::kAnyOf, true},
                                      {Manner::kAnyOf, false},
                                      {Manner::kRight, true},
                                      {Manner::kWrong, true},
                                      {Manner::kTooLong, false}}) {
    StandInDrafter drafter(truth, engine->config().vocab, manner, 7);
    const ServiceStats stats =
        run({.drafting = {.drafter = &drafter, .max_drafts = 4}, .async_scheduling = async});
    EXPECT_GT(stats.drafts.num_accepted, 0);
    if (manner == Manner::kRight) {
      EXPECT_GE(stats.drafts.num_accepted + 4, stats.drafts.num_tokens);  // one is cancelled
    }
    if (manner == Manner::kWrong) {
      EXPECT_LT(stats.drafts.num_accepted, stats.drafts.num_tokens);
    }
  }
}

TEST(ServiceTest, LogProbabilitiesOfPromptAndAnswerAreThoseOfTheRawLogits) {
  auto engine = open({.kernels = {"all=reference"}, .max_model_len = 96}, 2);
  const auto prompt = tokens(20, 4);
  const SamplingOptions sampling{
      .temperature = 0, .num_logprobs = 3, .max_tokens = 8, .ignore_eos = true};
  std::vector<SampleAnswer> expected;
  ASSERT_TRUE(engine->generate(prompt, sampling, [&](const SampleAnswer& answer) {
    expected.push_back(answer);
    return true;
  }));
  auto service = Service::create(*engine, {});
  Answer answer;
  ASSERT_TRUE(service->submit({.prompt = prompt, .sampling = sampling, .sink = answer.sink()}));
  answer.wait();
  const auto drawn = answer.answers();
  ASSERT_EQ(drawn.size(), expected.size());
  for (size_t i = 0; i < drawn.size(); ++i) {
    EXPECT_EQ(drawn[i].token, expected[i].token);
    EXPECT_EQ(drawn[i].logprob, expected[i].logprob);
    EXPECT_EQ(drawn[i].top_ids[2], expected[i].top_ids[2]);
  }

  // The answer given back as part of a prompt has the same log-probabilities there.
  std::vector<SampleAnswer> scores;
  std::mutex mutex;
  auto longer = prompt;
  for (const SampleAnswer& token : drawn) longer.push_back(token.token);
  Answer scored;
  ASSERT_TRUE(service->submit({.prompt = longer,
                               .sampling = {.temperature = 0, .max_tokens = 1},
                               .prompt_logprobs = 3,
                               .sink = [&, collect = scored.sink()](const RequestUpdate& update) {
                                 {
                                   const std::lock_guard lock(mutex);
                                   for (const auto& score : update.prompt_tokens) {
                                     scores.push_back(score);
                                   }
                                 }
                                 collect(update);
                               }}));
  EXPECT_EQ(scored.wait().cache.miss, CacheMiss::kLogprobs);
  const std::lock_guard lock(mutex);
  ASSERT_EQ(scores.size(), longer.size() - 1);
  for (size_t i = 0; i < scores.size(); ++i) EXPECT_EQ(scores[i].token, longer[i + 1]);
  for (size_t i = 0; i < drawn.size(); ++i) {
    const SampleAnswer& score = scores[prompt.size() - 1 + i];
    EXPECT_EQ(score.logprob, drawn[i].logprob);
    EXPECT_EQ(score.top_ids[2], drawn[i].top_ids[2]);
    EXPECT_EQ(score.rank, drawn[i].rank);
  }
}

StepRunner::Limits small_limits() {
  return {.max_num_seqs = 4,
          .max_batch_tokens = 32,
          .max_logit_rows = 8,
          .max_loop_streams = 3,
          .max_model_len = 100,
          .vocab = 50,
          .stop_ids = {7}};
}

std::unique_ptr<Service> fake_service(const ServiceOptions& options) {
  return Service::create(
      std::make_unique<FakeRunner>(FakeRunner::Shape{.full_pages = 60, .window_pages = 60},
                                   small_limits()),
      options);
}

ServiceRequest endless(Answer& answer) {
  return {.prompt = {1, 2, 3}, .sampling = {.seed = 1, .ignore_eos = true}, .sink = answer.sink()};
}

TEST(ServiceTest, WhatCannotBeServedIsRefusedWithItsKind) {
  auto service = fake_service({});
  const auto kind_of = [&](ServiceRequest request) {
    const auto id = service->submit(std::move(request));
    CHECK(!id.has_value());
    EXPECT_FALSE(id.error().error.message().empty());
    return id.error().kind;
  };
  EXPECT_EQ(kind_of({}), RefusalKind::kInvalid);
  EXPECT_EQ(kind_of({.prompt = {50}}), RefusalKind::kInvalid);
  EXPECT_EQ(kind_of({.prompt = {-1}}), RefusalKind::kInvalid);
  EXPECT_EQ(kind_of({.prompt = std::vector<int32_t>(100, 1)}), RefusalKind::kTooLong);
  const auto with = [&](SamplingOptions sampling) {
    return kind_of({.prompt = {1}, .sampling = std::move(sampling)});
  };
  EXPECT_EQ(with({.temperature = -1}), RefusalKind::kInvalid);
  EXPECT_EQ(with({.temperature = std::nanf("")}), RefusalKind::kInvalid);
  EXPECT_EQ(with({.top_p = 1.5f}), RefusalKind::kInvalid);
  EXPECT_EQ(with({.repetition_penalty = 0}), RefusalKind::kInvalid);
  EXPECT_EQ(with({.logit_bias = {{50, 1.0f}}}), RefusalKind::kInvalid);
  EXPECT_EQ(with({.num_logprobs = 21}), RefusalKind::kInvalid);
  EXPECT_EQ(with({.max_tokens = 3, .min_tokens = 4}), RefusalKind::kInvalid);
  EXPECT_EQ(with({.allowed_ids = {99}}), RefusalKind::kInvalid);
}

TEST(ServiceTest, PastTheQueuesLimitItSaysWhenToComeBack) {
  auto service = fake_service({.max_num_seqs = 1, .max_queue = 3});
  std::vector<Answer> answers(40);
  int num_refused = 0;
  for (Answer& answer : answers) {
    const auto id = service->submit(endless(answer));
    if (id) continue;
    EXPECT_EQ(id.error().kind, RefusalKind::kQueueFull);
    EXPECT_GE(id.error().retry_after_s, 1);
    ++num_refused;
  }
  EXPECT_GT(num_refused, 0);
  EXPECT_EQ(service->stats().num_refused_requests, num_refused);
  EXPECT_EQ(service->stats().num_refused_tokens, 0);
  service->stop();
}

TEST(ServiceTest, WithoutAQueueARequestRunsOrIsRefused) {
  for (const bool async : {false, true}) {
    auto service = fake_service({.max_num_seqs = 1, .max_queue = 0, .async_scheduling = async});
    for (int round = 0; round < 50; ++round) {
      Answer answer;  // at once after the last
      ServiceRequest request = endless(answer);
      request.sampling.max_tokens = 2;
      ASSERT_TRUE(service->submit(std::move(request)).has_value()) << round;
      answer.wait();
    }
  }
  auto busy = fake_service(
      {.max_num_seqs = 1, .max_queue = 0, .fault = [](int64_t, std::span<const int32_t>) -> Status {
         std::this_thread::sleep_for(std::chrono::milliseconds(20));
         return {};
       }});
  Answer running, late;
  ASSERT_TRUE(busy->submit(endless(running)).has_value());
  const auto refused = busy->submit(endless(late));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().kind, RefusalKind::kQueueFull);
  EXPECT_EQ(busy->stats().num_refused_requests, 1);
  ServiceRequest probe = endless(late);
  probe.passes_queue_limits = true;
  EXPECT_TRUE(busy->submit(std::move(probe)).has_value());
  busy->stop();
}

TEST(ServiceTest, TokensInTheQueueAreCountedAndBounded) {
  auto service = fake_service({.max_num_seqs = 1, .max_queued_tokens = 7});
  std::vector<Answer> answers(40);
  int num_refused = 0;
  for (Answer& answer : answers) num_refused += service->submit(endless(answer)) ? 0 : 1;
  EXPECT_GT(num_refused, 0);
  const ServiceStats stats = service->stats();
  EXPECT_LE(stats.queued_tokens, 7);
  EXPECT_EQ(stats.num_refused_requests, 0);
  EXPECT_EQ(stats.num_refused_tokens, num_refused);
  service->stop();
  EXPECT_EQ(service->stats().queued_tokens, 0);
}

TEST(ServiceTest, ThePrefixCacheIsEmptiedOnlyIfNothingRuns) {
  for (const bool async : {false, true}) {
    auto service = fake_service({.async_scheduling = async});
    const auto clear = [&] {
      std::promise<bool> done;
      service->clear_prefix_cache([&](bool cleared) { done.set_value(cleared); });
      return done.get_future().get();
    };
    EXPECT_TRUE(clear());
    Answer running;
    const auto id = service->submit(endless(running));
    ASSERT_TRUE(id.has_value());
    running.wait_for_tokens(1);
    const bool cleared = clear();
    EXPECT_TRUE(!cleared || running.num_ends() > 0);  // it may have come to the context's end
    service->cancel(*id);
    running.wait();
    const auto hit = [&] {
      Answer answer;
      EXPECT_TRUE(service->submit({.prompt = std::vector<int32_t>(20, 7),
                                   .sampling = {.max_tokens = 2},
                                   .sink = answer.sink()}));
      return answer.wait().cache.hit_tokens;
    };
    EXPECT_EQ(hit(), 0);
    EXPECT_GT(hit(), 0);
    EXPECT_TRUE(clear());
    EXPECT_EQ(service->stats().full_pages_cached, 0);
    EXPECT_EQ(hit(), 0);
  }
}

TEST(ServiceTest, CancellingEndsARequestAndFreesItsPages) {
  for (const bool async : {false, true}) {
    auto service = fake_service({.async_scheduling = async});
    for (int round = 0; round < 20; ++round) {
      Answer answer;
      const auto id = service->submit(endless(answer));
      ASSERT_TRUE(id.has_value());
      answer.wait_for_tokens(3);
      service->cancel(*id);
      const Finish finish = answer.wait();
      // It may have come to the context's end before.
      EXPECT_TRUE(finish.reason == FinishReason::kAborted ||
                  finish.reason == FinishReason::kLength);
      EXPECT_EQ(finish.completion_tokens, static_cast<int32_t>(answer.ids().size()));
      service->cancel(*id);  // of an ended one: nothing
    }
    EXPECT_TRUE(service->drain(10));
    EXPECT_EQ(service->stats().full_pages_used, 0);
    EXPECT_EQ(service->stats().window_pages_used, 0);
    EXPECT_EQ(service->stats().running, 0);
  }
}

TEST(ServiceTest, DrainingLetsTheRunningEndAndRefusesTheNew) {
  auto service = fake_service({});
  Answer answer, late;
  ASSERT_TRUE(service->submit(endless(answer)));
  EXPECT_TRUE(service->drain(30));
  EXPECT_EQ(answer.wait().reason, FinishReason::kLength);
  const auto refused = service->submit(endless(late));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().kind, RefusalKind::kDraining);
  EXPECT_TRUE(service->stats().draining);
}

TEST(ServiceTest, ADrainThatTakesTooLongAbortsTheRest) {
  auto service = fake_service({.fault = [](int64_t, std::span<const int32_t>) -> Status {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return {};
  }});
  Answer answer;
  ASSERT_TRUE(service->submit(endless(answer)));
  EXPECT_FALSE(service->drain(0.1));
  EXPECT_EQ(answer.num_ends(), 1u);
  EXPECT_EQ(answer.wait().reason, FinishReason::kAborted);
}

TEST(ServiceTest, StoppingEndsEveryRequestOnce) {
  std::vector<Answer> answers(30);
  auto service = fake_service({});
  for (Answer& answer : answers) ASSERT_TRUE(service->submit(endless(answer)));
  service.reset();
  for (Answer& answer : answers) EXPECT_EQ(answer.num_ends(), 1u);
}

TEST(ServiceTest, AFailedStepFailsTheRequestThatIsAloneInItAndTheServiceGoesOn) {
  for (const bool async : {false, true}) {
    auto service = fake_service({.async_scheduling = async,
                                 .fault = [](int64_t number, std::span<const int32_t>) -> Status {
                                   if (number == 5) return fail("made to fail", "step");
                                   return {};
                                 }});
    Answer first, second;
    ASSERT_TRUE(service->submit(endless(first)));
    const Finish failed = first.wait();
    EXPECT_EQ(failed.reason, FinishReason::kError);
    EXPECT_NE(failed.error.message().find("made to fail"), std::string::npos);
    ASSERT_TRUE(service->submit(endless(second)));
    EXPECT_EQ(second.wait().reason, FinishReason::kLength);
    EXPECT_TRUE(service->stats().healthy);
    EXPECT_EQ(service->stats().num_failed_steps, 1);
  }
}

TEST(ServiceTest, ARequestThatMakesStepsFailFailsAlone) {
  static constexpr int32_t kPoison = 49;
  for (const bool async : {false, true}) {
    auto service = fake_service(
        {.async_scheduling = async, .fault = [](int64_t, std::span<const int32_t> ids) -> Status {
           if (std::find(ids.begin(), ids.end(), kPoison) == ids.end()) {
             return {};
           }
           return fail("made to fail", "token");
         }});
    std::vector<Answer> answers(6);
    Answer poisoned;
    const auto harmless = [](Answer& answer) {
      ServiceRequest request = endless(answer);
      request.sampling.allowed_ids = {1, 2, 3, 4, 5, 6};
      return request;
    };
    for (size_t i = 0; i < 3; ++i) ASSERT_TRUE(service->submit(harmless(answers[i])));
    answers[0].wait_for_tokens(5);
    ServiceRequest request = harmless(poisoned);
    request.prompt = {1, kPoison, 2};
    ASSERT_TRUE(service->submit(std::move(request)));
    for (size_t i = 3; i < 6; ++i) ASSERT_TRUE(service->submit(harmless(answers[i])));
    EXPECT_EQ(poisoned.wait().reason, FinishReason::kError);
    EXPECT_TRUE(poisoned.ids().empty());
    for (Answer& answer : answers) {
      EXPECT_EQ(answer.wait().reason, FinishReason::kLength);
      EXPECT_EQ(answer.ids().size(), 97u);
    }
    EXPECT_TRUE(service->drain(10));
    EXPECT_GT(service->stats().num_failed_steps, 0);
    EXPECT_EQ(service->stats().full_pages_used, 0);
    EXPECT_EQ(service->stats().window_pages_used, 0);
  }
}

// A device that has failed for good.
class BrokenRunner : public FakeRunner {
 public:
  using FakeRunner::FakeRunner;
  Status sample(std::span<const SampleRequest>, std::span<SampleAnswer>) override {
    return fail("an illegal address", "device");
  }
  Status synchronize() override { return fail("an illegal address", "device"); }
};

TEST(ServiceTest, ADeviceThatHasFailedForGoodIsSaidToBeSo) {
  auto service =
      Service::create(std::make_unique<BrokenRunner>(FakeRunner::Shape{}, small_limits()), {});
  std::vector<Answer> answers(9);  // some of them wait
  for (Answer& answer : answers) service->submit(endless(answer));
  EXPECT_EQ(answers[0].wait().reason, FinishReason::kError);
  service->drain(10);
  EXPECT_FALSE(service->stats().healthy);
  Answer late;
  const auto refused = service->submit(endless(late));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().kind, RefusalKind::kUnhealthy);
}

TEST(ServiceTest, AThousandStreamsAtOnceAllEndAndGiveTheirPagesBack) {
  constexpr size_t kStreams = 1000;
  auto engine = open({.model = "models/tiny", .max_model_len = 4096}, 0);
  ASSERT_EQ(engine->plan().max_model_len, 4096);
  auto service = Service::create(*engine, {});
  std::vector<Answer> answers(kStreams);
  int64_t num_prompt = 0;
  for (size_t i = 0; i < kStreams; ++i) {
    const auto length = static_cast<int32_t>(i % 16 == 0 ? 40 : 4 + i % 9);
    const auto prompt = tokens(length, static_cast<uint32_t>(i % 100));
    num_prompt += static_cast<int64_t>(prompt.size());
    ASSERT_TRUE(service->submit(
        {.prompt = prompt, .sampling = {.seed = i, .max_tokens = 4}, .sink = answers[i].sink()}));
  }
  int64_t num_drawn = 0;
  for (Answer& answer : answers) {
    const Finish finish = answer.wait();
    EXPECT_TRUE(finish.reason == FinishReason::kStop || finish.reason == FinishReason::kLength);
    EXPECT_EQ(finish.completion_tokens, static_cast<int32_t>(answer.ids().size()));
    EXPECT_GT(finish.completion_tokens, 0);
    num_drawn += finish.completion_tokens;
  }
  EXPECT_TRUE(service->drain(10));
  const ServiceStats stats = service->stats();
  EXPECT_EQ(stats.generation_tokens, num_drawn);
  EXPECT_EQ(stats.prompt_tokens, num_prompt);
  EXPECT_EQ(stats.running, 0);
  EXPECT_EQ(stats.waiting, 0);
  service.reset();
  expect_all_pages_back(*engine);
}

// Several threads submit and cancel while sinks submit more: for the thread sanitizer.
TEST(ServiceTest, AnyThreadMaySubmitAndCancel) {
  auto service = fake_service({.max_queue = 100000});
  constexpr size_t kThreads = 3, kEach = 60;
  std::vector<Answer> answers(kThreads * kEach), followers(kThreads * kEach);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<uint32_t>(t));
      for (size_t i = t * kEach; i < (t + 1) * kEach; ++i) {
        ServiceRequest request = endless(answers[i]);
        request.prompt.assign(1 + random() % 60, static_cast<int32_t>(random() % 50));
        request.sink = [&, i, collect = answers[i].sink()](const RequestUpdate& update) {
          collect(update);
          if (update.finish == nullptr) return;
          ServiceRequest follower = endless(followers[i]);
          follower.sampling.max_tokens = 2;
          CHECK(service->submit(std::move(follower)).has_value());
        };
        const auto id = service->submit(std::move(request));
        CHECK(id.has_value());
        if (random() % 2 == 0) service->cancel(*id);
        static_cast<void>(service->stats());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (Answer& answer : answers) answer.wait();
  for (Answer& answer : followers) EXPECT_EQ(answer.wait().completion_tokens, 2);
  EXPECT_TRUE(service->drain(10));
  const ServiceStats stats = service->stats();
  int64_t num_drawn = 0;
  for (const auto* list : {&answers, &followers}) {
    for (const Answer& answer : *list) num_drawn += static_cast<int64_t>(answer.ids().size());
  }
  EXPECT_EQ(stats.generation_tokens, num_drawn);
  EXPECT_EQ(stats.full_pages_used, 0);
}

}  // namespace
}  // namespace moxie
