// What `moxie bench` has beside its tables, each in a file of its own.
#pragma once

#include <string>

#include "apps/bench_flags.h"
#include "lab/compare.h"

namespace moxie {

Command bench_compare_command();
Command bench_replay_command();
Command bench_history_command();

/// `moxie bench --vs SWITCHES`: the tests on two engines in turn, the second with these switches
/// besides the others. Returns the exit code, which no verdict changes.
int bench_against(BenchFlags& o, const std::vector<BenchTest>& tests, const Flags& flags);

/// "| series | unit | A | B | difference | verdict |", a line a series.
void print_comparison(const Comparison& comparison, const std::string& name_a,
                      const std::string& name_b);
/// "+1.3% (-0.2% to 2.9%)"
std::string difference_text(const Difference& difference);

}  // namespace moxie
