#include "lab/limits_beside.h"

#include <array>
#include <utility>

namespace moxie {

Result<MachineLimits> LimitsBeside::of(double seconds) {
  constexpr double kWorthIt = 0.5;  // least seconds of samples between two measurements
  since_last_ += seconds;
  if (device_.kind() != DeviceKind::kCpu || since_last_ < kWorthIt) return last_;
  auto now =
      measure_machine(device_, {.read_passes = 3, .seconds_per_loop = 0.005, .again = &of_run_});
  if (!now) return now;
  since_last_ = 0;
  const MachineLimits before = std::exchange(last_, std::move(*now));
  return mean_of(std::array{before, last_});
}

}  // namespace moxie
