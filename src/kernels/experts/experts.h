// experts: x += sum over the chosen experts e of w_e (W2_e act(W1_e t + b1_e) + b2_e).
//
//   g = min(gate, limit);  u = clamp(up, -limit, limit);  act = g sigmoid(alpha g) (u + 1)
// The clamps come after the bias. W1's packed rows are gate/up tiles in turn (core/packing.h,
// gate_up_packed_row), b1 in the same order; checkpoints interleave gate (even) and up (odd) rows.
#pragma once

#include <cmath>

#include "kernels/registry.h"
#include "kernels/route/route.h"

namespace moxie {

struct ExpertsParams {
  Launch launch;
  int32_t num_tokens = 0, hidden = 0, intermediate = 0, top_k = 0;
  float swiglu_alpha = 1.702f, swiglu_limit = 7.0f;
  const float* t = nullptr;  // [tokens, hidden], normed
  /// The row makes t itself, RMSNorm(x): kTiledExpertsRow or kE4m3ExpertsRow alone.
  bool norms_x = false;
  float rms_eps = 1e-5f;                // with norms_x
  const float* norm_weight = nullptr;   // [hidden], likewise
  int32_t* expert_ids = nullptr;        // [tokens, top_k]
  float* expert_weights = nullptr;      // [tokens, top_k]
  PackedMatrix gate_up;                 // experts x [2 * round_up(intermediate, 16), hidden]
  const float* gate_up_bias = nullptr;  // [experts, gate_up.rows], packed order, 0 in padding
  PackedMatrix down;                    // experts x [hidden, intermediate]
  const float* down_bias = nullptr;     // [experts, hidden]
  float* x = nullptr;                   // [tokens, hidden], read and written
  bool x_is_single = false;             // CUDA: x has one float a value, not two (residual.cuh)
  RouteFold fold;  // if on: `t` is not read, expert_ids and expert_weights are written
  DType activation = DType::kBF16;  // kF8E4M3: rows with 8-bit activations may run
  int32_t tile_columns = 0;  // of rows that cut an expert's tokens into tiles; 0: by the tile model
};

template <>
struct StepOf<ExpertsParams> {
  static constexpr StepKind value = StepKind::kExperts;
};
template <>
std::span<const Row<ExpertsParams>> table_of<ExpertsParams>();

/// The row that can do the route step too (RouteFold), and whether it can with these params.
inline constexpr const char* kRoutingExpertsRow = "experts_any_bf16x2_gemv_cuda";
bool can_route_in_experts(const ExpertsParams& params);

/// The row that takes `tile_columns`.
inline constexpr const char* kTiledExpertsRow = "experts_mxfp4_bf16_gemm_sm90";

/// The row of `--activation mxfp8`.
inline constexpr const char* kE4m3ExpertsRow = "experts_mxfp4_e4m3_gemm_sm90";

/// `num_distinct`: experts that any token of the launch chose; their weights are read once.
Work experts_work(const ExpertsParams& params, int32_t num_distinct);

/// The clamped SwiGLU of one gate and up value.
inline float clamped_swiglu(float gate, float up, float alpha, float limit) {
  const float g = gate < limit ? gate : limit;
  const float u = up < -limit ? -limit : up > limit ? limit : up;
  return g / (1.0f + std::exp(-alpha * g)) * (u + 1.0f);
}

}  // namespace moxie
