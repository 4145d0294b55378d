// What ran when: the records that the profile is made of, and who makes them. On a GPU CUPTI tells
// when each kernel and copy ran; on the CPU each step's row is timed as a whole.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base.h"
#include "core/clock.h"
#include "kernels/registry.h"

namespace moxie {

/// Nanoseconds of Clock.
inline int64_t clock_ns(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

/// One kernel, copy or step, in nanoseconds of Clock.
struct Activity {
  int64_t start_ns = 0, end_ns = 0;
  int32_t symbol = 0;  ///< in ActivityLog::symbols
  int32_t stream = 0;
};

struct ActivityLog {
  std::vector<std::string> symbols;  ///< as place_of() takes them
  std::vector<Activity> activities;  ///< in no order
};

class ActivityRecorder {
 public:
  virtual ~ActivityRecorder() = default;
  virtual Status start() = 0;
  /// All since start(). The work must be done. Fails if records were lost.
  virtual Result<ActivityLog> stop() = 0;
  /// Whether kernels are seen one by one, or only whole steps.
  virtual bool sees_kernels() const = 0;
};

/// Times the runs of `kernels`, which must outlive the recorder.
std::unique_ptr<ActivityRecorder> make_step_recorder(KernelChooser& kernels);

/// Loads libcupti: `library` if it is not empty, else by the loader's path, beside this program, or
/// below /usr/local/cuda*. One at a time in a process. Nothing is slowed before start().
Result<std::unique_ptr<ActivityRecorder>> make_cupti_recorder(const std::string& library);

}  // namespace moxie
