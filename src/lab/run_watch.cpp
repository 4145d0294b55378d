// Readings before and after; those of the CPU come from lab/cpu_state.h, of a GPU from NVML.
#include "lab/run_watch.h"

#include "lab/machine_gpu.h"

namespace moxie {

RunWatch::RunWatch(Device& device, bool counts_all, const std::string& root)
    : gpu_device_(device.kind() == DeviceKind::kCuda ? &device : nullptr),
      environment_(collect_environment()),
      counts_all_(counts_all),
      root_(root),
      cpu_(read_cpu_state(root)),
      cpu_energy_(root) {
  environment_.cpu_clock_mhz_before = cpu_.clock_mhz;
  if (gpu_device_ == nullptr) return;
  gpu_ = read_gpu_state(device);
  gpu_joules_ = gpu_energy_joules(device);
}

void RunWatch::finish(Record* record) {
  record->environment = environment_;
  Environment& environment = record->environment;
  const CpuState after = read_cpu_state(root_);
  environment.cpu_clock_mhz_after = after.clock_mhz;
  environment.cpu_temperature_celsius = after.temperature_celsius;
  environment.cpu_used_by_others = used_by_others(cpu_, after);
  if (cpu_.throttle_events && after.throttle_events)
    environment.cpu_throttle_events = *after.throttle_events - *cpu_.throttle_events;
  record->memory_peak_bytes = peak_memory_bytes();
  if (gpu_device_ == nullptr) {
    record->energy_joules = counts_all_ ? cpu_energy_.joules() : std::nullopt;
    record->energy_source = record->energy_joules ? "rapl" : "";
    return;
  }
  environment.gpus = {*gpu_};
  finish_gpu_state(*gpu_device_, &environment.gpus[0]);
  const auto joules = gpu_energy_joules(*gpu_device_);
  if (!joules || !gpu_joules_ || !counts_all_) return;
  record->energy_joules = *joules - *gpu_joules_;
  record->energy_source = "nvml";
}

}  // namespace moxie
