// How FlashInfer's kernels are launched: blocks of several dimensions, several structs of
// parameters. They start only after the plan's kernel has ended, since they read its arrays before
// their wait.
#pragma once

#include <cuda_runtime.h>

#include "core/cuda_launch.cuh"

namespace moxie {

template <typename... P>
void launch_flashinfer(const char* row, void (*kernel)(P...), dim3 grid, dim3 block,
                       size_t shared_bytes, cudaStream_t stream, const P&... params) {
  check_launched(allow_shared_bytes(reinterpret_cast<const void*>(kernel), shared_bytes), row);
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  launch_noted(row, kernel, config, params...);
}

}  // namespace moxie
