// The choices of a token by one warp: those of moe_fp8_routing.cpp. expf() differs from the host's
// exp() by an ulp or two, so that experts whose scores are as near as that may change places.
#pragma once

#include "kernels/moe_fp8/moe_fp8_pairs_cuda.h"
#include "kernels/ptx.cuh"

namespace moxie::moe_fp8 {
namespace {

/// Orders floats as numbers above 0: NaN above all, both zeros alike.
__device__ __forceinline__ uint32_t key_of(float value) {
  if (value != value) return ~0u;
  if (value == 0.0f) return 0x80000000u;
  const uint32_t bits = __float_as_uint(value);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float value_of(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key);
}
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float from_bf16(uint32_t bits) { return __uint_as_float(bits << 16); }

/// Choice number k is in lane k; `sum` of all in every lane.
struct Choices {
  int32_t expert = 0;
  float score = 0, sum = 0;
};

/// The sizes that choose_of_256() is written for.
__host__ __device__ inline bool is_usual(const MoeFp8Params& p) {
  return p.num_experts == 256 && p.num_groups == 8;
}

/// The sum of s and the bias as a key.
__device__ __forceinline__ uint32_t biased_key(float score, uint32_t bias) {
  return key_of(score + from_bf16(bias));
}

/// 256 experts in 8 groups: lane l has experts 8 l to 8 l + 7, a group is four lanes. Uses the keys
/// up.
__device__ __forceinline__ Choices choose_of_256(const MoeFp8Params& p, const float (&score)[8],
                                                 uint32_t (&key)[8]) {
  const int lane = threadIdx.x % 32;
  uint32_t first = 0, second = 0;
#pragma unroll
  for (const uint32_t k : key) {
    second = max(second, min(first, k));
    first = max(first, k);
  }
#pragma unroll
  for (int offset = 1; offset < 4; offset *= 2) {
    const uint32_t f = __shfl_xor_sync(~0u, first, offset);
    const uint32_t s = __shfl_xor_sync(~0u, second, offset);
    second = max(min(first, f), max(second, s));
    first = max(first, f);
  }
  const uint32_t of_group = key_of(value_of(first) + value_of(second));
  int num_better = 0;
#pragma unroll
  for (int g = 0; g < 8; ++g) {
    const uint32_t other = __shfl_sync(~0u, of_group, 4 * g);
    num_better += other > of_group || (other == of_group && g < lane / 4);
  }
  if (num_better >= p.kept_groups) {
#pragma unroll
    for (uint32_t& k : key) k = 0;
  }
  Choices choices;
#pragma unroll 1
  for (int k = 0; k < p.top_k; ++k) {
    uint32_t best = key[0];
#pragma unroll
    for (int j = 1; j < 8; ++j) best = max(best, key[j]);
    const uint32_t top = __reduce_max_sync(~0u, best);
    const int owner = __ffs(static_cast<int>(__ballot_sync(~0u, best == top))) - 1;
    int at = 0;
    float of_best = 0;
#pragma unroll
    for (int j = 7; j >= 0; --j) {
      if (key[j] == top) at = j, of_best = score[j];
    }
    if (lane == owner) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (j == at) key[j] = 0;
      }
    }
    const float found = __shfl_sync(~0u, of_best, owner);
    const int32_t expert = 8 * owner + __shfl_sync(~0u, at, owner);
    choices.sum += found;
    if (lane == k) choices.expert = expert, choices.score = found;
  }
  return choices;
}
__device__ __forceinline__ Choices choose_of_256(const MoeFp8Params& p, int32_t token) {
  const int lane = threadIdx.x % 32;
  const auto* logits =
      reinterpret_cast<const float4*>(p.routing_logits + int64_t{token} * 256 + lane * 8);
  const float4 a = logits[0], b = logits[1];
  const uint4 bias = *reinterpret_cast<const uint4*>(p.routing_bias + lane * 8);
  const float x[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  const uint32_t biases[4] = {bias.x, bias.y, bias.z, bias.w};
  float score[8];
  uint32_t key[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    score[j] = sigmoid(x[j]);
    key[j] = biased_key(score[j], j % 2 == 0 ? biases[j / 2] & 0xFFFF : biases[j / 2] >> 16);
  }
  return choose_of_256(p, score, key);
}

/// Words of shared memory that choose_of_any() needs for a warp.
__host__ __device__ inline int32_t num_keys(const MoeFp8Params& p) {
  return is_usual(p) ? 0 : p.num_experts + p.num_groups;
}

/// Any numbers of experts and groups, with the keys in shared memory.
__device__ __noinline__ Choices choose_of_any(const MoeFp8Params& p, int32_t token,
                                              uint32_t* keys) {
  const int lane = threadIdx.x % 32;
  const int32_t group_size = p.num_experts / p.num_groups;
  uint32_t* of_group = keys + p.num_experts;
  const float* logits = p.routing_logits + int64_t{token} * p.num_experts;
  for (int32_t e = lane; e < p.num_experts; e += 32)
    keys[e] = key_of(sigmoid(logits[e]) + from_bf16(p.routing_bias[e]));
  __syncwarp();
  for (int32_t g = lane; g < p.num_groups; g += 32) {
    uint32_t first = 0, second = 0;
    for (int32_t e = g * group_size; e < (g + 1) * group_size; ++e) {
      second = max(second, min(first, keys[e]));
      first = max(first, keys[e]);
    }
    of_group[g] = group_size == 1 ? first : key_of(value_of(first) + value_of(second));
  }
  __syncwarp();
  for (int32_t g = lane; g < p.num_groups; g += 32) {
    int32_t num_better = 0;
    for (int32_t h = 0; h < p.num_groups; ++h)
      num_better += of_group[h] > of_group[g] || (of_group[h] == of_group[g] && h < g);
    if (num_better < p.kept_groups) continue;
    for (int32_t e = g * group_size; e < (g + 1) * group_size; ++e) keys[e] = 0;
  }
  __syncwarp();
  Choices choices;
  for (int k = 0; k < p.top_k; ++k) {
    uint32_t best = 0;
    int32_t at = 0;
    for (int32_t e = lane; e < p.num_experts; e += 32) {
      if (keys[e] > best) best = keys[e], at = e;
    }
    const uint32_t top = __reduce_max_sync(~0u, best);
    const int32_t expert = __reduce_min_sync(~0u, best == top ? at : kMostExperts);
    if (lane == expert % 32) keys[expert] = 0;
    const float found = sigmoid(logits[expert]);
    choices.sum += found;
    if (lane == k) choices.expert = expert, choices.score = found;
  }
  return choices;
}

}  // namespace
}  // namespace moxie::moe_fp8
