// experts: x += sum over the chosen experts e of w_e (W2_e act(W1_e t + b1_e) + b2_e).
//
//   g = min(gate, limit);  u = clamp(up, -limit, limit);  act = g sigmoid(alpha g) (u + 1)
// The clamps come after the bias. The packed rows of W1 alternate gate and up tiles
// (core/packing.h, gate_up_packed_row), b1 is in the same order; checkpoints interleave gate (even)
// and up (odd) rows.
#pragma once

#include <cmath>

#include "kernels/distinct_experts.h"
#include "kernels/pair_outputs.h"
#include "kernels/reduce_fold.h"
#include "kernels/registry.h"
#include "kernels/route/route.h"

namespace moxie {

struct ExpertsParams {
  Launch launch;
  int32_t num_tokens = 0, hidden = 0, intermediate = 0, top_k = 0;
  float swiglu_alpha = 1.702f, swiglu_limit = 7.0f;
  const float* t = nullptr;             // [tokens, hidden], normed
  float rms_eps = 1e-5f;                // with TForm::kAbsent
  const float* norm_weight = nullptr;   // [hidden], with TForm::kAbsent
  const float* normed_x = nullptr;      // with TForm::kAbsent: x, if `x` is a part of it
  int32_t* expert_ids = nullptr;        // [tokens, top_k]
  float* expert_weights = nullptr;      // [tokens, top_k]
  int32_t num_routed = 0;               // experts that ids name; 0: those of gate_up
  int32_t first_expert = 0;             // of gate_up and down: pairs with others add nothing
  PackedMatrix gate_up;                 // experts x [2 * round_up(intermediate, 16), hidden]
  const float* gate_up_bias = nullptr;  // [experts, gate_up.rows], packed order, 0 in padding
  PackedMatrix down;                    // experts x [hidden, intermediate]
  const float* down_bias = nullptr;     // [experts, hidden]
  float* x = nullptr;                   // [tokens, hidden], read and written
  bool overwrites = false;              // CUDA, x of one float a value: x = the experts' sum
  PairOutputs pairs;                    // with ReduceForm::kRounded: written instead of x
  RouteFold fold;  // with RouterForm::kSums: t is not read, expert_ids, expert_weights are written
  /// With ReduceForm::kFolded: of out's part, and of the router's products, which are parts, too.
  ReduceFold reduce;
  const float* folded_x = nullptr;  // [hidden]: x without out's parts, one float a value
  Forms forms;                      // of the router's products, t and x
  /// kBF16 (or wider), or an MX format, to whose blocks of 32 rows round the inputs of both
  /// products (OCP MX v1.0): kMXFP8, kMXFP6 (E2M3), kMXFP6E3M2 or kMXFP4. On CUDA launches of few
  /// tokens keep 16 bits, and Hopper's row for MXFP8 has a scale a token.
  DType activation = DType::kBF16;
  gemm::Tile tile;                 // of rows that cut an expert's tokens into tiles
  gemm::TileDevice tile_device{};  // for the tile model
};

template <>
struct Op<ExpertsParams> {
  static constexpr OpInfo info{"experts"};
  static std::span<const Row<ExpertsParams>> rows();
  static Work work(const ExpertsParams& params);
};

/// The experts among which tokens choose: more than the weights hold, on a rank with whole experts.
inline int32_t routed_experts(const ExpertsParams& p) {
  return p.num_routed > 0 ? p.num_routed : p.gate_up.num_experts;
}
inline bool holds_all_experts(const ExpertsParams& p) {
  return p.first_expert == 0 && p.gate_up.num_experts == routed_experts(p);
}
/// Pairs with experts that the weights hold, if tokens choose evenly among all.
inline double expected_pairs(const ExpertsParams& p) {
  return static_cast<double>(p.num_tokens) * p.top_k * p.gate_up.num_experts / routed_experts(p);
}

/// What rows that norm their input (TForm::kAbsent) read.
inline const float* normed_x(const ExpertsParams& p) {
  return p.normed_x != nullptr ? p.normed_x : p.x;
}

/// Op::work() assumes that tokens choose evenly among the experts. Here `num_distinct` is the
/// number of experts that any token of the launch chose; the weights hold their share of these, and
/// the weights of each are read once.
Work experts_work(const ExpertsParams& params, int32_t num_distinct);

/// The clamped SwiGLU of one gate and up value.
inline float clamped_swiglu(float gate, float up, float alpha, float limit) {
  const float g = gate < limit ? gate : limit;
  const float u = up < -limit ? -limit : up > limit ? limit : up;
  return g / (1.0f + std::exp(-alpha * g)) * (u + 1.0f);
}

}  // namespace moxie
