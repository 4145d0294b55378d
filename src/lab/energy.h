// Energy of a test's samples: a counter of joules is read around them, so that what lies between
// them does not count.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "core/clock.h"
#include "engine/engine.h"

namespace moxie {

struct EnergyCounter {
  /// Joules since an unknown start; none: it cannot be read.
  std::function<std::optional<double>()> read;
  double step_s = 0;  ///< between two advances, at most

  std::optional<double> joules() const { return read ? read() : std::nullopt; }
};

/// Whether a device's counter counts all that works: not where there are several GPUs, or processes
/// on several hosts.
bool counts_all_energy(Engine& engine);

/// Of a GPU by NVML, which advances every 20 to 100 ms; of all CPU packages by RAPL, every
/// millisecond, other processes included. It cannot be read where more works than it counts
/// (counts_all_energy). The engine's device is borrowed. `root` as in
/// read_cpu_state().
EnergyCounter energy_counter_of(Engine& engine, const std::string& root = "/");

/// What the counter says of some samples.
struct EnergyUse {
  double joules = 0, seconds = 0, tokens = 0;
  double unsure_s = 0;   ///< a step of the counter for each stretch between two readings
  bool is_known = true;  ///< false: the counter could not be read, or ran backwards

  void add(const EnergyUse& other);
  /// None if the energy is not known, or if the samples took less than a second or less than ten
  /// times `unsure_s`: then steps of the counter would decide.
  std::optional<double> joules_per_token() const;
};

/// Reads the counter. Samples that follow each other without a pause worth counting are one
/// stretch, so that its steps weigh once.
class EnergyMeter {
 public:
  explicit EnergyMeter(EnergyCounter counter) : counter_(std::move(counter)) {}
  /// Before a timed sample, and behind it. Not in the timed part: they may take a millisecond.
  void begin(Clock::time_point now = Clock::now());
  void end(double tokens, Clock::time_point now = Clock::now());
  const EnergyUse& use() const { return use_; }

 private:
  EnergyCounter counter_;
  EnergyUse use_;
  std::optional<double> joules_;  // at `from_`
  Clock::time_point from_, end_;  // of the sample, with the pause before it in a stretch
  double last_s_ = 0;             // of the last sample; 0: there was none
};

}  // namespace moxie
