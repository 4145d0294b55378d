#include "lab/limits_beside.h"

#include <array>
#include <utility>

#include "lab/machine_cuda.h"

namespace moxie {
namespace {

// Least seconds of samples between two measurements, which take a fifth of a second and 2 ms.
constexpr double kWorthIt = 0.5, kLaunchesWorthIt = 0.02;

}  // namespace

Result<MachineLimits> LimitsBeside::of(double seconds) {
  since_last_ += seconds;
  if (!is_due()) return last_;
  auto now = measure();
  if (!now) return now;
  since_last_ = 0;
  const MachineLimits before = std::exchange(last_, std::move(*now));
  const bool is_first_rate = before.launches_s == 0 && last_.launches_s > 0;
  return is_first_rate ? last_ : mean_of(std::array{before, last_});
}

bool LimitsBeside::is_due() const {
  if (device_.kind() == DeviceKind::kCpu) return since_last_ >= kWorthIt;
  return measures_launches_ && (last_.launches_s == 0 || since_last_ >= kLaunchesWorthIt);
}

Result<MachineLimits> LimitsBeside::measure() const {
  if (device_.kind() == DeviceKind::kCpu) {
    return measure_machine(device_,
                           {.read_passes = 3, .seconds_per_loop = 0.005, .again = &of_run_});
  }
  auto launches_s = measure_launches_s(device_);
  if (!launches_s) return fail(std::move(launches_s.error()));
  MachineLimits limits = of_run_;
  limits.launches_s = *launches_s;
  return limits;
}

}  // namespace moxie
