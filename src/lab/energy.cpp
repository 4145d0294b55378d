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

}  // namespace

bool counts_all_energy(Engine& engine) {
  if (engine.options().world) return false;
  return engine.device().kind() == DeviceKind::kCpu || engine.num_ranks() == 1;
}

EnergyCounter energy_counter_of(Engine& engine, const std::string& root) {
  if (!counts_all_energy(engine)) return {};
  Device& device = engine.device();
  if (device.kind() == DeviceKind::kCpu)
    return {[energy = CpuEnergy(root)]() mutable { return energy.joules(); }, kRaplStepS};
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
