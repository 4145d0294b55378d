// Shared by CUDA code: errors of the runtime as Status, and preparing a stream for a launch. For
// builds with CUDA only (MOXIE_HAS_CUDA).
#pragma once

#include <cuda_runtime_api.h>

#include "core/device.h"

namespace moxie {

/// The runtime's error as a Status with a hint; `where` as in "cudaMalloc of 12 bytes".
Status cuda_check(cudaError_t error, const std::string& where);

/// Returns the native stream of a CUDA stream, after making its device the calling thread's current
/// one. So any thread may launch on any device's stream.
cudaStream_t launch_stream(Stream* stream);

/// A Stream for a native stream of device `index` that another library made and keeps.
std::unique_ptr<Stream> borrow_cuda_stream(int index, void* native);

/// To be called after each kernel launch. A launch that this build got wrong (grid, shared memory,
/// no code for the device) is a broken invariant and CHECKs with `row`. The fault of an earlier
/// kernel is left for Stream::synchronize to report.
void check_launched(cudaError_t error, const char* row);

/// Lets launches of a kernel on the current device take so much dynamic shared memory. Another
/// thread may launch it with less at the same time: what was allowed stays so.
cudaError_t allow_shared_bytes(const void* kernel, uint64_t bytes);

/// Shared memory of the current device, in bytes.
struct SharedMemory {
  uint64_t of_block = 0;  ///< static and dynamic, with allow_shared_bytes
  uint64_t of_sm = 0;     ///< 1 KiB of it goes to each block that runs there
};
SharedMemory shared_memory();

/// For tests: every device has this much for a block from now on; launches that take more fail. 0:
/// what it has.
void bound_shared_bytes(uint64_t bytes);

/// Whether this build's code for the current device has clusters, bulk copies and programmatic
/// launch: not if it is for sm_8x. Without them a cluster is a block, and kernels wait for each
/// other.
bool code_has_clusters();

}  // namespace moxie
