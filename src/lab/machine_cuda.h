// Measures what lies between the host and a CUDA device: the rate of their link, which is the limit
// of loading weights, and how fast the host starts kernels, which is the limit of decode without
// graphs.
#pragma once

#include "core/base.h"
#include "core/device.h"

namespace moxie {

/// Rate of copies from pinned host memory to the device, 1e9 bytes a second: median of several
/// passes over 256 MiB. Fails if the device is not a CUDA device or memory cannot be allocated.
Result<double> measure_h2d_gb_s(Device& device);

/// Kernels that the calling thread starts in a second, one after another on a stream of its own, as
/// rows start theirs. Takes 1 to 2 ms. The device should be idle. Fails if the device is not a CUDA
/// device.
Result<double> measure_launches_s(Device& device);

}  // namespace moxie
