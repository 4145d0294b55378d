// Parts of a CUDA device, for ranks that share it: their kernels wait for each other, so that each
// must have room whatever the others do.
#pragma once

#include "core/device.h"

namespace moxie {

/// Part `part` of `count` equal ones of CUDA device `index`. Its kernels run on multiprocessors of
/// its own, whole eights of them; memory is the device's, of which it says it has its share. Fails
/// as make_cuda_device(), and where the driver cannot divide a device, where that has fewer than
/// eight multiprocessors a part, or where kernels are loaded at their first launch
/// (CUDA_MODULE_LOADING), which may wait for kernels that wait for it.
Result<std::unique_ptr<Device>> make_part_of_cuda_device(int index, int part, int count);

/// The multiprocessors that kernels of the calling thread's current device, or part of one, run on.
/// For builds with CUDA only.
int num_multiprocessors();

}  // namespace moxie
