// The choice of experts from a token's logits, by one warp.
#pragma once

#include "kernels/ptx.cuh"

namespace moxie {

inline constexpr int kMaxExperts = 256;

// Bits of a float that compare as the floats do; NaN is the lowest.
__device__ __forceinline__ uint32_t ordered_bits(float value) {
  const uint32_t bits = __float_as_uint(value);
  if (value != value) return 0;
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float from_ordered_bits(uint32_t bits) {
  return __uint_as_float((bits & 0x80000000u) != 0 ? bits & 0x7FFFFFFFu : ~bits);
}

/// A lane's share of a token's choice: lane k < top_k has the k-th expert.
struct Choice {
  int id;
  float logit, greatest;  // greatest: of all
};

/// The top_k greatest of logit(expert), by falling logit, ties to the lower index. logit(expert, i)
/// is called once for each expert, the lane's i-th. kMine: the most experts of a lane, so that
/// there are at most 32 kMine.
template <int kMine, typename Logit>
__device__ __forceinline__ Choice choose_experts(int num_experts, int top_k, Logit&& logit_of) {
  const int lane = threadIdx.x % 32;
  uint32_t keys[kMine];
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int expert = lane + 32 * i;
    keys[i] = expert < num_experts ? max(ordered_bits(logit_of(expert, i)), 1u) : 0;
  }
  Choice choice{0, 0.0f, 0.0f};
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
    if (k == 0) choice.greatest = logit;
    if (lane == k) choice.id = static_cast<int>(id), choice.logit = logit;
  }
  return choice;
}

/// The softmax over the choice.
__device__ __forceinline__ float choice_weight(const Choice& choice, int top_k) {
  const bool is_chosen = static_cast<int>(threadIdx.x % 32) < top_k;
  const float power = is_chosen ? expf(choice.logit - choice.greatest) : 0.0f;
  return power / warp_sum(power);
}

}  // namespace moxie
