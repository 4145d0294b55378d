// What the kernels of reduce between GPUs have in common: their parameters, and units of values. A
// unit is eight values in BF16: two runs of four, a block's threads apart, so that neighbouring
// threads load and store neighbouring runs.
#pragma once

#include <cuda_bf16.h>

#include "kernels/rank_mail.cuh"
#include "kernels/reduce/reduce_rows.h"
#include "kernels/residual.cuh"

namespace moxie::reduce {

struct SumParams {
  RankMail mail;
  mail::Extent extent;
  mail::Rounds rounds;
  int64_t count;
  const float* part;
  float* next_part;
  float* x;
};
inline SumParams params_of(const ReduceParams& p) {
  SumParams params{};
  params.mail = *p.link->mail();
  params.count = int64_t{p.num_tokens} * p.hidden;
  params.part = p.part;
  params.next_part = p.next_part;
  params.x = p.x;
  return params;
}

inline constexpr int kValuesOfUnit = 8, kHalves = 2;  // of a unit

#ifdef __CUDACC__

/// The number of the first value of half a unit.
__device__ __forceinline__ int64_t first_of(int64_t unit, int half) {
  return 4 * (2 * (unit - unit % mail::kThreads) + half * mail::kThreads + unit % mail::kThreads);
}

__device__ __forceinline__ void round_half(uint4* unit, int half, float4 v) {
  auto* pairs = reinterpret_cast<__nv_bfloat162*>(unit) + 2 * half;
  pairs[0] = __floats2bfloat162_rn(v.x, v.y);
  pairs[1] = __floats2bfloat162_rn(v.z, v.w);
}
__device__ __forceinline__ float4 values_of(const uint4& unit, int half) {
  const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(&unit) + 2 * half;
  const float2 low = __bfloat1622float2(pairs[0]), high = __bfloat1622float2(pairs[1]);
  return make_float4(low.x, low.y, high.x, high.y);
}
__device__ __forceinline__ float4 operator+(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/// This rank's unit, with zeros behind the last value.
template <bool kIsSingle>
__device__ __forceinline__ uint4 unit_of_part(const SumParams& p, int64_t unit) {
  uint4 rounded;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const int64_t at = first_of(unit, half);
    float4 v = make_float4(0, 0, 0, 0);
    if (at < p.count) {
      ResidualFour<kIsSingle> part;
      part.load(p.part, at);
      v = part.values();
    }
    round_half(&rounded, half, v);
  }
  return rounded;
}

/// The sum of all ranks' units, in their order.
template <int kMost>
__device__ __forceinline__ float4 sum_of(const uint4* units, int32_t num_ranks, int half) {
  float4 sum = values_of(units[0], half);
#pragma unroll
  for (int32_t rank = 1; rank < kMost; ++rank)
    if (rank < num_ranks) sum = sum + values_of(units[rank], half);
  return sum;
}

template <bool kIsSingle>
__device__ __forceinline__ void store_four(float* values, int64_t at, float4 v) {
  if constexpr (kIsSingle) {
    *reinterpret_cast<float4*>(values + at) = v;
  } else {
    store_residual<false>(values, at, make_float2(v.x, v.y));
    store_residual<false>(values, at + 2, make_float2(v.z, v.w));
  }
}
/// Adds to the four values of x that begin at number `at`, and clears those of the next part.
template <bool kIsSingle>
__device__ __forceinline__ void add_four(const SumParams& p, int64_t at,
                                         const ResidualFour<kIsSingle>& x, float4 sum) {
  store_four<kIsSingle>(p.x, at, x.values() + sum);
  if (p.next_part != nullptr) store_four<kIsSingle>(p.next_part, at, make_float4(0, 0, 0, 0));
}

#endif

}  // namespace moxie::reduce
