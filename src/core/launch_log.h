// The log of kernel launches: which kernel, in which order, for which operation. A profiler needs
// it beside the device's records, which name a kernel but not the operation that launched it.
//
// The log is off until it is started; while off, a launch costs one relaxed load. Launches that are
// captured into a graph do not run: the graph keeps their entries, and each launch of the graph
// notes them all.
#pragma once

#include <span>
#include <utility>
#include <vector>

namespace moxie {

struct NotedLaunch {
  const void* kernel;  ///< the address of its host function
  const void* op;      ///< operation of the OpScope around the launch; null: none
  const void* stream;  ///< native
};

/// While it lives, this thread's launches belong to `op`, which core only passes on.
class OpScope {
 public:
  explicit OpScope(const void* op);
  ~OpScope();
  OpScope(const OpScope&) = delete;
  OpScope& operator=(const OpScope&) = delete;

 private:
  const void* outer_;
};

/// While it lives, it collects the launches that this thread notes, and the log does not get them.
/// One at a time in a thread.
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

/// Notes a kernel; called once for each that was launched or captured.
void note_launch(const void* kernel, const void* stream);
/// Notes the launches of a graph; called once for each launch of the graph, with what it captured.
void note_graph_launch(std::span<const NotedLaunch> captured, const void* stream);

/// Empties the log and turns it on.
void start_launch_log();
/// Turns the log off. Returns the launches noted since the start, in order.
std::vector<NotedLaunch> stop_launch_log();

}  // namespace moxie
