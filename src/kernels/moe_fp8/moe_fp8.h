// moe_fp8_block_scale: a mixture of experts in FP8 with block scales and grouped sigmoid routing.
//
// Routing, for each token, in F32: s = sigmoid(logits), b = s + bias. The experts form num_groups
// runs of equal length; a group's score is the sum of its two greatest b; the kept_groups best
// groups stay, and of their experts the top_k greatest b are chosen. Of equals the lower index
// wins. w_e = s_e / (sum of s over all chosen + 1e-20) * routed_scaling_factor.
// Then, over the chosen experts e in [local_expert_offset, + num_local_experts):
//   output = sum of w_e W2_e (silu(gate_e t) * (up_e t))
// Other choices add nothing: their weights stay in the sum that divides, and a token without a
// local expert has an output of exact zeros.
#pragma once

#include "kernels/registry.h"

namespace moxie {

/// Columns of a block of activations, and rows and columns of a block of weights, that share a
/// scale.
inline constexpr int32_t kFp8Block = 128;

/// Extents and row-major tensors without padding. A scale is any float: signed, zero, subnormal.
/// E4M3 is the variant without infinities; a NaN code reaches the outputs of its own token only
/// (one in a weight: of the tokens that choose the expert).
struct MoeFp8Params {
  Launch launch;
  int32_t num_tokens = 0, num_experts = 0, num_local_experts = 0, hidden = 0, intermediate = 0;
  int32_t num_groups = 8, kept_groups = 4, top_k = 8;
  int32_t local_expert_offset = 0;
  float routed_scaling_factor = 1.0f;
  const float* routing_logits = nullptr;       // [tokens, experts]
  const uint16_t* routing_bias = nullptr;      // [experts], BF16
  const uint8_t* hidden_states = nullptr;      // [tokens, hidden], E4M3
  const float* hidden_states_scale = nullptr;  // [hidden / 128, tokens]
  const uint8_t* gemm1_weights = nullptr;      // [local, 2 intermediate, hidden], E4M3: up, gate
  const float* gemm1_weights_scale = nullptr;  // [local, 2 intermediate / 128, hidden / 128]
  const uint8_t* gemm2_weights = nullptr;      // [local, hidden, intermediate], E4M3
  const float* gemm2_weights_scale = nullptr;  // [local, hidden / 128, intermediate / 128]
  uint16_t* output = nullptr;                  // [tokens, hidden], BF16, written
  /// The intermediate silu(gate) * up has 16 bits of significand or more: with the 8 of BF16, 7 to
  /// 10% of the outputs of a test were off by more than 1%. kF8E4M3: rows that round it to E4M3
  /// with a scale for each 1 x 128 may run, too.
  DType activation = DType::kBF16;
};

template <>
struct Op<MoeFp8Params> {
  static constexpr OpInfo info{"moe_fp8_block_scale"};
  static std::span<const Row<MoeFp8Params>> rows();
  /// Assumes that tokens choose evenly among the experts.
  static Work work(const MoeFp8Params& params);
};

/// What a routing costs: pairs of a token and a local expert, and the local experts in any pair.
struct MoeFp8Load {
  double num_pairs = 0, num_touched = 0;
};
/// The expectation if tokens choose evenly.
MoeFp8Load expected_moe_fp8_load(const MoeFp8Params& params);
/// What the routing tensors say; these are in the host's memory.
MoeFp8Load moe_fp8_load(const MoeFp8Params& params);
/// The weights of each touched expert are read once.
Work moe_fp8_work(const MoeFp8Params& params, const MoeFp8Load& load);

/// The greatest values that rows accept.
inline constexpr int32_t kMoeFp8MaxExperts = 4096, kMoeFp8MaxTopK = 64;

/// Why no row can run these extents; null if they are sound. Every row refuses for these reasons,
/// so that a row reads no tensor beyond its end. Pointers are not looked at.
const char* moe_fp8_shape_fault(const MoeFp8Params& params);

}  // namespace moxie
