// The rule of low-precision outputs on cases computed by hand, and the order of its tolerances.
#include "lab/low_bit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/formats.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

std::vector<uint16_t> words(const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (const float value : values) bits.push_back(f32_to_bf16(value));
  return bits;
}
LowBitVerdict judge(const std::vector<float>& output, const std::vector<float>& reference,
                    const LowBitTolerance& tolerance = {}) {
  return judge_low_bit(words(output), words(reference), tolerance);
}

TEST(LowBit, AnOutputIsOffOnlyIfBothErrorsAre) {
  const LowBitTolerance t{.rtol = 0.25, .atol = 0.5, .required_matched_ratio = 0.75};
  // Relative and absolute error: 0.5 and 0.5, 0.125 and 1, 0.5 and 2, 0 and 0.
  const LowBitVerdict v = judge({1.5f, 9, -2, 3}, {1, 8, -4, 3}, t);
  EXPECT_DOUBLE_EQ(v.matched_ratio, 0.75);
  EXPECT_TRUE(v.passes);
  EXPECT_DOUBLE_EQ(v.max_absolute_error, 2);
  EXPECT_NEAR(v.max_relative_error, 0.5, 1e-7);
  EXPECT_FALSE(judge({1.5f, 9, -2, 3}, {1, 8, -4, 3}, {0.25, 0.5, 0.76}).passes);
}

TEST(LowBit, AnErrorAtItsToleranceMatches) {
  EXPECT_EQ(judge({1.5f}, {1}, {.rtol = 0, .atol = 0.5, .required_matched_ratio = 1}).matched_ratio,
            1);
  EXPECT_EQ(
      judge({1.5f}, {1}, {.rtol = 0, .atol = 0.49, .required_matched_ratio = 1}).matched_ratio, 0);
}

TEST(LowBit, TheRelativeErrorOfAZeroReferenceIsFinite) {
  const LowBitVerdict v = judge({1}, {0});
  EXPECT_DOUBLE_EQ(v.max_relative_error, 1e8);
  EXPECT_FALSE(v.passes);
}

TEST(LowBit, NansAndInfinitiesFail) {
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    const LowBitVerdict v = judge({1, bad}, {1, 1}, {1e9, 1e9, 0});
    EXPECT_FALSE(v.is_finite);
    EXPECT_FALSE(v.passes);
  }
  // A NaN of the reference is matched by nothing.
  const LowBitVerdict v = judge({1, 1}, {1, std::nanf("")});
  EXPECT_TRUE(v.is_finite);
  EXPECT_DOUBLE_EQ(v.matched_ratio, 0.5);
}

TEST(LowBit, NoOutputsMatch) { EXPECT_TRUE(judge({}, {}).passes); }

TEST(LowBit, TheNearestSourceOfAToleranceWins) {
  const Json config = Json::parse(R"({
    "rtol": 0.1, "atol": 0.1, "required_matched_ratio": 0.1,
    "op_type_config": {"moe": {"rtol": 0.2, "atol": 0.2}, "gemm": {"rtol": 0.9}},
    "definition_config": {"d": {"rtol": 0.3}}})");
  const auto of = [&](const char* definition, const char* type, const LowBitOverrides& overrides) {
    return low_bit_tolerance(config, definition, type, overrides, "c").value();
  };
  const LowBitTolerance all = of("d", "moe", {.atol = 0.4});
  EXPECT_EQ(all.rtol, 0.3);
  EXPECT_EQ(all.atol, 0.4);
  EXPECT_EQ(all.required_matched_ratio, 0.1);
  EXPECT_EQ(of("other", "moe", {}).rtol, 0.2);
  EXPECT_EQ(of("other", "attention", {}).rtol, 0.1);
  const LowBitTolerance defaults = low_bit_tolerance(Json::object(), "d", "moe", {}, "c").value();
  EXPECT_EQ(defaults.rtol, 1e-2);
  EXPECT_EQ(defaults.atol, 1e-2);
  EXPECT_EQ(defaults.required_matched_ratio, 0.95);
}

TEST(LowBit, ABadConfigIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"[]", "c: is not a JSON object"},
      {R"({"rtol": -1})", "c: rtol: is -1, expected a number from 0"},
      {R"({"atol": 1e31})", "expected a number from 0 to 1e+30"},
      {R"({"required_matched_ratio": 1.5})", "expected a number from 0 to 1"},
      {R"({"definition_config": 3})", "definition_config"},
      {R"({"op_type_config": {"moe": []}})", "moe"},
      {R"({"ratio": 1})", "there is no key \"ratio\" (the keys are rtol, atol"},
      {R"({"definition_config": {"d": {"tolerance": 1}}})",
       "definition_config: d: there is no key"},
      {R"({"op_type_config": {"moe": {"Rtol": 1}}})", "op_type_config: moe: there is no key"}};
  for (const auto& [text, says] : cases) {
    const auto found = low_bit_tolerance(Json::parse(text), "d", "moe", {}, "c");
    ASSERT_FALSE(found.has_value()) << text;
    EXPECT_NE(found.error().message().find(says), std::string::npos) << found.error().message();
  }
  // What is not read may be anything.
  const Json others = Json::parse(R"({"definition_config": {"e": {"x": 1}},
                                      "op_type_config": {"gemm": {"rtol": -1}}})");
  EXPECT_TRUE(low_bit_tolerance(others, "d", "moe", {}, "c").has_value());
}

}  // namespace
}  // namespace moxie
