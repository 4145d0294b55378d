// The choice of experts from a token's logits, by one warp.
#pragma once

#include "kernels/ptx.cuh"

namespace moxie {

inline constexpr int kMaxExperts = 256;

// Order-preserving bits of a float, greater for greater; NaN lowest.
__device__ __forceinline__ uint32_t ordered_bits(float value) {
  const uint32_t bits = __float_as_uint(value);
  if (value != value) return 0;
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float from_ordered_bits(uint32_t bits) {
  return __uint_as_float((bits & 0x80000000u) != 0 ? bits & 0x7FFFFFFFu : ~bits);
}

/// The top_k greatest of logit(expert), ties to the lower index, by falling logit, and the softmax
/// over them. logit() is called once an expert.
/// kMine: of a lane, 32 times as many in all at most.
template <int kMine, typename Logit>
__device__ __forceinline__ void choose_experts(int num_experts, int top_k, Logit&& logit_of,
                                               int32_t* ids, float* weights) {
  const int lane = threadIdx.x % 32;
  uint32_t keys[kMine];
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int expert = lane + 32 * i;
    keys[i] = expert < num_experts ? max(ordered_bits(logit_of(expert)), 1u) : 0;
  }
  int my_id = 0;
  float my_logit = 0, greatest = 0;
#pragma unroll 1
  for (int k = 0; k < top_k; ++k) {
    uint32_t best = 0;
#pragma unroll
    for (int i = 0; i < kMine; ++i) best = max(best, keys[i]);
    const uint32_t top = __reduce_max_sync(~0u, best);
    uint32_t id = ~0u;
#pragma unroll
    for (int i = kMine - 1; i >= 0; --i) {
      if (keys[i] == top) id = lane + 32 * i;
    }
    id = __reduce_min_sync(~0u, id);
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      if (id == static_cast<uint32_t>(lane + 32 * i)) keys[i] = 0;
    }
    const float logit = from_ordered_bits(top);
    if (k == 0) greatest = logit;
    if (lane == k) my_id = static_cast<int>(id), my_logit = logit;
  }
  if (lane < top_k) ids[lane] = my_id;
  const float power = lane < top_k ? expf(my_logit - greatest) : 0.0f;
  const float total = warp_sum(power);
  if (lane < top_k) weights[lane] = power / total;
}

}  // namespace moxie
