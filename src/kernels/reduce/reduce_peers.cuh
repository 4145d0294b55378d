// What the kernels of reduce between GPUs have in common: their parameters, and units of values. A
// unit is eight values in BF16: of parts in floats two runs of four, a block's threads apart, so
// that neighbouring threads load and store neighbouring runs.
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
  // ReduceForm::kRounded, kSent.
  const uint16_t *rounded, *received, *pair_outputs;
  const int32_t* slot_of_pair;
  const float* pair_weights;
  int32_t hidden, top_k;
};
inline SumParams params_of(const ReduceParams& p) {
  SumParams params{};
  params.mail = *p.link->mail();
  params.count = int64_t{p.num_tokens} * p.hidden;
  params.part = p.part;
  params.next_part = p.next_part;
  params.x = p.x;
  params.rounded = p.rounded;
  params.received = p.received;
  params.pair_outputs = p.pairs.outputs;
  params.slot_of_pair = p.pairs.slot_of_pair;
  params.pair_weights = p.pair_weights;
  params.hidden = p.hidden, params.top_k = p.top_k;
  return params;
}

/// What a rank's part of x is: floats as x has them, two a value or one; BF16; or the outputs of
/// the pairs of token and expert. With the last two x is of one float a value.
enum class PartOf : uint8_t { kTwoFloats, kOneFloat, kRounded, kPairs };
/// Whether x is of one float a value.
template <PartOf kPart>
inline constexpr bool kXIsSingle = kPart != PartOf::kTwoFloats;
/// Calls body<PartOf>().
template <typename Body>
void with_part(const ReduceParams& p, Body&& body) {
  using enum PartOf;
  if (p.forms.reduce == ReduceForm::kRounded) {
    return p.rounded != nullptr ? body.template operator()<kRounded>()
                                : body.template operator()<kPairs>();
  }
  if (p.forms.x == XForm::kF32) return body.template operator()<kOneFloat>();
  body.template operator()<kTwoFloats>();
}

inline constexpr int kValuesOfUnit = 8, kHalves = 2;  // of a unit

#ifdef __CUDACC__

/// The number of the first value of half a unit. Halves of parts in BF16 are neighbours, which a
/// thread loads at once.
template <PartOf kPart>
__device__ __forceinline__ int64_t first_of(int64_t unit, int half) {
  if constexpr (kPart == PartOf::kRounded || kPart == PartOf::kPairs)
    return kValuesOfUnit * unit + 4 * half;
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

/// The sum of a token's pairs, as add_pairs() makes it (gemm/add_pairs_cuda.h), of the eight values
/// of a unit that begin with number `at`.
__device__ __forceinline__ uint4 sum_of_pairs(const SumParams& p, int64_t at) {
  constexpr int kHeld = 4;  // pairs whose loads are on their way at once
  const auto token = static_cast<uint32_t>(at) / static_cast<uint32_t>(p.hidden);
  const auto column = static_cast<uint32_t>(at) - token * static_cast<uint32_t>(p.hidden);
  const int64_t first = int64_t{token} * p.top_k;
  float4 sums[kHalves] = {};
  for (int k = 0; k < p.top_k; k += kHeld) {
    uint4 outputs[kHeld];
    float weights[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const bool is_pair = k + i < p.top_k;
      const int32_t slot = is_pair ? __ldg(p.slot_of_pair + first + k + i) : -1;
      weights[i] = is_pair ? __ldg(p.pair_weights + first + k + i) : 0.0f;
      outputs[i] = make_uint4(0, 0, 0, 0);
      if (slot >= 0) {
        outputs[i] =
            *reinterpret_cast<const uint4*>(p.pair_outputs + int64_t{slot} * p.hidden + column);
      }
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const float4 output = values_of(outputs[i], half);
        float4& sum = sums[half];
        sum.x += weights[i] * output.x, sum.y += weights[i] * output.y;
        sum.z += weights[i] * output.z, sum.w += weights[i] * output.w;
      }
    }
  }
  uint4 rounded;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) round_half(&rounded, half, sums[half]);
  return rounded;
}

/// This rank's unit, with zeros behind the last value.
template <PartOf kPart>
__device__ __forceinline__ uint4 unit_of_part(const SumParams& p, int64_t unit) {
  uint4 rounded = make_uint4(0, 0, 0, 0);
  if constexpr (kPart == PartOf::kRounded || kPart == PartOf::kPairs) {
    const int64_t at = kValuesOfUnit * unit;
    if (at >= p.count) return rounded;
    if constexpr (kPart == PartOf::kPairs) {
      rounded = sum_of_pairs(p, at);
    } else {
      rounded = *reinterpret_cast<const uint4*>(p.rounded + at);
    }
  } else {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int64_t at = first_of<kPart>(unit, half);
      float4 v = make_float4(0, 0, 0, 0);
      if (at < p.count) {
        ResidualFour<kXIsSingle<kPart>> part;
        part.load(p.part, at);
        v = part.values();
      }
      round_half(&rounded, half, v);
    }
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
