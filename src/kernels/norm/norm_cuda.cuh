// Device functions of RMSNorm: the sum over a block and the factor of one token.
#pragma once

#include <cstdint>

#include "kernels/ptx.cuh"

namespace moxie {

/// Sum of `value` over the kThreads threads of the block, the same in all of them and from run to
/// run. `scratch` is shared memory of kThreads / 32 floats, free again after the next barrier.
template <int kThreads>
__device__ float block_sum(float value, float* scratch) {
  static_assert(kThreads % 32 == 0 && kThreads <= 1024, "whole warps, at most 32 of them");
  constexpr int kWarps = kThreads / 32;
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) sum += scratch[i];
  return sum;
}

/// 1 / sqrt(mean(x^2) + eps) of one token; x: [hidden], hidden a multiple of 4, aligned to 16
/// bytes. Called by the whole block.
template <int kThreads>
__device__ float rms_factor(const float* x, int32_t hidden, float eps, float* scratch) {
  float sum = 0;
  for (int32_t i = 4 * static_cast<int32_t>(threadIdx.x); i < hidden; i += 4 * kThreads) {
    const float4 v = *reinterpret_cast<const float4*>(x + i);
    sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
  return 1.0f / sqrtf(block_sum<kThreads>(sum, scratch) / static_cast<float>(hidden) + eps);
}

}  // namespace moxie
