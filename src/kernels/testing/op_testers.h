// The testers: for each operation the cases on which its rows are tested and timed. The programs of
// tests and benchmarks take the operations from the list below and name none themselves.
#pragma once

#include <tuple>
#include <vector>

#include "kernels/testing/cases.h"

namespace moxie::testing {

/// The tester of the operation whose Params C describes: op_testers.cpp specialises its functions.
template <typename C>
struct OpTester {
  using Case = C;
  using Params = typename Case::Params;
  /// Small ones: each CPU row is compared with the reference row on those that it takes.
  static std::vector<Case> plain_cases();
  /// Of real sizes, with names that differ: the bench times each CPU row on those that it takes.
  static std::vector<Case> timed_cases();
};

/// One tester for each operation of all_ops(): to add one, give it a line.
constexpr auto all_op_testers() {
  return std::tuple<OpTester<EmbedCase>,    //
                    OpTester<QkvCase>,      //
                    OpTester<AttendCase>,   //
                    OpTester<OutCase>,      //
                    OpTester<RouteCase>,    //
                    OpTester<ExpertsCase>,  //
                    OpTester<UnembedCase>,  //
                    OpTester<SampleCase>,   //
                    OpTester<TapCase>,      //
                    OpTester<ReduceCase>,   //
                    OpTester<GatherCase>,   //
                    OpTester<RmsNormCase>,  //
                    OpTester<GateCase>,     //
                    OpTester<RotateCase>,   //
                    OpTester<MoeFp8Case>>{};
}

/// Calls `visit` with each entry of an operation's bench: a timed case, and a row of this machine
/// that takes it and is not the reference row, which is slow on purpose.
template <typename Tester, typename Visit>
void for_each_timed_row(Visit&& visit) {
  using Params = typename Tester::Params;
  const std::string reference = std::string(Op<Params>::info.name) + "_reference";
  for (const auto& c : Tester::timed_cases()) {
    for (const Row<Params>& row : Op<Params>::rows()) {
      if (row.device == DeviceKind::kCpu && (row.needs & ~cpu_features()) == 0 &&
          row.name != reference && why_not(row, c.sizes()) == nullptr)
        visit(row, c);
    }
  }
}

}  // namespace moxie::testing
