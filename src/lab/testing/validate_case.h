// A small model through the levels of a validation, and what its report must say.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "core/testing/paths.h"
#include "kernels/testing/planted_rows.h"
#include "lab/passing_runner.h"
#include "lab/validate.h"

namespace moxie::testing {

class ValidateTest : public ::testing::Test {
 protected:
  ~ValidateTest() override { clear_planted(); }

  /// nano-a with a short context, on two threads.
  static ValidateOptions options(ValidateLevel last) {
    return {.engine = {.model = test_data() + "/goldens/nano-a",
                       .device = "cpu",
                       .threads = 2,
                       .kv_dtype = "f32",
                       .max_model_len = 208,
                       .show_progress = false},
            .last = last,
            .quick = true,
            // Nothing depends on the machine's speed.
            .seams = {.limits = [](Device&) -> Result<MachineLimits> {
                        return MachineLimits{
                            .read_gb_s = 10, .fp32 = {.rate = 100}, .bf16 = {.rate = 100}};
                      },
                      .time_scale = 1e6}};
  }

  static ValidateReport run(const ValidateOptions& options) {
    auto report = validate(options);
    CHECK(report.has_value(), report ? "" : report.error().message());
    return std::move(*report);
  }

  /// Everything passed.
  static void expect_sound(const ValidateReport& report) {
    EXPECT_TRUE(report.passed());
    EXPECT_TRUE(report.invalid_because.empty());
    for (const ValidateLevelReport& level : report.levels) {
      EXPECT_TRUE(level.not_run.empty()) << level_number(level.level) << ": " << level.not_run;
      for (const ValidateCheck& check : level.checks)
        EXPECT_TRUE(check.passed) << check.name << ": " << check.value << "; " << check.bar;
    }
  }

  /// The levels before `level` passed; in `level` a check failed whose name has `part`; the later
  /// ones were not run.
  static void expect_caught(const ValidateReport& report, ValidateLevel level,
                            const std::string& part) {
    EXPECT_FALSE(report.passed());
    for (const ValidateLevelReport& one : report.levels) {
      const std::string number = level_number(one.level);
      if (one.level > level) {
        EXPECT_FALSE(one.not_run.empty()) << "level " << number << " ran";
        continue;
      }
      bool is_caught = false;
      for (const ValidateCheck& check : one.checks) {
        const bool is_it = !check.passed && check.name.find(part) != std::string::npos;
        is_caught = is_caught || (one.level == level && is_it);
        if (one.level < level) {
          EXPECT_TRUE(check.passed) << number << ", " << check.name << ": " << check.value;
        }
      }
      if (one.level == level) {
        EXPECT_TRUE(is_caught) << "no check '" << part << "' failed in level " << number;
      }
    }
    ASSERT_NE(report.find(level), nullptr);
  }
};

}  // namespace moxie::testing
