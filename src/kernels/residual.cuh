// The residual stream on CUDA: each value of x is two floats, x = high + low, [tokens, hidden] of
// float2, so that many blocks can add to it at once and the result does not depend on their order.
//
// split_residual() cuts a value into a multiple of 2^-8 and a multiple of 2^-25. Sums of such
// floats are exact, and so do not depend on the order: sums of the high ones below 2^16, sums of
// the low ones for 256 addends. Beyond 2^16 sums are rounded like any others. NaN and infinities
// propagate.
//
// If every row of a launch owns the values that it adds to (prompts of many tokens), x is single:
// one float a value, [tokens, hidden], half the bytes. The plan of a pass decides this; the rows
// that take single x declare it (RowForms::x).
#pragma once

#include <cuda_runtime.h>

namespace moxie {

/// The most addends to one value between two calls of split_residual() for it.
inline constexpr int kMaxResidualAddends = 256;

__device__ __forceinline__ float2 split_residual(float value) {
  // Adding 1.5 x 2^23 units and subtracting them again rounds to whole units.
  constexpr float kHigh = 1.5f * 0x1p15f, kLow = 1.5f * 0x1p-2f;
  const float high = __fsub_rn(__fadd_rn(value, kHigh), kHigh);
  return make_float2(high, __fsub_rn(__fadd_rn(__fsub_rn(value, high), kLow), kLow));
}
__device__ __forceinline__ float whole(float2 pair) { return pair.x + pair.y; }

/// Calls body<x_is_single>(), so that loads and stores in a loop have no branch between them.
template <typename Body>
__device__ __forceinline__ void with_single(bool x_is_single, Body&& body) {
  if (x_is_single) {
    body.template operator()<true>();
  } else {
    body.template operator()<false>();
  }
}
/// Two neighbouring values of x as they are loaded, number `at` (even) and the next; whole()
/// returns the values.
template <bool kIsSingle>
__device__ __forceinline__ float4 load_residual(const float* x, int64_t at) {
  if constexpr (!kIsSingle) return *reinterpret_cast<const float4*>(x + 2 * at);
  const float2 pair = *reinterpret_cast<const float2*>(x + at);
  return make_float4(pair.x, -0.0f, pair.y, -0.0f);
}
__device__ __forceinline__ float2 whole(float4 two) {
  return make_float2(two.x + two.y, two.z + two.w);
}
/// Four neighbouring values of x from number `at` on, a multiple of 4, as they are loaded.
template <bool kIsSingle>
struct ResidualFour {
  float4 parts[kIsSingle ? 1 : 2];

  __device__ __forceinline__ void load(const float* x, int64_t at) {
    if constexpr (kIsSingle) {
      parts[0] = *reinterpret_cast<const float4*>(x + at);
    } else {
      parts[0] = *reinterpret_cast<const float4*>(x + 2 * at);
      parts[1] = *reinterpret_cast<const float4*>(x + 2 * at + 4);
    }
  }
  __device__ __forceinline__ float4 values() const {
    if constexpr (kIsSingle) return parts[0];
    const float2 a = whole(parts[0]), b = whole(parts[1]);
    return make_float4(a.x, a.y, b.x, b.y);
  }
};
/// Stores both values; for the thread that owns them.
template <bool kIsSingle>
__device__ __forceinline__ void store_residual(float* x, int64_t at, float2 values) {
  if constexpr (kIsSingle) {
    *reinterpret_cast<float2*>(x + at) = values;
  } else {
    const float2 left = split_residual(values.x), right = split_residual(values.y);
    *reinterpret_cast<float4*>(x + 2 * at) = make_float4(left.x, left.y, right.x, right.y);
  }
}

/// x += value, from any block.
__device__ __forceinline__ void add_to_residual(float2* x, float value) {
  const float2 split = split_residual(value);
#if __CUDA_ARCH__ >= 900
  atomicAdd(x, split);
#else
  atomicAdd(&x->x, split.x);
  atomicAdd(&x->y, split.y);
#endif
}

}  // namespace moxie
