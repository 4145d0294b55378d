// The device that a command would use, found without loading anything: for `moxie kernels` and
// `moxie doctor`.
#pragma once

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

}  // namespace moxie
