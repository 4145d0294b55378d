// Runs the rows of a table on a case and compares them with the step's reference row.
//
//   expect_rows_agree(OutCase{.tokens = 3, .rows = 100, .weights = DType::kMXFP4}, machine, runs);
// `runs` fails the test if a row that this machine can run refuses all of its cases.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <string_view>

#include "core/device.h"
#include "kernels/row_rounding.h"
#include "kernels/testing/cases.h"
#include "kernels/testing/row_runs.h"

namespace moxie::testing {

/// A CPU device with its stream.
struct TestMachine {
  explicit TestMachine(int num_threads = 2)
      : device(make_cpu_device(num_threads)), stream(device->make_stream().value()) {}
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
};

/// Sets the case afresh, runs the row with exactly the workspace it asks for, returns its outputs.
template <typename P>
std::vector<Output> run_row(Built<P>& built, const Row<P>& row, TestMachine& machine) {
  built.reset();
  P params = built.params;
  const uint64_t bytes = row.workspace(params);
  // Aligned as a launch promises. A row that reads scratch it never wrote must not find zeros.
  const auto free = [](std::byte* at) { ::operator delete (at, std::align_val_t{256}); };
  const std::unique_ptr<std::byte, decltype(free)> workspace(
      static_cast<std::byte*>(::operator new (bytes + 64, std::align_val_t{256})), free);
  std::memset(workspace.get(), 0xFF, bytes + 64);
  params.launch = {
      .stream = machine.stream.get(), .workspace = workspace.get(), .workspace_bytes = bytes};
  row.run(params);
  for (uint64_t i = bytes; i < bytes + 64; ++i) {
    EXPECT_EQ(workspace.get()[i], std::byte{0xFF}) << row.name << " writes past its workspace";
  }
  return built.outputs();
}

/// Fails with the worst cell if `found` leaves the tolerance that the outputs carry.
inline void expect_near(const std::vector<Output>& expected, const std::vector<Output>& found,
                        const std::string& what) {
  ASSERT_EQ(expected.size(), found.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const Output& e = expected[i];
    ASSERT_EQ(e.values.size(), found[i].values.size());
    double greatest = 0, worst = -1;
    size_t worst_idx = 0;
    for (double value : e.values) greatest = std::fmax(greatest, std::fabs(value));
    for (size_t at = 0; at < e.values.size(); ++at) {
      const double tolerance =
          e.rounding * greatest + e.relative * std::fabs(e.values[at]) + e.absolute;
      const double error = std::fabs(found[i].values[at] - e.values[at]);
      const double share = error == 0 ? 0 : error / tolerance;  // tolerance 0: infinity
      if (share > worst || !(share >= 0)) worst = share, worst_idx = at;
      if (!(share >= 0)) break;  // NaN: no worse cell exists
    }
    EXPECT_TRUE(worst <= 1) << what << ": worst cell of " << e.name << " ["
                            << worst_idx / static_cast<size_t>(e.width) << ", "
                            << worst_idx % static_cast<size_t>(e.width)
                            << "]: " << found[i].values[worst_idx] << ", expected "
                            << e.values[worst_idx] << ", " << worst << " times the tolerance";
  }
}

template <typename P>
const Row<P>& row_named(const std::string& name) {
  for (const Row<P>& row : Op<P>::rows()) {
    if (row.name == name) return row;
  }
  CHECK(false, name);
  return Op<P>::rows()[0];
}

using moxie::activation_rounding;
template <typename P>
double activation_rounding(const Row<P>& row) {
  return activation_rounding(std::string_view(row.name));
}

/// Every CPU row of the table against the reference row.
template <typename Case>
void expect_rows_agree(const Case& c, TestMachine& machine, RowRuns& runs) {
  using P = typename Case::Params;
  Built<P> built = build(c);
  const Row<P>& reference = row_named<P>(std::string(Op<P>::info.name) + "_reference");
  ASSERT_STREQ(reference.refuses(built.params), nullptr) << c.name();
  const std::vector<Output> reference_outputs = run_row(built, reference, machine);
  runs.ran(reference.name);
  for (const Row<P>& row : Op<P>::rows()) {
    if (row.device != DeviceKind::kCpu || &row == &reference) continue;
    std::vector<Output> expected = reference_outputs;
    for (Output& output : expected) output.rounding += activation_rounding(row);
    EXPECT_STREQ(row.refuses(c.sizes()), row.refuses(built.params)) << row.name << " sees no data";
    if (const Features missing = row.needs & ~cpu_features(); missing != 0) {
      runs.cannot_run(row.name, missing);
    } else if (const char* why = row.refuses(built.params)) {
      runs.refused(row.name, why);
    } else {
      runs.ran(row.name);
      expect_near(expected, run_row(built, row, machine),
                  std::string(row.name) + " on " + c.name());
    }
  }
}

}  // namespace moxie::testing
