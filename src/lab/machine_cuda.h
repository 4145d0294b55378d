// What a CUDA device's link to the host can do, measured: the limit of loading weights.
#pragma once

#include "core/base.h"
#include "core/device.h"

namespace moxie {

/// Rate of copies from pinned host memory to the device, 1e9 bytes a second: median of several
/// passes over 256 MiB. Fails if the device is no CUDA device or memory cannot be had.
Result<double> measure_h2d_gb_s(Device& device);

}  // namespace moxie
