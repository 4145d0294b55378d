// Which lengths are chosen for given chances and costs, and that a life of choices costs little
// where drafts never pay and gains what there is to gain where they do.
#include "engine/draft_length.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <random>

namespace moxie {
namespace {

using Cost = std::function<double(int32_t tokens)>;

// Costs as if launches of all sizes up to `most` had been seen.
StepCosts costs_of(const Cost& plain, const Cost& drafted, int32_t most = 64) {
  StepCosts costs;
  for (int32_t n = 1; n <= most; ++n) {
    for (int i = 0; i < 3; ++i) {
      costs.add(false, n, plain(n));
      costs.add(true, n, drafted(n));
    }
  }
  return costs;
}

// An estimate that has seen so many launches accept so many drafts.
AcceptanceEstimate seen(int32_t num_drafts, int32_t num_accepted, int times = 100) {
  AcceptanceEstimate estimate;
  for (int i = 0; i < times; ++i) estimate.add(num_drafts, num_accepted);
  return estimate;
}

int32_t chosen(const StepCosts& costs, const AcceptanceEstimate& estimate, int32_t limit) {
  DraftChooser chooser;
  std::vector<int32_t> lengths;
  const DraftAsk ask{&estimate, limit};
  chooser.choose(costs, 1, limit, {&ask, 1}, &lengths);
  return lengths.front();
}

TEST(AcceptanceEstimateTest, PlacesBehindARejectedDraftAreNotJudged) {
  AcceptanceEstimate estimate;
  std::vector<double> before, after;
  estimate.survival(4, &before);
  for (size_t i = 1; i < before.size(); ++i) EXPECT_LT(before[i], before[i - 1]);
  for (int i = 0; i < 200; ++i) estimate.add(4, 1);
  estimate.survival(4, &after);
  EXPECT_GT(after[0], 0.95);
  EXPECT_LT(after[1], 0.05);
  EXPECT_NEAR(after[2] / after[1], before[2] / before[1], 1e-9);  // as unknown as it was
}

TEST(AcceptanceEstimateTest, RatesAreThoseThatAreSeen) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> draw(0, 1);
  AcceptanceEstimate estimate;
  double mean = 0;
  constexpr int kLaunches = 4000;
  for (int i = 0; i < kLaunches; ++i) {
    estimate.add(2, draw(random) < 0.6 ? (draw(random) < 0.5 ? 2 : 1) : 0);
    std::vector<double> survival;
    estimate.survival(2, &survival);
    mean += survival[1] / kLaunches;
  }
  EXPECT_NEAR(mean, 0.3, 0.03);
}

TEST(StepCostsTest, TimesAreInterpolatedAndHiccupsCountLittle) {
  StepCosts costs;
  EXPECT_FALSE(costs.knows_plain(1));
  costs.add(false, 1, 50);  // what is made once
  EXPECT_FALSE(costs.knows_plain(1));
  costs.add(false, 1, 1);
  EXPECT_TRUE(costs.knows_plain(1));
  EXPECT_FALSE(costs.knows_plain(3));
  EXPECT_EQ(costs.plain_s(1), 1);
  for (int i = 0; i < 3; ++i) costs.add(false, 5, 3);
  EXPECT_TRUE(costs.knows_plain(3));
  EXPECT_NEAR(costs.plain_s(3), 2, 1e-9);
  for (int i = 0; i < 100; ++i) costs.add(false, 1, 1);
  costs.add(false, 1, 1000);
  EXPECT_LT(costs.plain_s(1), 1.2);
  // Nothing drafted was seen: it costs what it costs without drafts, so that it is tried.
  EXPECT_EQ(costs.drafted_s(5, 9), costs.plain_s(5));
  for (int i = 0; i < 3; ++i) costs.add(true, 9, 7);
  EXPECT_NEAR(costs.drafted_s(5, 7), 5, 1e-9);  // half way from 3 to 7
  EXPECT_NEAR(costs.drafted_s(5, 20), 7, 1e-9);
  for (int32_t n = 60; n < 400; ++n) costs.add(true, n, n);
  for (int32_t n = 70; n < 390; ++n) EXPECT_NEAR(costs.drafted_s(5, n), n, 0.1 * n) << n;
}

TEST(DraftChooserTest, DraftsAreTakenWhileTheyPay) {
  const auto flat = [](int32_t) { return 1.0; };
  const auto steep = [](int32_t n) { return static_cast<double>(n); };
  // A launch costs the same for any number of tokens: all drafts pay, unless none is accepted.
  EXPECT_EQ(chosen(costs_of(flat, flat), seen(7, 7), 7), 7);
  EXPECT_EQ(chosen(costs_of(flat, flat), seen(7, 2), 7), 7);
  // Each token costs a launch: none can pay.
  EXPECT_EQ(chosen(costs_of(flat, steep), seen(7, 7), 7), 0);
  // Times of a model of experts, for one stream: 1.16, 1.75, 2.25, 2.75, ... 4.59 for 8.
  const auto experts = [](int32_t n) { return 1.16 + 0.49 * (n - 1); };
  EXPECT_EQ(chosen(costs_of(experts, experts), seen(7, 7), 7), 7);
  EXPECT_EQ(chosen(costs_of(experts, experts), seen(7, 2), 7), 2);
  EXPECT_EQ(chosen(costs_of(experts, experts), seen(7, 0), 7), 0);
  // A cliff behind 8 tokens is not crossed for what lies behind it.
  const auto cliff = [](int32_t n) { return n <= 8 ? 1 + 0.05 * n : 3.0; };
  EXPECT_EQ(chosen(costs_of(cliff, cliff), seen(15, 15), 15), 7);
}

TEST(DraftChooserTest, WhatIsLeftGoesToThoseWhoseDraftsAreAccepted) {
  const auto flat = [](int32_t) { return 1.0; };
  const StepCosts costs = costs_of(flat, flat);
  const AcceptanceEstimate good = seen(4, 4), bad = seen(4, 0);
  DraftChooser chooser;
  std::vector<int32_t> lengths;
  const DraftAsk asks[] = {{&bad, 4}, {&good, 4}, {&good, 2}};
  chooser.choose(costs, 3, 6, asks, &lengths);
  EXPECT_EQ(lengths, (std::vector<int32_t>{0, 4, 2}));
  chooser.choose(costs, 3, 0, asks, &lengths);
  EXPECT_EQ(lengths, (std::vector<int32_t>{0, 0, 0}));
}

// One stream from the first launch on, as the scheduler does it; returns tokens a second.
double rate_of_a_life(const Cost& plain, const Cost& drafted, double chance, int32_t num_launches) {
  StepCosts costs;
  AcceptanceEstimate estimate;
  DraftChooser chooser;
  std::vector<int32_t> lengths;
  std::mt19937 random(7);
  std::uniform_real_distribution<double> draw(0, 1);
  bool is_probe = true;
  int32_t pause = 0, num_drafted = 0;
  double tokens = 0, seconds = 0;
  for (int32_t i = 0; i < num_launches; ++i) {
    int32_t length = 0;
    if (pause > 0) {
      is_probe = --pause == 0;
    } else if (!costs.knows_plain(1)) {
      pause = 3;
    } else {
      const DraftAsk ask{&estimate, 7};
      chooser.choose(costs, 1, 7, {&ask, 1}, &lengths);
      length = lengths.front() == 0 && is_probe ? kProbeDrafts : lengths.front();
      if (length == 0) {
        pause = std::min(8 << std::min(9, num_drafted), launches_until_probe(costs, 1)) - 1;
      }
    }
    int32_t accepted = 0;
    while (accepted < length && draw(random) < chance) ++accepted;
    const double took = length > 0 ? drafted(1 + length) : plain(1);
    costs.add(length > 0, 1 + length, took);
    if (length > 0) {
      ++num_drafted;
      estimate.add(length, accepted);
      is_probe = accepted == length && estimate.may_learn_from_probe();
    }
    tokens += 1 + accepted;
    seconds += took;
  }
  return tokens / seconds;
}

TEST(DraftLengthTest, NeverMuchSlowerThanNoneAndFastWhereDraftsAreGood) {
  const auto plain = [](int32_t) { return 1.0; };
  for (const double slope : {0.05, 0.3, 0.6, 1.2}) {
    const auto drafted = [slope](int32_t n) { return 1.05 + slope * (n - 1); };
    for (const double chance : {0.0, 0.2, 0.5, 0.8, 0.97}) {
      double best = 1;  // tokens a second, of the best fixed length
      for (int32_t v = 1; v <= 7; ++v) {
        double yields = 1;
        for (int32_t i = 1; i <= v; ++i) yields += std::pow(chance, i);
        best = std::max(best, yields / drafted(1 + v));
      }
      const double rate = rate_of_a_life(plain, drafted, chance, 20000);
      EXPECT_GT(rate, 0.98) << slope << " " << chance;
      EXPECT_GT(rate, 0.9 * best) << slope << " " << chance;
    }
  }
}

TEST(DraftLengthTest, ProbesCostAboutAHundredth) {
  const auto plain = [](int32_t) { return 1.0; };
  const StepCosts costs = costs_of(plain, [](int32_t n) { return 1.0 + 0.5 * (n - 1); });
  EXPECT_NEAR(launches_until_probe(costs, 1), 100, 1);
  EXPECT_EQ(launches_until_probe(costs_of(plain, plain), 1), 16);
}

TEST(DraftLengthTest, TriesCostAShareHoweverManyWantOne) {
  for (const int32_t num_requests : {1, 64, 256}) {
    ProbeBudget budget;
    double seconds = 0, tried_s = 0;
    int32_t longest_wait = 0, wait = 0;
    for (int32_t launch = 0; launch < 40000; ++launch) {
      const int32_t num_tries = budget.may_try() ? std::min(num_requests, 2) : 0;
      const double took = 1 + 0.3 * num_tries;
      budget.add(took, 1, num_tries);
      seconds += took;
      tried_s += took - 1;
      wait = num_tries > 0 ? 0 : wait + 1;
      longest_wait = std::max(longest_wait, wait);
    }
    // Half of the share: ending a session of the decode loop is counted, too.
    EXPECT_LE(tried_s, 0.003 * seconds) << num_requests;
    EXPECT_GE(tried_s, 0.002 * seconds) << num_requests;  // it never stops trying
    EXPECT_LE(longest_wait, 250) << num_requests;
  }
}

TEST(DraftLengthTest, ATryThatIsAcceptedIsFollowedByOthers) {
  ProbeBudget budget;
  while (budget.may_try()) budget.add(1.3, 1, 1);
  for (int i = 0; !budget.may_try(); ++i) {
    ASSERT_LT(i, 1000);
    budget.add(1, 1, 0);
  }
  for (int i = 0; i < 10; ++i) {
    budget.add(1.3, 1, 1);
    EXPECT_FALSE(budget.may_try());
    budget.give_back();
    EXPECT_TRUE(budget.may_try());
  }
}

}  // namespace
}  // namespace moxie
