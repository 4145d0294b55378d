// How CUDA rows launch: one struct of parameters by value; errors are checked and name the row.
// Also the two instructions of programmatic dependent launch.
//
// The rule of the chain: a kernel launched with `programmatic` starts while the previous kernel
// still runs. Before wait_for_previous() it may read only what nothing in the chain writes
// (weights) or what was written at least two kernels earlier; it must wait before any write.
// launch_next() comes after the wait, never before: this makes "two kernels earlier" safe. Every
// block waits.
#pragma once

#include <cuda_runtime.h>

#include "core/cuda.h"
#include "core/launch_log.h"

namespace moxie {

#ifdef __CUDACC__
/// Waits until all kernels before this one are complete and their writes are visible.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Lets the next kernel start once all blocks have called this (or have ended).
__device__ __forceinline__ void launch_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
#endif

/// How a kernel is launched besides its grid.
struct LaunchShape {
  dim3 grid;
  int num_threads = 0;
  uint64_t shared_bytes = 0;  ///< dynamic; beyond the default the kernel is opted in
  int cluster = 1;            ///< blocks of a cluster, along x
  bool programmatic = false;  ///< may start before the previous kernel has ended
  bool leaves_l1 = false;     ///< is in a chain with kernels that load weights through L1
  bool cooperative = false;   ///< all blocks are on the device at once, for barriers of the grid
};

/// Launches a kernel and notes the launch, so that a profile knows its operation. All launches go
/// through this function; launch_kernel() is for kernels with one struct of parameters.
template <typename... P>
void launch_noted(const char* row, void (*kernel)(P...), const cudaLaunchConfig_t& config,
                  const P&... params) {
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, params...);
  check_launched(error, row);
  if (error == cudaSuccess) note_launch(reinterpret_cast<const void*>(kernel), config.stream);
}

template <typename P>
void launch_kernel(const char* row, void (*kernel)(P), const P& params, const LaunchShape& shape,
                   cudaStream_t stream) {
  // Without opting in the limit is 48 KiB, which includes static shared memory.
  if (shape.shared_bytes > 16 * 1024)
    check_launched(allow_shared_bytes(reinterpret_cast<const void*>(kernel), shape.shared_bytes),
                   row);
  // All kernels of a chain request the same split of L1 and shared memory: a kernel that needs
  // another split cannot start beside the previous kernel. Plain loads of weights need room in L1
  // for loads in flight: without it they lose a fifth of the bandwidth.
  if (shape.programmatic) {
    constexpr int kPercentBesideL1 = 57;
    check_launched(
        cudaFuncSetAttribute(
            kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
            shape.leaves_l1 ? kPercentBesideL1 : static_cast<int>(cudaSharedmemCarveoutMaxShared)),
        row);
  }
  if (shape.cluster > 8) {
    check_launched(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
                   row);
  }
  cudaLaunchAttribute attributes[3];
  unsigned num_attributes = 0;
  if (shape.programmatic && code_has_clusters()) {
    attributes[num_attributes].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[num_attributes++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[num_attributes].id = cudaLaunchAttributeClusterDimension;
    attributes[num_attributes++].val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  }
  if (shape.cooperative) {
    attributes[num_attributes].id = cudaLaunchAttributeCooperative;
    attributes[num_attributes++].val.cooperative = 1;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = dim3(static_cast<unsigned>(shape.num_threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = num_attributes;
  launch_noted(row, kernel, config, params);
}

/// Without clusters and programmatic launch.
template <typename P>
void launch_kernel(const char* row, void (*kernel)(P), const P& params, dim3 grid, int num_threads,
                   uint64_t shared_bytes, cudaStream_t stream) {
  launch_kernel(row, kernel, params,
                {.grid = grid, .num_threads = num_threads, .shared_bytes = shared_bytes}, stream);
}

}  // namespace moxie
