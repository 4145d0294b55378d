// A GPU's limits and state: its read bandwidth and rates of BF16 and 8-bit products, measured; its
// clocks, power and temperature, as the driver reports them.
#pragma once

#include "lab/machine.h"
#include "lab/record.h"

namespace moxie {

struct GpuReadOptions {
  uint64_t buffer_bytes = uint64_t{4} << 30;  ///< a quarter of the free memory at most
  int passes = 9;                             ///< after one that is not counted
  bool products = true;                       ///< false: measures only reads
};

/// Measures reads of device memory, and BF16 and 8-bit products if there are loops for the device
/// (Hopper). Peaks that are not measured stay zero. Fails if `device` is not a CUDA device or has
/// no memory left for a buffer well beyond its cache.
Result<MachineLimits> measure_gpu(Device& device, const GpuReadOptions& options = {});

/// Asks the driver's management library (NVML, loaded at run time). Without NVML, only the fields
/// that CUDA knows are set.
GpuState read_gpu_state(Device& device);
/// Adds the second reading, after the work.
void finish_gpu_state(Device& device, GpuState* state);

/// Joules used since the driver was loaded; none if the driver does not say.
std::optional<double> gpu_energy_joules(Device& device);

}  // namespace moxie
