// Figures computed by hand, or from the tables of the papers that the header names.
#include "lab/proportions.h"

#include <gtest/gtest.h>

namespace moxie {
namespace {

TEST(ProportionsTest, WilsonIntervalOfHandComputedCases) {
  // 8 of 10 with z = 2: (0.8 + 0.2 +- 2 sqrt(0.016 + 0.01)) / 1.4.
  const Interval eight = wilson_interval(8, 10, 2);
  EXPECT_NEAR(eight.low, 0.4839355, 1e-6);
  EXPECT_NEAR(eight.high, 0.9446359, 1e-6);
  // None of 10: 0 to z^2 / (n + z^2) = 4 / 14.
  EXPECT_DOUBLE_EQ(wilson_interval(0, 10, 2).low, 0);
  EXPECT_NEAR(wilson_interval(0, 10, 2).high, 4.0 / 14, 1e-12);
  // All of 10: its mirror image.
  EXPECT_NEAR(wilson_interval(10, 10, 2).low, 10.0 / 14, 1e-12);
  EXPECT_DOUBLE_EQ(wilson_interval(10, 10, 2).high, 1);
  EXPECT_DOUBLE_EQ(wilson_interval(0, 0).low, 0);
  EXPECT_DOUBLE_EQ(wilson_interval(0, 0).high, 1);
}

TEST(ProportionsTest, WilsonIntervalsOfComplementsMirrorEachOther) {
  for (int64_t total = 1; total <= 60; ++total) {
    for (int64_t count = 0; count <= total; ++count) {
      const Interval one = wilson_interval(count, total);
      const Interval other = wilson_interval(total - count, total);
      EXPECT_NEAR(one.low, 1 - other.high, 1e-12);
      EXPECT_LE(one.low, static_cast<double>(count) / static_cast<double>(total) + 1e-12);
      EXPECT_GE(one.high, static_cast<double>(count) / static_cast<double>(total) - 1e-12);
      EXPECT_GE(one.low, 0);
      EXPECT_LE(one.high, 1);
    }
  }
}

TEST(ProportionsTest, McNemarsExactTestIsTheBinomialsTwoTails) {
  EXPECT_DOUBLE_EQ(mcnemar_p({.total = 10}), 1);
  // 1 against 5: 2 (1 + 6) / 64.
  EXPECT_NEAR(mcnemar_p({.total = 20, .only_a = 1, .only_b = 5}), 14.0 / 64, 1e-12);
  EXPECT_NEAR(mcnemar_p({.total = 20, .only_a = 5, .only_b = 1}), 14.0 / 64, 1e-12);
  // 0 against 10: 2 / 1024.
  EXPECT_NEAR(mcnemar_p({.total = 20, .only_a = 0, .only_b = 10}), 2.0 / 1024, 1e-12);
  // An even split: both tails together are more than everything.
  EXPECT_DOUBLE_EQ(mcnemar_p({.total = 20, .only_a = 3, .only_b = 3}), 1);
  // Many: factorials of such numbers have no place in a double.
  const double many = mcnemar_p({.total = 9000, .only_a = 900, .only_b = 1100});
  EXPECT_NEAR(many, 8.457e-6, 1e-8);
}

TEST(ProportionsTest, PairedIntervalOfHandComputedCases) {
  const PairedCounts counts{.total = 98, .only_a = 4, .only_b = 9};
  EXPECT_NEAR(paired_difference(counts), 5.0 / 98, 1e-12);
  // (9.5 - 4.5) / 100 +- 2 sqrt(14 - 25 / 100) / 100.
  const Interval interval = paired_difference_interval(counts, 2);
  EXPECT_NEAR(interval.low, 0.05 - 0.0741620, 1e-6);
  EXPECT_NEAR(interval.high, 0.05 + 0.0741620, 1e-6);
  EXPECT_DOUBLE_EQ(paired_difference_interval({}).low, -1);
  EXPECT_DOUBLE_EQ(paired_difference({}), 0);
}

TEST(ProportionsTest, PairedIntervalTurnsItsSignWithTheOrder) {
  const Interval one = paired_difference_interval({.total = 50, .only_a = 7, .only_b = 2});
  const Interval other = paired_difference_interval({.total = 50, .only_a = 2, .only_b = 7});
  EXPECT_NEAR(one.low, -other.high, 1e-12);
  EXPECT_NEAR(one.high, -other.low, 1e-12);
}

}  // namespace
}  // namespace moxie
