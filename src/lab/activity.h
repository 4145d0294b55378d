// What ran when: the records that a profile is made of, and their recorders. On a GPU CUPTI reports
// when each kernel and copy ran, and the launch log for which operation; on the CPU each
// operation's row is timed as a whole.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base.h"
#include "core/clock.h"
#include "core/launch_log.h"
#include "kernels/registry.h"

namespace moxie {

/// Nanoseconds of Clock.
inline int64_t clock_ns(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

/// One kernel, copy or row, in nanoseconds of Clock.
struct Activity {
  int64_t start_ns = 0, end_ns = 0;
  int32_t symbol = 0;  ///< in ActivityLog::symbols
  int32_t stream = 0;
};

struct ActivityLog {
  /// A kernel that serves several operations is a separate symbol for each.
  struct Symbol {
    std::string name;            ///< of a kernel, as CUPTI gives it, of a copy, or of a row
    const OpInfo* op = nullptr;  ///< that it ran for; null: none
    bool operator==(const Symbol&) const = default;
  };
  std::vector<Symbol> symbols;
  std::vector<Activity> activities;  ///< in no order
};

/// What a device's tracer reports of a kernel or a copy.
struct DeviceRecord {
  Activity activity;  ///< its symbol is an index of the tracer's names
  bool is_kernel = false;
  /// Order kernels that started at the same time: by launch, and by place in a graph.
  uint32_t correlation = 0;
  uint64_t graph_node = 0;
};

/// Gives each kernel its operation: kernels of one stream start in the order of their launches.
/// Fails if the records and the launches cannot be of the same kernels (their numbers differ, or a
/// function has two names), or if there were several streams.
Result<ActivityLog> match_launches(const std::vector<std::string>& names,
                                   std::vector<DeviceRecord> records,
                                   std::span<const NotedLaunch> launches);

class ActivityRecorder {
 public:
  virtual ~ActivityRecorder() = default;
  /// Only what runs on this stream's device is recorded from now on: with several ranks, on that of
  /// the first. To be called on the thread that gives it work.
  virtual void watch_only(Stream& /*stream*/) {}
  /// No work may be running.
  virtual Status start() = 0;
  /// All records since start(). The work must have ended. Fails if records were lost.
  virtual Result<ActivityLog> stop() = 0;
  /// Whether it records single kernels, or only whole rows.
  virtual bool sees_kernels() const = 0;
};

/// Times the runs of `kernels`, which must outlive the recorder.
std::unique_ptr<ActivityRecorder> make_step_recorder(KernelChooser& kernels);

/// Loads libcupti: `library` if it is not empty, otherwise by the loader's path, beside this
/// program, or below /usr/local/cuda*. One at a time in a process. It slows nothing before start().
Result<std::unique_ptr<ActivityRecorder>> make_cupti_recorder(const std::string& library);

}  // namespace moxie
