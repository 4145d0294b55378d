// Statistics against values worked out by hand.
#include "lab/stats.h"

#include <gtest/gtest.h>

#include <vector>

namespace moxie {
namespace {

TEST(Summarize, GivesZerosForNoSamples) {
  const Summary summary = summarize({});
  EXPECT_EQ(summary.count, 0);
  EXPECT_EQ(summary.mean, 0);
  EXPECT_EQ(summary.p99, 0);
}

TEST(Summarize, HasNoSpreadForOneSample) {
  const std::vector<double> samples = {4.5};
  const Summary summary = summarize(samples);
  EXPECT_EQ(summary.count, 1);
  EXPECT_EQ(summary.mean, 4.5);
  EXPECT_EQ(summary.median, 4.5);
  EXPECT_EQ(summary.stdev, 0);
  EXPECT_EQ(summary.mad, 0);
  EXPECT_EQ(summary.p99, 4.5);
}

TEST(Summarize, DoesNotDependOnOrder) {
  const std::vector<double> samples = {9, 2, 5, 4, 4, 7, 5, 4};  // 2 4 4 4 5 5 7 9
  const Summary summary = summarize(samples);
  EXPECT_EQ(summary.mean, 5);
  EXPECT_DOUBLE_EQ(summary.stdev, 2.1380899352993952);  // sqrt(32 / 7)
  EXPECT_EQ(summary.median, 4.5);
  EXPECT_EQ(summary.mad, 0.5);  // 0.5 0.5 0.5 0.5 0.5 2.5 2.5 4.5
  EXPECT_EQ(summary.min, 2);
  EXPECT_EQ(summary.max, 9);
}

TEST(Summarize, KeepsASmallSpreadOnALargeMean) {
  const std::vector<double> samples = {1e9 + 1, 1e9 + 2, 1e9 + 3};
  EXPECT_DOUBLE_EQ(summarize(samples).stdev, 1);
}

TEST(Summarize, MedianAndMadIgnoreOneOutlier) {
  const std::vector<double> samples = {10, 11, 12, 13, 1000};
  EXPECT_EQ(summarize(samples).median, 12);
  EXPECT_EQ(summarize(samples).mad, 1);
}

TEST(Percentile, IsLinearBetweenRanks) {
  const std::vector<double> samples = {40, 10, 30, 20};
  EXPECT_EQ(percentile(samples, 0), 10);
  EXPECT_EQ(percentile(samples, 1), 40);
  EXPECT_EQ(percentile(samples, 0.5), 25);
  EXPECT_DOUBLE_EQ(percentile(samples, 0.9), 37);
}

}  // namespace
}  // namespace moxie
