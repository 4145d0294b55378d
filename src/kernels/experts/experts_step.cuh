// What the kernels of experts for a few tokens share: experts_slices.cuh for one token,
// experts_tiles.cuh for more, and the kernels with rings in shared memory for formats
// and shapes that neither can run.
#pragma once

#include "kernels/gemv/slice_gemv.cuh"
#include "kernels/residual.cuh"
#include "kernels/route/route_choose.cuh"

namespace moxie::few_experts {

using namespace fragment;

constexpr int kMaxPicks = 32;  // pairs of a token and a choice in a launch, and so experts

struct Step {
  PackedMatrix gate_up, down;
  int64_t gate_up_expert_bytes, down_expert_bytes;
  const float* gate_up_bias;
  const float* down_bias;
  const float* t;  // [tokens, hidden]
  const int32_t* expert_ids;
  const float* expert_weights;
  float2* x;  // [tokens, hidden]
  float alpha, limit;
  int32_t num_tokens, hidden, top_k, num_units, num_units_down;
  // num_experts > 0: the route step is folded in. 0: the choices and `t` are given.
  int32_t num_experts, num_words;  // num_words: of a token in `logits`
  float rms_eps;
  const std::byte* parts;    // [tokens, hidden] of 4 bytes: the activations
  const float* router_bias;  // [experts]
  // [tokens, num_words]; the first are the experts', without the norm's factor and the bias.
  const float2* logits;
  float2* next_logits;   // likewise; cleared here
  const float* squares;  // [tokens, hidden / 16]
  int32_t* chosen_ids;   // [tokens, top_k], written for readers outside the step
  float* chosen_weights;
  // For implementations with more than one kernel.
  std::byte* halves;  // [pairs][units of down] of 256 bytes: outputs of gate/up
  float2* said;       // behind each token's logits: written by tiles::route(); 0 before that
  int32_t intermediate;
  int32_t first_expert;  // of the matrices; pairs with experts that these do not hold add nothing
};

/// An expert's number in the matrices; negative if these do not hold it.
__device__ __forceinline__ int32_t held_expert(const Step& p, int32_t id) {
  const int32_t number = id - p.first_expert;
  return number < p.gate_up.num_experts ? number : -1;
}

/// The clamped SwiGLU of one output.
__device__ __forceinline__ float swiglu(float gate, float up, float alpha, float limit) {
  gate = fminf(gate, limit);
  up = fminf(fmaxf(up, -limit), limit);
  return gate / (1.0f + __expf(-alpha * gate)) * (up + 1.0f);
}

/// The clamped SwiGLU of one output, times the pair's weight, as the two parts that `down` reads.
template <DType F>
__device__ __forceinline__ void write_half(const Step& p, int pair, float weight, int output,
                                           float gate, float up) {
  const float value = swiglu(gate, up, p.alpha, p.limit) * (weight * kActivationScale<F>);
  const __nv_bfloat16 high = __float2bfloat16_rn(value);
  auto* out = reinterpret_cast<__nv_bfloat16*>(
      p.halves + (static_cast<int64_t>(pair) * p.num_units_down + output / 64) * 256);
  out += output % 64 / 32 * 64 + output % 32;
  out[0] = high;
  out[32] = __float2bfloat16_rn(value - __bfloat162float(high));
}

/// A token's choice from the values that `out` left, and the token's norm factor; by one warp.
template <int kMine>
__device__ __forceinline__ Choice route_token(const Step& p, int token,
                                              const float (&bias)[kMaxExperts / 32],
                                              float& factor) {
  const int lane = threadIdx.x % 32, num_tiles = p.hidden / 16;
  const float2* sums = p.logits + int64_t{token} * p.num_words;
  const float* squares = p.squares + int64_t{token} * num_tiles;
  float2 logits[kMine] = {};
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    if (lane + 32 * i < p.num_experts) logits[i] = load_early(sums + lane + 32 * i);
  }
  // All loads of a round are issued before the first one is waited for.
  constexpr int kRound = 6;
  float square = 0;
#pragma unroll 1
  for (int first = lane; first - lane < num_tiles; first += 32 * kRound) {
    float parts[kRound];
#pragma unroll
    for (int i = 0; i < kRound; ++i)
      parts[i] = first + 32 * i < num_tiles ? load_early(squares + first + 32 * i) : 0.0f;
#pragma unroll
    for (int i = 0; i < kRound; ++i) square += parts[i];
  }
  factor = rsqrtf(__fdividef(warp_sum(square), static_cast<float>(p.hidden)) + p.rms_eps);
  return choose_experts<kMine>(p.num_experts, p.top_k,
                               [&](int, int i) { return whole(logits[i]) * factor + bias[i]; });
}

/// Loads the lane's share of the router's bias.
__device__ __forceinline__ void load_router_bias(const Step& p, float (&bias)[kMaxExperts / 32]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kMaxExperts / 32; ++i)
    bias[i] = lane + 32 * i < p.num_experts ? load_early(p.router_bias + lane + 32 * i) : 0.0f;
}

}  // namespace moxie::few_experts
