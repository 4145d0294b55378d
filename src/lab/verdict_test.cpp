// Rank tests by counted cases; verdicts on synthetic noise as shared machines make it: what is the
// same is hardly ever called different, what differs is found.
#include "lab/verdict.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "lab/rank_tests.h"

namespace moxie {
namespace {

TEST(Sign, CountsTheTails) {
  // All five of one sign: 2 of the 32 sets of signs are so one-sided.
  EXPECT_NEAR(sign_p(std::array{1.0, 2.0, 3.0, 4.0, 5.0}), 2.0 / 32, 1e-12);
  EXPECT_NEAR(sign_p(std::array{-1.0, 2.0, 3.0, 4.0, 5.0}), 2.0 * (1 + 5) / 32, 1e-12);
  EXPECT_NEAR(sign_p(std::array{-1.0, 2.0, 0.0}), 1, 1e-12);
  EXPECT_NEAR(sign_p(std::array{0.0, 0.0}), 1, 1e-12);
  const std::vector<double> many(2000, 1.0);
  EXPECT_GE(sign_p(many), 0);
  EXPECT_LT(sign_p(many), 1e-300);
}

TEST(RankSum, CountsTheTails) {
  // Three below three: 2 of 20 ways.
  EXPECT_DOUBLE_EQ(rank_sum_p(std::array{1.0, 2.0, 3.0}, std::array{4.0, 5.0, 6.0}), 2.0 / 20);
  EXPECT_DOUBLE_EQ(rank_sum_p(std::array{1.0, 2.0, 4.0}, std::array{3.0, 5.0, 6.0}), 4.0 / 20);
  EXPECT_DOUBLE_EQ(rank_sum_p(std::array{1.0, 1.0}, std::array{1.0, 1.0}), 1);
  EXPECT_DOUBLE_EQ(rank_sum_p({}, std::array{1.0}), 1);
}

TEST(RankSum, OfManySamplesAgreesWithTheExactOne) {
  std::vector<double> a, b;
  for (int i = 0; i < 20; ++i) a.push_back(i), b.push_back(i + 5.5);
  const double exact_sum = rank_sum_p(a, b);
  b.push_back(15.75);  // one more takes the normal distribution
  EXPECT_NEAR(rank_sum_p(a, b), exact_sum, 0.3 * exact_sum);
}

// The speed of a shared machine: it wanders (a random walk that returns), neighbours slow it for
// some samples together, single samples are hit, and the rest is white noise.
struct Noise {
  double white = 0.01, wander = 0.01, outliers = 0.05, outlier_size = 0.3, bursts = 0.03;
};

class Machine {
 public:
  Machine(const Noise& noise, uint64_t seed) : noise_(noise), random_(seed) {}
  // One sample of a thing of this speed.
  double sample(double speed) {
    level_ = 0.95 * level_ + noise_.wander * normal_(random_);
    if (burst_left_ > 0)
      --burst_left_;
    else if (uniform_(random_) < noise_.bursts)
      burst_left_ = 6, burst_ = 0.15 * uniform_(random_);
    double log_speed = std::log(speed) + level_ + noise_.white * normal_(random_);
    if (burst_left_ > 0) log_speed -= burst_;
    if (uniform_(random_) < noise_.outliers) log_speed -= noise_.outlier_size * uniform_(random_);
    return std::exp(log_speed);
  }

 private:
  Noise noise_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  std::uniform_real_distribution<double> uniform_;
  double level_ = 0, burst_ = 0;
  int burst_left_ = 0;
};

struct Called {
  int faster = 0, slower = 0, same = 0, unclear = 0;
  void add(const Difference& d) {
    ++(d.verdict == SpeedVerdict::kFaster   ? faster
       : d.verdict == SpeedVerdict::kSlower ? slower
       : d.verdict == SpeedVerdict::kSame   ? same
                                            : unclear);
  }
};

constexpr int kTrials = 200;

Called paired(const Noise& noise, double ratio, int samples, Better better = Better::kHigher) {
  Called called;
  for (uint64_t seed = 1; seed <= kTrials; ++seed) {
    Machine machine(noise, seed);
    std::vector<double> a, b;
    for (int i = 0; i < samples; ++i) {
      if (i % 2 == 0) a.push_back(machine.sample(100)), b.push_back(machine.sample(100 * ratio));
      if (i % 2 == 1) b.push_back(machine.sample(100 * ratio)), a.push_back(machine.sample(100));
    }
    called.add(judge_paired(a, b, better));
  }
  return called;
}

Called in_two_runs(const Noise& noise, double ratio, int samples) {
  Called called;
  for (uint64_t seed = 1; seed <= kTrials; ++seed) {
    Machine machine(noise, seed);
    std::vector<double> a, b;
    for (int i = 0; i < samples; ++i) a.push_back(machine.sample(100));
    for (int i = 0; i < samples; ++i) b.push_back(machine.sample(100 * ratio));
    called.add(judge_runs(a, b, Better::kHigher));
  }
  return called;
}

const Noise kKinds[] = {
    {.wander = 0, .outliers = 0, .bursts = 0},
    {.wander = 0, .outliers = 0.2, .bursts = 0},
    {.wander = 0.02, .outliers = 0, .bursts = 0},
    {.wander = 0, .outliers = 0, .bursts = 0.1},
    {},
    {.white = 0.02, .wander = 0.02, .outliers = 0.1, .bursts = 0.05},
};

// As many as --vs takes without --repetitions.
constexpr int kPairs = 40;

TEST(JudgePaired, DoesNotCallTheSameDifferent) {
  for (const Noise& noise : kKinds) {
    const Called called = paired(noise, 1, kPairs);
    EXPECT_LE(called.faster + called.slower, kTrials / 50) << "kind " << &noise - kKinds;
  }
}

TEST(JudgePaired, FindsFivePercent) {
  for (const Noise& noise : kKinds) {
    const Called called = paired(noise, 0.95, kPairs);
    EXPECT_GE(called.slower, kTrials * 19 / 20) << "kind " << &noise - kKinds;
    EXPECT_EQ(called.faster, 0);
  }
}

TEST(JudgePaired, NeverCallsOnePercentTheWrongWay) {
  for (const Noise& noise : kKinds) {
    EXPECT_EQ(paired(noise, 1.01, kPairs).slower, 0) << "kind " << &noise - kKinds;
  }
}

// A machine whose speed changes in the middle of a run: neighbours resemble each other.
TEST(JudgePaired, FindsWhatIsManyTimesSlowerWhereSpeedsComeInPhases) {
  std::vector<double> a, b, near;
  for (int i = 0; i < 16; ++i) {
    const double speed = i < 8 ? 100 : 60;
    a.push_back(speed);
    b.push_back((i < 8 ? 2.0 : 1.6) + 0.001 * i);
    near.push_back(speed * (i < 8 ? 0.9 : 0.97));
  }
  EXPECT_EQ(judge_paired(a, b, Better::kHigher).verdict, SpeedVerdict::kSlower);
  EXPECT_EQ(judge_paired(b, a, Better::kHigher).verdict, SpeedVerdict::kFaster);
  EXPECT_EQ(judge_paired(a, near, Better::kHigher).verdict, SpeedVerdict::kUnclear);
}

TEST(JudgePaired, KnowsWhatIsBetter) {
  EXPECT_EQ(paired(kKinds[0], 1.1, 20, Better::kLower).slower, kTrials);
}

constexpr int kLongTrials = 40;  // they take a thousand pairs each

// Pairs until 2.5% could be shown, as --vs takes them.
Called until_shown(const Noise& noise, double ratio) {
  Called called;
  for (uint64_t seed = 1; seed <= kLongTrials; ++seed) {
    Machine machine(noise, seed);
    std::vector<double> a, b;
    while (a.size() < 4000 &&
           (a.size() < kPairs || a.size() % 40 != 0 || !could_show(a, b, 0.025))) {
      a.push_back(machine.sample(100)), b.push_back(machine.sample(100 * ratio));
      b.push_back(machine.sample(100 * ratio)), a.push_back(machine.sample(100));
    }
    called.add(judge_paired(a, b, Better::kHigher));
  }
  return called;
}

TEST(CouldShow, DependsOnTheNoiseAlone) {
  std::vector<double> a, b, still;
  for (int i = 0; i < 40; ++i) {
    a.push_back(100), still.push_back(100 + 0.01 * (i % 5)), b.push_back(100 + 4.0 * (i * 7 % 11));
  }
  EXPECT_TRUE(could_show(a, still, 0.025));
  EXPECT_FALSE(could_show(a, b, 0.025));
  for (double& x : still) x *= 0.5;
  for (double& x : b) x *= 0.5;
  EXPECT_TRUE(could_show(a, still, 0.025));
  EXPECT_FALSE(could_show(a, b, 0.025));
  EXPECT_FALSE(could_show({}, {}, 0.025));
}

TEST(CouldShow, EndsWhereFivePercentIsFound) {
  const Noise heavy = {.white = 0.15, .wander = 0.02, .outliers = 0.1, .bursts = 0.05};
  EXPECT_LE(paired(heavy, 0.95, kPairs).slower, kTrials / 2);
  EXPECT_GE(until_shown(heavy, 0.95).slower, kLongTrials * 19 / 20);
  const Called same = until_shown(heavy, 1);
  EXPECT_LE(same.faster + same.slower, kLongTrials / 10);
  EXPECT_EQ(until_shown(heavy, 1.01).slower, 0);
}

TEST(JudgeRuns, DoesNotCallTheSameDifferent) {
  for (const int samples : {5, 10, 20}) {
    for (const Noise& noise : kKinds) {
      const Called called = in_two_runs(noise, 1, samples);
      EXPECT_LE(called.faster + called.slower, kTrials / 20)
          << samples << " samples, kind " << &noise - kKinds;
    }
  }
}

TEST(JudgeRuns, FindsFivePercentWhereTheMachineIsStill) {
  EXPECT_GE(in_two_runs(kKinds[0], 0.95, 10).slower, kTrials * 19 / 20);
  EXPECT_GE(in_two_runs(kKinds[1], 1.05, 40).faster, kTrials * 19 / 20);
}

TEST(JudgeRuns, HoldsAMovedLimitAgainstADifference) {
  const std::vector<double> a = {100, 101, 99, 100, 100.5, 99.5}, b = {90, 91, 89, 90, 90.5, 89.5};
  EXPECT_EQ(judge_runs(a, b, Better::kHigher).verdict, SpeedVerdict::kSlower);
  EXPECT_TRUE(judge_runs(a, b, Better::kHigher).is_regression());
  const Difference moved = judge_runs(a, b, Better::kHigher, {.size = 0.12});
  EXPECT_EQ(moved.verdict, SpeedVerdict::kUnclear);
  EXPECT_NE(moved.because.find("limit"), std::string::npos);
}

TEST(Judge, SaysWhyTooLittleIsNoVerdict) {
  const std::vector<double> few = {1, 2, 3}, none;
  EXPECT_NE(judge_runs(few, few, Better::kHigher).because.find("too few"), std::string::npos);
  EXPECT_NE(judge_paired(few, few, Better::kHigher).because.find("too few"), std::string::npos);
  EXPECT_EQ(judge_runs(none, few, Better::kHigher).verdict, SpeedVerdict::kUnclear);
  const std::vector<double> zeros(20, 0.0);
  EXPECT_EQ(judge_paired(zeros, zeros, Better::kHigher).verdict, SpeedVerdict::kUnclear);
}

TEST(Judge, SaysThatASmallDifferenceIsNotCalled) {
  std::vector<double> a, b;  // always more: mostly by half a percent, else by 4
  for (int i = 0; i < 40; ++i) a.push_back(100), b.push_back(i * 7 % 40 < 22 ? 100.5 : 104);
  const Difference d = judge_paired(a, b, Better::kHigher);
  EXPECT_EQ(d.verdict, SpeedVerdict::kUnclear);
  EXPECT_GT(d.low, 0);
  EXPECT_LT(d.p, kGreatestP);
  EXPECT_EQ(d.because, "differences below 1% are not called");
}

TEST(JudgeAnswers, AreJudgedInPairsOfTheSameQuestion) {
  std::vector<double> half, more, few;
  for (int i = 0; i < 200; ++i) {
    half.push_back(i % 2);
    more.push_back(i % 2 == 1 || i % 10 == 0 ? 1 : 0);  // 20 more are right, and none is wrong
    few.push_back(i % 2 == 1 || i < 3 ? 1 : 0);
  }
  const Difference better = judge_answers(half, more);
  EXPECT_EQ(better.verdict, SpeedVerdict::kFaster);
  EXPECT_NEAR(better.relative, 0.2, 1e-12) << "60% of the questions instead of 50%";
  EXPECT_GT(better.low, 0);
  const Difference worse = judge_answers(more, half);
  EXPECT_EQ(worse.verdict, SpeedVerdict::kSlower);
  EXPECT_TRUE(worse.is_regression());
  EXPECT_EQ(judge_answers(half, few).verdict, SpeedVerdict::kUnclear);
  EXPECT_EQ(judge_answers(half, half).verdict, SpeedVerdict::kSame);
  half.pop_back();
  EXPECT_EQ(judge_answers(half, more).because, "other numbers of questions");
}

TEST(JudgeExact, CallsEveryDifference) {
  const std::vector<double> a = {1, 2}, b = {1, 2.001};
  EXPECT_EQ(judge_exact(a, a, Better::kLower).verdict, SpeedVerdict::kSame);
  EXPECT_EQ(judge_exact(a, b, Better::kLower).verdict, SpeedVerdict::kSlower);
  EXPECT_EQ(judge_exact(b, a, Better::kLower).verdict, SpeedVerdict::kFaster);
}

}  // namespace
}  // namespace moxie
