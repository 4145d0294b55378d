// The residual stream on CUDA: each value of x is two floats, x = high + low, [tokens, hidden] of
// float2, so that many blocks can add to it at once and the result does not depend on their order.
//
// split_residual() cuts a value into a multiple of 2^-8 and one of 2^-25. Sums of such floats are
// exact, and so have no order: the high ones below 2^16, the low ones for 256 addends. Beyond 2^16
// sums are rounded like any others. NaN and infinities go through.
#pragma once

#include <cuda_runtime.h>

namespace moxie {

/// Addends of one value between two calls of split_residual() for the same place.
inline constexpr int kMaxResidualAddends = 256;

__device__ __forceinline__ float2 split_residual(float value) {
  // Adding 1.5 x 2^23 units and taking them away again rounds to whole units.
  constexpr float kHigh = 1.5f * 0x1p15f, kLow = 1.5f * 0x1p-2f;
  const float high = __fsub_rn(__fadd_rn(value, kHigh), kHigh);
  return make_float2(high, __fsub_rn(__fadd_rn(__fsub_rn(value, high), kLow), kLow));
}
__device__ __forceinline__ float whole(float2 pair) { return pair.x + pair.y; }

/// x += value, from any block.
__device__ __forceinline__ void add_to_residual(float2* x, float value) {
  atomicAdd(x, split_residual(value));
}

}  // namespace moxie
