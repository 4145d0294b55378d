// Measures the rate of a CUDA device's link to the host, the limit of loading weights.
#pragma once

#include "core/base.h"
#include "core/device.h"

namespace moxie {

/// Rate of copies from pinned host memory to the device, 1e9 bytes a second: median of several
/// passes over 256 MiB. Fails if the device is not a CUDA device or memory cannot be allocated.
Result<double> measure_h2d_gb_s(Device& device);

}  // namespace moxie
