// The state of the machine around a run: read before and after, for the record.
#pragma once

#include <optional>

#include "core/device.h"
#include "lab/cpu_state.h"
#include "lab/record.h"

namespace moxie {

class RunWatch {
 public:
  /// The reading before the run. `device` is what runs; a GPU is borrowed.
  explicit RunWatch(Device& device);
  /// The reading after it: sets the record's environment, energy and peak of memory. May be called
  /// again, for a record that is kept while the run goes on.
  void finish(Record* record) const;

 private:
  Device* gpu_device_;  ///< null: a CPU runs
  Environment environment_;
  CpuState cpu_;
  std::optional<GpuState> gpu_;
  std::optional<double> gpu_joules_;
};

}  // namespace moxie
