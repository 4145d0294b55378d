// What ran when: the records that the profile is made of, and who makes them. On a GPU CUPTI tells
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
  /// A kernel may serve several operations: it is a symbol of each.
  struct Symbol {
    std::string name;            ///< of a kernel, as CUPTI gives it, of a copy, or of a row
    const OpInfo* op = nullptr;  ///< that it ran for; null: none
    bool operator==(const Symbol&) const = default;
  };
  std::vector<Symbol> symbols;
  std::vector<Activity> activities;  ///< in no order
};

/// What a device's tracer says of a kernel or a copy.
struct DeviceRecord {
  Activity activity;  ///< its symbol is an index of the tracer's names
  bool is_kernel = false;
  /// Order the kernels that started at once: that of the launch, and that within a graph.
  uint32_t correlation = 0;
  uint64_t graph_node = 0;
};

/// Gives each kernel its operation: kernels of one stream start in the order of their launches.
/// Fails if the records and the launches cannot be of the same kernels: by their number, or by a
/// function that has two names; or if there were several streams.
Result<ActivityLog> match_launches(const std::vector<std::string>& names,
                                   std::vector<DeviceRecord> records,
                                   std::span<const NotedLaunch> launches);

class ActivityRecorder {
 public:
  virtual ~ActivityRecorder() = default;
  /// No work may be on its way.
  virtual Status start() = 0;
  /// All since start(). The work must be done. Fails if records were lost.
  virtual Result<ActivityLog> stop() = 0;
  /// Whether kernels are seen one by one, or only whole rows.
  virtual bool sees_kernels() const = 0;
};

/// Times the runs of `kernels`, which must outlive the recorder.
std::unique_ptr<ActivityRecorder> make_step_recorder(KernelChooser& kernels);

/// Loads libcupti: `library` if it is not empty, else by the loader's path, beside this program, or
/// below /usr/local/cuda*. One at a time in a process. Nothing is slowed before start().
Result<std::unique_ptr<ActivityRecorder>> make_cupti_recorder(const std::string& library);

}  // namespace moxie
