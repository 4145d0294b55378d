// What tests of several ranks share, on any device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <limits>
#include <mutex>

#include "engine/parallel.h"
#include "engine/service.h"
#include "engine/speculation.h"
#include "engine/testing/tokens.h"

namespace moxie {

// The KL divergence of each row of `b` from the row of `a`, in double, in ascending order.
inline std::vector<double> kl_of_rows(const std::vector<float>& a, const std::vector<float>& b,
                                      size_t vocab) {
  CHECK(a.size() == b.size());
  std::vector<double> all;
  for (size_t row = 0; row < a.size(); row += vocab) {
    const auto log_sum = [&](const std::vector<float>& logits) {
      double sum = 0;
      for (size_t i = 0; i < vocab; ++i) sum += std::exp(double{logits[row + i]});
      return std::log(sum);
    };
    const double of_a = log_sum(a), of_b = log_sum(b);
    double kl = 0;
    for (size_t i = 0; i < vocab; ++i) {
      const double log_p = a[row + i] - of_a, log_q = b[row + i] - of_b;
      kl += std::exp(log_p) * (log_p - log_q);
    }
    all.push_back(std::isnan(kl) ? std::numeric_limits<double>::infinity() : kl);
  }
  std::sort(all.begin(), all.end());
  return all;
}
inline double greatest_kl(const std::vector<float>& a, const std::vector<float>& b, size_t vocab) {
  return kl_of_rows(a, b, vocab).back();
}

// Collects an answer and waits for its end.
class Answer {
 public:
  RequestSink sink() {
    return [this](const RequestUpdate& update) {
      const std::lock_guard lock(mutex_);
      for (const SampleAnswer& answer : update.tokens) ids_.push_back(answer.token);
      if (update.finish != nullptr) finish_ = *update.finish;
      changed_.notify_all();
    };
  }
  Finish wait() {
    std::unique_lock lock(mutex_);
    CHECK(changed_.wait_for(lock, std::chrono::seconds(300), [&] { return finish_.has_value(); }));
    return *finish_;
  }
  void wait_for_tokens(size_t count) {
    std::unique_lock lock(mutex_);
    CHECK(changed_.wait_for(lock, std::chrono::seconds(300),
                            [&] { return ids_.size() >= count || finish_.has_value(); }));
  }
  const std::vector<int32_t>& ids() const { return ids_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int32_t> ids_;
  std::optional<Finish> finish_;
};

inline SamplingOptions sampling_of(size_t i) {
  SamplingOptions sampling{.seed = i, .max_tokens = 24, .ignore_eos = true};
  if (i % 3 == 0) sampling.temperature = 0;
  if (i % 3 == 1) sampling.top_p = 0.9f;
  return sampling;
}

// Requests with prefixes in the cache, too few pages for all (so that requests give way and come
// again), beside others that are cancelled: each draws what an engine with `one` draws, but for
// `most_different` of the nine. `several` may draft, and does unless it asks whether that pays.
inline void expect_the_same_draws(const EngineOptions& one, EngineOptions several,
                                  int most_different = 0) {
  std::vector<std::vector<int32_t>> prompts, expected;
  {
    auto alone = Engine::load(one);
    ASSERT_TRUE(alone.has_value()) << alone.error().message();
    for (size_t i = 0; i < 9; ++i) {
      prompts.push_back(tokens(static_cast<int32_t>(12 + 5 * i), static_cast<uint32_t>(i / 3)));
      auto generated = (*alone)->generate(prompts[i], sampling_of(i));
      ASSERT_TRUE(generated.has_value());
      expected.push_back(generated->ids);
    }
  }
  several.kv_cache_bytes = 1;  // of the longest request
  fit_service(4, &several);
  auto loaded = Engine::load(several);
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message();
  Engine* const engine = loaded->get();
  auto speculation = make_speculation(*engine);
  ASSERT_TRUE(speculation.has_value()) << speculation.error().message();
  auto service = Service::create(*engine, {.drafting = speculation->drafting});
  std::vector<Answer> answers(prompts.size()), cancelled(3);
  std::vector<uint64_t> ids;
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (i % 3 == 0) {
      const auto id = service->submit({.prompt = prompts[i],
                                       .sampling = {.max_tokens = 40, .ignore_eos = true},
                                       .sink = cancelled[i / 3].sink()});
      ASSERT_TRUE(id.has_value());
      ids.push_back(*id);
    }
    ASSERT_TRUE(
        service
            ->submit({.prompt = prompts[i], .sampling = sampling_of(i), .sink = answers[i].sink()})
            .has_value());
  }
  cancelled[0].wait_for_tokens(3);
  for (const uint64_t id : ids) service->cancel(id);
  DraftCounts drafts;
  int num_different = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Finish finish = answers[i].wait();
    EXPECT_EQ(finish.reason, FinishReason::kLength);
    drafts.add(finish.drafts);
    const bool is_different = answers[i].ids() != expected[i];
    num_different += is_different;
    EXPECT_FALSE(is_different && num_different > most_different) << "request " << i;
  }
  if (speculation->drafter != nullptr) {
    std::printf("%lld drafts, %lld accepted; %d texts differ\n",
                static_cast<long long>(drafts.num_tokens),
                static_cast<long long>(drafts.num_accepted), num_different);
    EXPECT_TRUE(several.speculation.is_adaptive || drafts.num_tokens > 0);
  }
  for (Answer& answer : cancelled) answer.wait();
  service.reset();
  engine->kv().check_integrity();
  EXPECT_EQ(engine->kv().num_free_full_pages(), engine->kv().num_full_pages());
}

// After a fault of a rank every request ends with an error that says what it was, and the service
// is unhealthy.
inline void expect_a_fault_ends_requests(EngineOptions options) {
  fit_service(4, &options);
  auto loaded = Engine::load(options);
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message();
  Engine* const engine = loaded->get();
  auto service = Service::create(*engine, {});
  std::vector<Answer> answers(6);
  for (size_t i = 0; i < answers.size(); ++i) {
    ASSERT_TRUE(service
                    ->submit({.prompt = tokens(9, static_cast<uint32_t>(i)),
                              .sampling = {.max_tokens = 200, .ignore_eos = true},
                              .sink = answers[i].sink()})
                    .has_value());
  }
  answers[0].wait_for_tokens(2);
  engine->ranks()->link().set_fault("rank 1 has not answered for 10 s");
  for (Answer& answer : answers) {
    const Finish finish = answer.wait();
    EXPECT_EQ(finish.reason, FinishReason::kError);
    EXPECT_NE(finish.error.message().find("rank 1"), std::string::npos) << finish.error.message();
  }
  service->drain(10);
  EXPECT_FALSE(service->stats().healthy);
}

}  // namespace moxie
