// Readings that fail leave the energy unknown; nothing else depends on them.
#include "lab/energy.h"

#include <cmath>
#include <utility>

#include "lab/cpu_state.h"
#include "lab/machine_gpu.h"

namespace moxie {
namespace {

constexpr double kNvmlStepS = 0.1, kRaplStepS = 0.001;
constexpr double kLeastS = 1, kLeastOfUnsure = 10;
// A pause of at most this share of the sample before it does not end a stretch.
constexpr double kPauseShare = 0.02;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Adds up what the packages used between readings, since each counter begins again at zero.
class Packages {
 public:
  explicit Packages(std::string root) : root_(std::move(root)), last_(read_cpu_energy(root_)) {}
  std::optional<double> operator()() {
    const CpuState now = read_cpu_energy(root_);
    const auto joules = joules_between(std::exchange(last_, now), now);
    if (!joules) return std::nullopt;
    sum_ += *joules;
    return sum_;
  }

 private:
  std::string root_;
  CpuState last_;
  double sum_ = 0;
};

}  // namespace

EnergyCounter energy_counter_of(Engine& engine, const std::string& root) {
  if (engine.options().world) return {};
  Device& device = engine.device();
  if (device.kind() == DeviceKind::kCpu) return {Packages(root), kRaplStepS};
  if (engine.num_ranks() > 1) return {};
  return {[&device] { return gpu_energy_joules(device); }, kNvmlStepS};
}

void EnergyUse::add(const EnergyUse& other) {
  joules += other.joules;
  seconds += other.seconds;
  tokens += other.tokens;
  unsure_s += other.unsure_s;
  is_known = is_known && other.is_known;
}

std::optional<double> EnergyUse::joules_per_token() const {
  if (!is_known || !(joules > 0) || !(tokens > 0)) return std::nullopt;
  if (seconds < kLeastS || seconds < kLeastOfUnsure * unsure_s) return std::nullopt;
  return joules / tokens;
}

void EnergyMeter::begin(Clock::time_point now) {
  if (!use_.is_known) return;
  if (last_s_ > 0 && seconds_between(end_, now) <= kPauseShare * last_s_) {
    from_ = end_;
    return;
  }
  from_ = now;
  joules_ = counter_.joules();
  use_.is_known = joules_.has_value();
  use_.unsure_s += counter_.step_s;
}

void EnergyMeter::end(double tokens, Clock::time_point now) {
  if (!use_.is_known) return;
  const auto joules = counter_.joules();
  use_.is_known = joules && std::isfinite(*joules) && *joules >= *joules_;
  if (!use_.is_known) return;
  use_.joules += *joules - *joules_;
  use_.seconds += seconds_between(from_, now);
  use_.tokens += tokens;
  joules_ = joules;
  end_ = now;
  last_s_ = seconds_between(from_, now);
}

}  // namespace moxie
