// Where a CUDA device's calls go: a whole device, or a part of one (core/cuda_part.h).
#pragma once

#include <cuda.h>

#include "core/base.h"

namespace moxie {

struct Place {
  int index = 0;                ///< of the device
  CUcontext context = nullptr;  ///< of a part; null: the whole device
  int num_units = 0;            ///< multiprocessors of a part
  /// For the calling thread. Any other way to set a thread's device leaves num_multiprocessors()
  /// as it is.
  void make_current() const;
};

/// Asks the runtime, before the process has used it, to load all kernels when it starts.
void load_kernels_at_once();
/// A part of a device that the process has used. Parts are made once and stay.
Result<Place> place_of_part(int index, int part, int count);

}  // namespace moxie
