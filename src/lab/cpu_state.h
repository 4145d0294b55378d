// What the system tells of the CPU while it works: clocks, temperature, throttling, energy.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/clock.h"

namespace moxie {

/// One reading. What the system does not tell stays zero or empty.
struct CpuState {
  double clock_mhz = 0;  ///< mean over the cores
  std::optional<double> temperature_celsius;
  std::optional<int64_t> throttle_events;  ///< of all cores since the start of the system
  /// A package's energy counter (RAPL), which begins again at zero behind `range_uj`. Most systems
  /// let only root read it.
  struct Energy {
    uint64_t uj = 0, range_uj = 0;
  };
  std::map<std::string, Energy> packages;
  Clock::time_point at = {};  ///< of the packages
  /// CPU seconds since the start of the system: of all processes, and with idle ones; and of this
  /// process. On a virtual machine time that the host takes counts as busy.
  struct Times {
    double busy_s = 0, total_s = 0, own_s = 0;
  };
  std::optional<Times> times;
};

/// `root` is where "sys" and "proc" lie; another one is for tests.
CpuState read_cpu_state(const std::string& root = "/");
/// The packages alone, which takes less time.
CpuState read_cpu_energy(const std::string& root = "/");

/// Joules of all packages between two readings; none if no package is in both, or if so much time
/// lies between them that a counter may have gone round more than once.
std::optional<double> joules_between(const CpuState& before, const CpuState& after);

/// Adds up what all packages used since it was made, in readings close enough to each other.
class CpuEnergy {
 public:
  /// `root` as above.
  explicit CpuEnergy(std::string root = "/")
      : root_(std::move(root)), last_(read_cpu_energy(root_)) {}
  /// None once a reading failed or came too late.
  std::optional<double> joules();

 private:
  std::string root_;
  CpuState last_;
  std::optional<double> sum_ = 0;
};

/// Between two readings: the share of the cores' time that other processes used, 0 to 1.
std::optional<double> used_by_others(const CpuState& before, const CpuState& after);

}  // namespace moxie
