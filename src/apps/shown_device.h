// The device that a command would use, without loading anything: what `moxie kernels` and `moxie
// doctor` speak of.
#pragma once

#include <string>

#include "core/device.h"
#include "kernels/features.h"

namespace moxie {

struct ShownDevice {
  DeviceKind kind = DeviceKind::kCpu;
  Features features = 0;
  std::string name;             ///< of a GPU; empty: the CPU
  std::string why_not;          ///< why auto passed over a GPU that is there
  DeviceProperties properties;  ///< of the CPU the number of cores alone
};

/// `device` as --device takes it; auto means the first GPU if it can be used, else the CPU.
Result<ShownDevice> shown_device(const std::string& device);

}  // namespace moxie
