// What CUDA code shares: errors of the runtime as Status, and a stream made ready for a launch.
// For builds with CUDA only (MOXIE_HAS_CUDA).
#pragma once

#include <cuda_runtime_api.h>

#include "core/device.h"

namespace moxie {

/// Done, or the runtime's error as what, where ("cudaMalloc of 12 bytes") and a hint.
Status cuda_check(cudaError_t error, const std::string& where);

/// The native stream of a CUDA stream, with its device made the calling thread's current one, so
/// that any thread may launch on any device's stream.
cudaStream_t launch_stream(Stream* stream);

/// After each launch: a launch that this build got wrong (grid, shared memory, no code for the
/// device) is a broken invariant and CHECKs with `row`. The fault of an earlier kernel is left for
/// Stream::synchronize to report.
void check_launched(cudaError_t error, const char* row);

}  // namespace moxie
