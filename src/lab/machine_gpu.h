// What a GPU can do at most and how it is now: its read bandwidth and the rates of its
// BF16 and 8-bit products, measured, and clocks, power and temperature as its driver tells them.
#pragma once

#include "lab/machine.h"
#include "lab/record.h"

namespace moxie {

struct GpuReadOptions {
  uint64_t buffer_bytes = uint64_t{4} << 30;  ///< a quarter of the free memory at most
  int passes = 9;                             ///< after one that is not counted
  bool products = true;                       ///< false: reads alone are measured
};

/// Measures reads of device memory, and BF16 and 8-bit products where there are loops for the
/// device (Hopper); peaks that are not measured stay zero. Fails where `device` is no CUDA device
/// or has no memory left for a buffer well beyond its cache.
Result<MachineLimits> measure_gpu(Device& device, const GpuReadOptions& options = {});

/// Asks the driver's management library (NVML, loaded at run time). Where there is none, only what
/// CUDA itself knows is filled.
GpuState read_gpu_state(Device& device);
/// Adds the second reading: clocks after the work.
void finish_gpu_state(Device& device, GpuState* state);

/// Joules used since the driver was loaded; none where it does not say.
std::optional<double> gpu_energy_joules(Device& device);

}  // namespace moxie
