// The log of launches of kernels: which kernel, in which order, for which operation. A profiler
// needs it beside the device's records, which name a kernel but not the operation that launched it.
//
// The log is off until somebody starts it; a launch then costs one relaxed load. Launches that are
// captured into a graph do not run: the graph keeps their entries, and each launch of the graph
// notes them all.
#pragma once

#include <span>
#include <utility>
#include <vector>

namespace moxie {

struct NotedLaunch {
  const void* kernel;  ///< the address of its host function
  const void* op;      ///< of the OpScope around the launch; null: none
  const void* stream;  ///< native
};

/// While it lives, the launches of this thread are those of `op`, which core only passes on.
class OpScope {
 public:
  explicit OpScope(const void* op);
  ~OpScope();
  OpScope(const OpScope&) = delete;
  OpScope& operator=(const OpScope&) = delete;

 private:
  const void* outer_;
};

/// While it lives, the launches that this thread notes are collected here and not in the log. One
/// at a time in a thread.
class LaunchCapture {
 public:
  LaunchCapture();
  ~LaunchCapture();
  LaunchCapture(const LaunchCapture&) = delete;
  LaunchCapture& operator=(const LaunchCapture&) = delete;

  std::vector<NotedLaunch> take() { return std::move(launches_); }

 private:
  std::vector<NotedLaunch> launches_;
};

/// Once for each kernel that was launched, or captured.
void note_launch(const void* kernel, const void* stream);
/// Once for each launch of a graph, with what was captured into it.
void note_graph_launch(std::span<const NotedLaunch> captured, const void* stream);

/// Empties the log and turns it on.
void start_launch_log();
/// Turns the log off. What was noted since the start, in order.
std::vector<NotedLaunch> stop_launch_log();

}  // namespace moxie
