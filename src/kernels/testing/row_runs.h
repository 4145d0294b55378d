// Counts the cases of a test by row, so that no row passes a test by refusing all of its cases.
//
//   RowRuns runs;  // of a test, or of a test suite
//   for (const auto& row : table) { ... runs.ran(row.name); or runs.refused(row.name, why); }
// The end of its life fails the test if there was no case, or if a row that the machine can run
// ran in none. Rows that the machine cannot run are printed.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include "kernels/features.h"

namespace moxie::testing {

class RowRuns {
 public:
  RowRuns() = default;
  RowRuns(const RowRuns&) = delete;
  RowRuns& operator=(const RowRuns&) = delete;
  ~RowRuns() {
    for (const auto& [row, missing] : cannot_run_)
      std::printf("  not run here: %s, needs %s\n", row.c_str(), feature_names(missing).c_str());
    if (!is_judged_) return;
    EXPECT_FALSE(cases_.empty()) << "the test has no case that a row of this machine could run";
    for (const auto& [row, cases] : cases_) {
      for (const auto& [why, count] : cases.refusals)
        std::printf("  refused on %d cases: %s: %s\n", count, row.c_str(), why.c_str());
      EXPECT_GT(cases.num_run, 0) << row << " refuses every case of this test";
    }
  }

  void ran(const std::string& row) { ++cases_[row].num_run; }
  void refused(const std::string& row, const std::string& why) { ++cases_[row].refusals[why]; }
  /// The machine lacks these.
  void cannot_run(const std::string& row, Features missing) { cannot_run_[row] = missing; }
  /// For suites of which only some tests run.
  void do_not_judge() { is_judged_ = false; }

 private:
  struct Cases {
    int num_run = 0;
    std::map<std::string, int> refusals;  // cases by reason
  };
  std::map<std::string, Cases> cases_;
  std::map<std::string, Features> cannot_run_;
  bool is_judged_ = true;
};

/// The count of a whole suite, whose tests share out a table's rows among them: the fixture's
/// SetUpTestSuite makes it and its TearDownTestSuite ends it. A run of a part of the suite (a
/// filter, a shard) is not judged.
class SuiteRowRuns {
 public:
  void begin() { runs_ = std::make_unique<RowRuns>(); }
  void end() {
    const ::testing::TestSuite& suite = *::testing::UnitTest::GetInstance()->current_test_suite();
    if (suite.test_to_run_count() + suite.disabled_test_count() < suite.total_test_count() ||
        suite.failed_test_count() > 0)
      runs_->do_not_judge();
    runs_.reset();
  }
  RowRuns& operator*() { return *runs_; }
  RowRuns* operator->() { return runs_.get(); }

 private:
  std::unique_ptr<RowRuns> runs_;
};

}  // namespace moxie::testing
