// One log a process, as there is one profiler.
#include "core/launch_log.h"

#include <atomic>
#include <mutex>
#include <utility>

#include "core/base.h"

namespace moxie {
namespace {

// Listeners to launches: the log, and threads that capture.
std::atomic<int> g_num_listeners{0};
thread_local const void* t_op = nullptr;
thread_local std::vector<NotedLaunch>* t_captured = nullptr;

struct Log {
  std::mutex mutex;
  bool is_on = false;
  std::vector<NotedLaunch> launches;
};

Log& the_log() {
  static auto* log = new Log;
  return *log;
}

bool has_listeners() { return g_num_listeners.load(std::memory_order_relaxed) != 0; }

}  // namespace

OpScope::OpScope(const void* op) : outer_(std::exchange(t_op, op)) {}
OpScope::~OpScope() { t_op = outer_; }

LaunchCapture::LaunchCapture() {
  CHECK(t_captured == nullptr, "captures do not nest");
  t_captured = &launches_;
  ++g_num_listeners;
}
LaunchCapture::~LaunchCapture() {
  --g_num_listeners;
  t_captured = nullptr;
}

void note_launch(const void* kernel, const void* stream) {
  if (!has_listeners()) return;
  const NotedLaunch launch{kernel, t_op, stream};
  if (t_captured != nullptr) return t_captured->push_back(launch);
  Log& log = the_log();
  const std::lock_guard lock(log.mutex);
  if (log.is_on) log.launches.push_back(launch);
}

void note_graph_launch(std::span<const NotedLaunch> captured, const void* stream) {
  if (!has_listeners()) return;
  Log& log = the_log();
  const std::lock_guard lock(log.mutex);
  if (!log.is_on) return;
  for (const NotedLaunch& launch : captured) {
    log.launches.push_back({launch.kernel, launch.op, stream});
  }
}

void start_launch_log() {
  Log& log = the_log();
  const std::lock_guard lock(log.mutex);
  log.launches.clear();
  if (!std::exchange(log.is_on, true)) ++g_num_listeners;
}

std::vector<NotedLaunch> stop_launch_log() {
  Log& log = the_log();
  const std::lock_guard lock(log.mutex);
  if (std::exchange(log.is_on, false)) --g_num_listeners;
  return std::exchange(log.launches, {});
}

}  // namespace moxie
