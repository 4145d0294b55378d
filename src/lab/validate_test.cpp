// The report's JSON and record, names of rows, differences of paths, and changes of figures.
#include "lab/validate.h"

#include <nlohmann/json.hpp>

#include "lab/testing/validate_case.h"
#include "lab/validate_path.h"
#include "lab/validate_regression.h"

namespace moxie::testing {
namespace {

using Level = ValidateLevel;

TEST_F(ValidateTest, LevelsHaveNumbers) {
  for (const char* number : {"1", "1.5", "2", "3", "4", "5"}) {
    const auto level = parse_validate_level(number);
    ASSERT_TRUE(level.has_value()) << number;
    EXPECT_STREQ(level_number(*level), number);
  }
  for (const char* number : {"", "0", "6", "1.50", "x"})
    EXPECT_FALSE(parse_validate_level(number).has_value()) << number;
}

TEST_F(ValidateTest, ASoundModelPassesLevelsUpToFour) {
  ValidateOptions o = options(Level::kBenchmark);
  o.engine.max_model_len = 560;  // room for pp512
  const ValidateReport report = run(o);
  expect_sound(report);
  const auto json = to_json(report);
  EXPECT_EQ(json["valid"], true);
  ASSERT_EQ(json["levels"].size(), 5u);
  EXPECT_EQ(json["levels"][1]["level"], 1.5);
  EXPECT_EQ(json["levels"][4]["level"], 4);
  for (const auto& level : json["levels"]) {
    EXPECT_EQ(level["passed"], true);
    for (const auto& check : level["checks"]) {
      EXPECT_TRUE(check["name"].is_string() && check["bar"].is_string());
      EXPECT_EQ(check["passed"], true);
      EXPECT_TRUE(check["value"].is_string() || check["value"].is_number());
    }
  }
  EXPECT_EQ(json["conditions"]["quick"], true);
  // The context has no room for the deeper tests: this is said.
  EXPECT_FALSE(json["levels"][4]["omitted"].empty());

  const Record record = record_of(report, {{"level", "4", "flag"}});
  EXPECT_FALSE(record.kernel_path.empty());
  EXPECT_GT(record.memory_peak_bytes, 0u);
  std::vector<std::string> names;
  for (const Series& series : record.results) {
    names.push_back(series.name);
    EXPECT_FALSE(series.samples.empty()) << series.name;
  }
  for (const char* name : {"pp512", "tg32", "tg128", "ttft pp512+tg32@c1", "itl pp512+tg32@c4"})
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
}

TEST_F(ValidateTest, BatchInvariantRowsGiveEqualTokensInEveryBatch) {
  ValidateOptions o = options(Level::kCorrectness);
  o.engine.batch_invariant = "on";
  expect_sound(run(o));
}

TEST_F(ValidateTest, DraftsGiveTheSameTokens) {
  ValidateOptions o = options(Level::kCorrectness);
  o.engine.speculation.method = SpecMethod::kNgram;
  const ValidateReport report = run(o);
  expect_sound(report);
  const auto& checks = report.find(Level::kCorrectness)->checks;
  EXPECT_TRUE(std::any_of(checks.begin(), checks.end(), [](const ValidateCheck& check) {
    return check.name == "same tokens, with drafts";
  }));
}

TEST_F(ValidateTest, ALevelDoesNotStartBehindOneThatFailed) {
  ValidateOptions o = options(Level::kBenchmark);
  o.forbid = {"embed=reference"};
  o.engine.kernels = {"embed=reference"};
  const auto json = to_json(run(o));
  EXPECT_EQ(json["valid"], false);
  ASSERT_EQ(json["levels"].size(), 5u);
  for (const size_t i : {2, 3, 4}) {
    EXPECT_EQ(json["levels"][i]["passed"], false);
    EXPECT_EQ(json["levels"][i]["not_run"], "level 1.5 failed");
    EXPECT_TRUE(json["levels"][i]["checks"].empty());
  }
}

TEST(NamedRows, AreThoseThatKernelMeans) {
  const auto gemv = parse_named_rows("experts=gemv", "--expect");
  ASSERT_TRUE(gemv.has_value());
  EXPECT_EQ(gemv->step, "experts");
  EXPECT_GT(gemv->names.size(), 1u);
  const auto reference = parse_named_rows("qkv=reference", "--expect");
  ASSERT_TRUE(reference.has_value());
  EXPECT_EQ(reference->names, std::vector<std::string>{"qkv_reference"});
  for (const char* text :
       {"", "experts", "experts=", "expert=gemv", "all=reference", "experts=auto", "experts=gemw"})
    EXPECT_FALSE(parse_named_rows(text, "--forbid").has_value()) << text;
}

TEST(Difference, NamesRowsThatAreMissingAddedOrCountedOtherwise) {
  const RowLaunches planned = {{{"out", "a"}, 3}, {{"qkv", "b"}, 3}};
  EXPECT_EQ(difference(planned, planned, false), "");
  EXPECT_NE(difference(planned, {{{"out", "a"}, 3}}, false).find("qkv=b was planned 3 times"),
            std::string::npos);
  const RowLaunches more = {{{"out", "a"}, 3}, {{"qkv", "b"}, 4}, {{"qkv", "c"}, 1}};
  EXPECT_NE(difference(planned, more, false).find("qkv=c ran 1 times"), std::string::npos);
  EXPECT_NE(difference(planned, more, false).find("qkv=b was planned 3 times and ran 4"),
            std::string::npos);
  EXPECT_EQ(difference(planned, more, true), "");
}

TEST(SpeedDifferences, AreOfSpeedsOfTheSameName) {
  const Record before{.results = {{"tg32", "tok/s", {100, 101, 99, 100, 100}},
                                  {"ttft", "ms", {1, 1, 1}},
                                  {"pp512", "tok/s", {10, 10, 10}}}};
  const Record now{.results = {{"tg32", "tok/s", {95, 95.5, 94.5, 95, 95}},
                               {"ttft", "ms", {2, 2, 2}},
                               {"pp2048", "tok/s", {10, 10, 10}}}};
  const auto differences = speed_differences(before, now);
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_EQ(differences[0].name, "tg32");
  EXPECT_NEAR(differences[0].difference.relative, -0.05, 1e-12);
  EXPECT_TRUE(differences[0].difference.is_regression());
}

TEST(SpeedDifferences, DoNotTakeNoiseForARegression) {
  const Record before{.results = {{"tg32", "tok/s", {100, 120, 80, 105, 92}}}};
  const Record now{.results = {{"tg32", "tok/s", {95, 118, 78, 101, 90}}}};
  const auto differences = speed_differences(before, now);
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_LT(differences[0].difference.relative, -0.03);
  EXPECT_EQ(differences[0].difference.verdict, SpeedVerdict::kUnclear);
}

TEST(MemoryInUse, SeesWhatIsHeld) {
  const MemoryInUse before = memory_in_use();
  const std::vector<char> held(1 << 20, 'x');
  const MemoryInUse with = memory_in_use();
  EXPECT_GT(before.resident_bytes, 0u);
  EXPECT_GE(with.heap_bytes, before.heap_bytes + held.size());
}

}  // namespace
}  // namespace moxie::testing
