#include "core/launch_log.h"

#include <gtest/gtest.h>

#include <thread>

namespace moxie {
namespace {

constexpr int kKernels[3] = {}, kOps[2] = {}, kStreams[2] = {};

TEST(LaunchLog, HoldsLaunchesInOrderWithTheirOperations) {
  start_launch_log();
  {
    const OpScope outer(&kOps[0]);
    note_launch(&kKernels[0], &kStreams[0]);
    {
      const OpScope inner(&kOps[1]);
      note_launch(&kKernels[1], &kStreams[0]);
    }
    note_launch(&kKernels[2], &kStreams[1]);
    std::thread([] { note_launch(&kKernels[0], &kStreams[0]); }).join();
  }
  note_launch(&kKernels[1], &kStreams[0]);
  const auto log = stop_launch_log();
  ASSERT_EQ(log.size(), 5u);
  const void* const ops[] = {&kOps[0], &kOps[1], &kOps[0], nullptr, nullptr};
  for (size_t i = 0; i < log.size(); ++i) {
    EXPECT_EQ(log[i].kernel, &kKernels[i % 3]) << i;
    EXPECT_EQ(log[i].op, ops[i]) << i << ": an operation is of its thread";
    EXPECT_EQ(log[i].stream, &kStreams[i == 2 ? 1 : 0]) << i;
  }
}

TEST(LaunchLog, HoldsNothingFromBeforeItsStartOrWhileItIsOff) {
  note_launch(&kKernels[0], &kStreams[0]);
  start_launch_log();
  note_launch(&kKernels[1], &kStreams[0]);
  start_launch_log();
  note_launch(&kKernels[2], &kStreams[0]);
  const auto log = stop_launch_log();
  ASSERT_EQ(log.size(), 1u);
  EXPECT_EQ(log[0].kernel, &kKernels[2]);
  note_launch(&kKernels[0], &kStreams[0]);
  EXPECT_TRUE(stop_launch_log().empty());
}

std::vector<NotedLaunch> captured() {
  LaunchCapture capture;
  const OpScope scope(&kOps[0]);
  note_launch(&kKernels[0], &kStreams[0]);
  note_launch(&kKernels[1], &kStreams[0]);
  return capture.take();
}

TEST(LaunchLog, CapturedLaunchesAreNotedWithEachLaunchOfTheirGraph) {
  const auto before = captured();  // the log is off
  ASSERT_EQ(before.size(), 2u);
  start_launch_log();
  const auto graph = captured();
  note_launch(&kKernels[2], &kStreams[0]);
  note_graph_launch(before, &kStreams[1]);
  note_graph_launch(graph, &kStreams[1]);
  const auto log = stop_launch_log();
  ASSERT_EQ(log.size(), 5u) << "a capture runs nothing";
  EXPECT_EQ(log[0].op, nullptr);
  for (size_t i = 1; i < log.size(); ++i) {
    EXPECT_EQ(log[i].kernel, &kKernels[(i + 1) % 2]) << i;
    EXPECT_EQ(log[i].op, &kOps[0]) << i;
    EXPECT_EQ(log[i].stream, &kStreams[1]) << i << ": of the graph's launch";
  }
}

}  // namespace
}  // namespace moxie
