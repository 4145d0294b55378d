// Records that can be compared and those that cannot; what differed is told.
#include "lab/compare.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lab/testing/sample_record.h"

namespace moxie {
namespace {

// The sample record with its first series `factor` times as fast.
Record scaled(double factor) {
  Record record = sample_record();
  for (double& sample : record.results[0].samples) sample *= factor;
  return record;
}

std::string fault_of(const Record& a, const Record& b) {
  const auto comparison = compare_records(a, b, "a.json", "b.json");
  return comparison ? "none" : comparison.error().message();
}

bool has_changed(const Comparison& comparison, const std::string& what) {
  for (const ChangedCondition& one : comparison.changed)
    if (one.what == what) return true;
  return false;
}

TEST(CompareRecords, CallsTheSameTheSame) {
  const auto comparison = compare_records(sample_record(), sample_record(), "a", "b");
  ASSERT_TRUE(comparison.has_value());
  ASSERT_EQ(comparison->series.size(), 2u);
  EXPECT_NE(comparison->series[0].difference.verdict, SpeedVerdict::kSlower);
  EXPECT_TRUE(comparison->changed.empty());
  EXPECT_FALSE(comparison->has_regression());
}

TEST(CompareRecords, AnswersAreSharesAndNoSpeeds) {
  Record a = sample_record(), b = sample_record();
  for (Record* record : {&a, &b}) {
    record->results.resize(1);
    record->results[0].unit = kAnswerUnit;
    record->results[0].samples.assign(100, 1);
  }
  for (size_t i = 0; i < 40; ++i) b.results[0].samples[2 * i] = 0;
  b.environment.cpu_used_by_others = 0.9;  // which changes no answer
  const auto comparison = compare_records(a, b, "a", "b");
  ASSERT_TRUE(comparison.has_value()) << comparison.error().message();
  EXPECT_EQ(comparison->series[0].verdict(), "worse");
  EXPECT_NEAR(comparison->series[0].median_b, 0.6, 1e-12);
}

TEST(CompareRecords, FindsARegression) {
  const auto comparison = compare_records(sample_record(), scaled(0.5), "a", "b");
  ASSERT_TRUE(comparison.has_value());
  EXPECT_EQ(comparison->series[0].verdict(), "slower");
  EXPECT_TRUE(comparison->has_regression());
  const auto json = to_json(*comparison);
  EXPECT_EQ(json["series"][0]["verdict"], "slower");
  EXPECT_NEAR(json["series"][0]["difference"].get<double>(), -0.5, 1e-12);
  EXPECT_EQ(json["regression"], true);
  EXPECT_EQ(compare_records(scaled(0.5), sample_record(), "a", "b")->series[0].verdict(), "faster");
}

TEST(CompareRecords, HoldsTheMachinesOwnLimitAgainstADifference) {
  Record slow = scaled(0.7);
  slow.machine.read_gb_s *= 0.6;
  EXPECT_EQ(compare_records(sample_record(), slow, "a", "b")->series[0].verdict(), "unclear");
  slow.environment.hostname_hash = "another";  // two machines: their limits are not one that moved
  EXPECT_EQ(compare_records(sample_record(), slow, "a", "b")->series[0].verdict(), "slower");
}

TEST(CompareRecords, HoldsTheRateOfLaunchesAgainstADifference) {
  Record fast = sample_record(), slow = scaled(0.76);
  const std::vector<double> samples = fast.results[0].samples;
  std::vector<double>& launches = slow.results[0].limit_launches_s;
  fast.results[0].limit_launches_s = launches = std::vector<double>(samples.size(), 5e5);
  const auto difference = [&] {
    return compare_records(fast, slow, "a", "b")->series[0].difference;
  };
  EXPECT_EQ(difference().verdict, SpeedVerdict::kSlower);  // the host started kernels as before
  EXPECT_TRUE(difference().is_regression());
  for (double& rate : launches) rate *= 0.9;  // explains 15%
  EXPECT_EQ(difference().verdict, SpeedVerdict::kSlower);
  for (double& rate : launches) rate *= 0.9;
  EXPECT_EQ(difference().verdict, SpeedVerdict::kUnclear);
  EXPECT_EQ(difference().because,
            "the rate at which the host starts kernels moved as much between the runs");
  EXPECT_FALSE(difference().is_regression());
  launches.clear();  // an older record
  EXPECT_EQ(difference().verdict, SpeedVerdict::kSlower);
  slow.machine.read_gb_s *= 0.7;
  EXPECT_EQ(difference().because, "the machine's limit moved as much between the runs");
}

TEST(CompareRecords, TellsChangedConditions) {
  Record other = sample_record();
  other.environment.commit = std::string(40, 'b');
  other.environment.gpus.clear();
  other.configuration[0].value = "fp8_e4m3";
  other.configuration.push_back({"--record", "x.json", "flag"});
  other.kernel_path[0].name = "experts_another";
  const auto comparison = compare_records(sample_record(), other, "a", "b");
  ASSERT_TRUE(comparison.has_value());
  for (const char* what : {"commit", "machine", "driver", "--kv-dtype", "kernels of tg32"})
    EXPECT_TRUE(has_changed(*comparison, what)) << what;
  EXPECT_FALSE(has_changed(*comparison, "--record"));
  EXPECT_FALSE(has_changed(*comparison, "--threads"));
}

TEST(CompareRecords, RefusesWhatIsNotAlike) {
  Record other = sample_record();
  other.results[0].unit = "ms";
  EXPECT_NE(fault_of(sample_record(), other).find("the units of 'tg32' differ"), std::string::npos);
  other = sample_record();
  other.results[1].workload->depth = 2048;
  EXPECT_NE(fault_of(sample_record(), other).find("the workloads of 'itl'"), std::string::npos);
  other = sample_record();
  other.workload.seed = 8;
  EXPECT_NE(fault_of(sample_record(), other).find("the workloads of 'tg32'"), std::string::npos);
  other = sample_record();
  other.kind = "score";
  EXPECT_NE(fault_of(sample_record(), other).find("'bench' and 'score'"), std::string::npos);
  other = sample_record();
  other.valid = false;
  other.invalid_because = {"another row ran"};
  EXPECT_NE(fault_of(sample_record(), other).find("b.json: the record is invalid: another row ran"),
            std::string::npos);
  other = sample_record();
  other.results[0].name = "x", other.results[1].name = "y";
  EXPECT_NE(fault_of(sample_record(), other).find("no series is in both"), std::string::npos);
}

TEST(CompareRecords, ListsWhatOneLacks) {
  Record fewer = sample_record();
  fewer.results.pop_back();
  EXPECT_EQ(compare_records(sample_record(), fewer, "a", "b")->only_a,
            std::vector<std::string>{"itl"});
  EXPECT_EQ(compare_records(fewer, sample_record(), "a", "b")->only_b,
            std::vector<std::string>{"itl"});
}

TEST(CompareRecords, CallsNoDifferenceBesideOtherLoad) {
  Record before = sample_record(), slow = scaled(0.5);
  before.environment.gpus.clear(), slow.environment.gpus.clear();
  slow.environment.cpu_used_by_others = 0.4;
  const auto comparison = compare_records(before, slow, "a", "b");
  EXPECT_EQ(comparison->series[0].verdict(), "unclear");
  EXPECT_EQ(comparison->series[0].difference.because,
            "other processes used 6% and 40% of the cores; bench --vs takes turns");
  EXPECT_FALSE(comparison->has_regression());
  // Beside a GPU the cores hardly matter.
  slow.environment.gpus = sample_record().environment.gpus;
  EXPECT_EQ(compare_records(sample_record(), slow, "a", "b")->series[0].verdict(), "slower");
}

// A record of two sides, the second `factor` times as fast.
Record of_sides(double factor) {
  Record record = sample_record();
  record.details = R"({"vs": "--x 1"})";
  record.results = {{.name = "tg32", .unit = "tok/s"},
                    {.name = "tg32 with --x 1", .unit = "tok/s"}};
  for (int i = 0; i < 20; ++i) {
    record.results[0].samples.push_back(100 + i % 3);
    record.results[1].samples.push_back(factor * (100 + i % 3));
  }
  return record;
}

TEST(CompareSides, JudgesPairs) {
  const auto comparison = compare_sides(of_sides(0.9), "a.json");
  ASSERT_TRUE(comparison.has_value());
  ASSERT_EQ(comparison->series.size(), 1u);
  EXPECT_EQ(comparison->series[0].name, "tg32");
  EXPECT_EQ(comparison->series[0].verdict(), "slower");
  EXPECT_NEAR(comparison->series[0].difference.relative, -0.1, 1e-12);
  EXPECT_TRUE(comparison->has_regression());
  EXPECT_EQ(compare_sides(of_sides(1), "a.json")->series[0].verdict(), "same");
  EXPECT_EQ(switches_of_second(of_sides(1)), "--x 1");
}

TEST(CompareSides, RefusesWhatHasNoSides) {
  const auto fault = [](const Record& record) {
    const auto comparison = compare_sides(record, "a.json");
    return comparison ? "none" : comparison.error().message();
  };
  EXPECT_NE(fault(sample_record()).find("only if `bench --vs` made it"), std::string::npos);
  Record record = of_sides(1);
  record.results[1].samples.pop_back();
  EXPECT_NE(fault(record).find("have 20 and 19 samples"), std::string::npos);
  record = of_sides(1);
  record.valid = false;
  EXPECT_NE(fault(record).find("a.json: the record is invalid"), std::string::npos);
  record = of_sides(1);
  record.details = R"({"vs": 3})";
  EXPECT_NE(fault(record).find("only if"), std::string::npos);
}

TEST(CompareRecords, CallsExactValuesBetterOrWorse) {
  Record a = sample_record();
  a.results = {{.name = "nll",
                .unit = "nats",
                .samples = {1, 2},
                .better = Better::kLower,
                .is_exact = true}};
  Record b = a;
  EXPECT_EQ(compare_records(a, b, "a", "b")->series[0].verdict(), "same");
  b.results[0].samples[0] = 1.5;
  EXPECT_EQ(compare_records(a, b, "a", "b")->series[0].verdict(), "worse");
  EXPECT_EQ(compare_records(b, a, "b", "a")->series[0].verdict(), "better");
}

}  // namespace
}  // namespace moxie
