// Samples of several loadings are one result.
#include "lab/bench_rounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "lab/stats.h"

namespace moxie {
namespace {

class BenchRoundsTest : public testing::Test {
 protected:
  void SetUp() override {
    EngineOptions options{.device = "cpu", .threads = 2, .show_progress = false};
    fit_engine({kTest}, &options);
    auto engine = BenchEngine::load(options);
    ASSERT_TRUE(engine.has_value()) << engine.error().message();
    engine_ = std::make_unique<BenchEngine>(std::move(*engine));
    limits_.read_gb_s = 10;
    limits_.fp32.rate = 50;
  }

  static constexpr BenchTest kTest{.n_gen = 3, .depth = 5};
  std::unique_ptr<BenchEngine> engine_;
  MachineLimits limits_;
};

TEST_F(BenchRoundsTest, SamplesOfSeveralLoadingsAreOneResult) {
  const auto one = run_bench(**engine_, kTest, 1, limits_);
  ASSERT_TRUE(one.has_value()) << one.error().message();
  const auto rounds = run_bench_in_rounds(*engine_, kTest, 11, limits_);
  ASSERT_TRUE(rounds.has_value()) << rounds.error().message();
  EXPECT_GE(rounds->num_loads, 2);
  EXPECT_LE(rounds->num_loads, 8);
  EXPECT_EQ(rounds->tok_s.size(), 11u);
  ASSERT_EQ(rounds->shares.size(), 11u);
  EXPECT_DOUBLE_EQ(rounds->share_of_limit, median(rounds->shares));
  EXPECT_DOUBLE_EQ(rounds->bytes_per_token, one->bytes_per_token);
  ASSERT_EQ(rounds->kernels.size(), one->kernels.size());
  for (const auto& count : one->kernels) {
    const auto same = std::ranges::find_if(rounds->kernels, [&](const auto& of) {
      return of.op == count.op && of.name == count.name;
    });
    ASSERT_NE(same, rounds->kernels.end()) << count.name;
    EXPECT_EQ(same->launches, 11 * count.launches) << count.name;
  }
}

TEST_F(BenchRoundsTest, OneSampleIsOneLoading) {
  const auto result = run_bench_in_rounds(*engine_, kTest, 1, limits_);
  ASSERT_TRUE(result.has_value()) << result.error().message();
  EXPECT_EQ(result->num_loads, 1);
  EXPECT_EQ(result->tok_s.size(), 1u);
}

}  // namespace
}  // namespace moxie
