// What the system tells of the CPU while it works: clocks, temperature, throttling, energy.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

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

/// Joules of all packages between two readings less than one round of a counter apart; none if no
/// package is in both.
std::optional<double> joules_between(const CpuState& before, const CpuState& after);

/// Between two readings: the share of the cores' time that other processes used, 0 to 1.
std::optional<double> used_by_others(const CpuState& before, const CpuState& after);

}  // namespace moxie
