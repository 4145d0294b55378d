// How CUDA rows launch: one struct of parameters by value, errors checked with the row's name.
#pragma once

#include <cuda_runtime.h>

#include "core/cuda.h"

namespace moxie {

/// Launches kernel(params) on `stream` and checks the launch. `shared_bytes` is dynamic shared
/// memory; above 48 KiB the kernel is opted in here.
template <typename P>
void launch_kernel(const char* row, void (*kernel)(P), const P& params, dim3 grid, int num_threads,
                   uint64_t shared_bytes, cudaStream_t stream) {
  if (shared_bytes > 48 * 1024) {
    check_launched(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(shared_bytes)),
                   row);
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(num_threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  check_launched(cudaLaunchKernelEx(&config, kernel, params), row);
}

}  // namespace moxie
