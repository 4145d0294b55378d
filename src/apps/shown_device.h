// The device that a command uses without an engine: found for `moxie kernels` and `moxie doctor`,
// opened for `moxie op`.
#pragma once

#include <memory>
#include <string>

#include "core/device.h"
#include "kernels/features.h"

namespace moxie {

struct ShownDevice {
  DeviceKind kind = DeviceKind::kCpu;
  Features features = 0;
  std::string name;             ///< of a GPU; empty: the CPU
  std::string why_not;          ///< why auto did not take an existing GPU
  DeviceProperties properties;  ///< for the CPU only the number of cores
};

/// `device` as --device takes it; auto means the first GPU if it can be used, else the CPU.
Result<ShownDevice> shown_device(const std::string& device);

/// Opens it; auto logs why it does not take an existing GPU. `num_threads` is for the CPU.
Result<std::unique_ptr<Device>> open_device(const std::string& device, int num_threads);

}  // namespace moxie
