// The state of the machine around a run: read before and after, for the record.
#pragma once

#include <optional>
#include <string>

#include "core/device.h"
#include "lab/cpu_state.h"
#include "lab/record.h"

namespace moxie {

class RunWatch {
 public:
  /// The reading before the run. `device` is what runs; a GPU is borrowed. `counts_all`: its
  /// counter of energy counts all that works, else no energy is told. `root` as in
  /// read_cpu_state().
  explicit RunWatch(Device& device, bool counts_all = true, const std::string& root = "/");
  /// The reading after it: sets the record's environment, energy and peak of memory. May be called
  /// again, for a record that is kept while the run goes on; the energy of a CPU needs that within
  /// the minutes in which its counters go round.
  void finish(Record* record);

 private:
  Device* gpu_device_;  ///< null: a CPU runs
  Environment environment_;
  const bool counts_all_;
  const std::string root_;
  CpuState cpu_;
  CpuEnergy cpu_energy_;
  std::optional<GpuState> gpu_;
  std::optional<double> gpu_joules_;
};

}  // namespace moxie
