// What the tests of moe_fp8_block_scale on the CPU and on CUDA share: changes to a built case, and
// the definition's rule of matched outputs.
#pragma once

#include <cmath>
#include <vector>

#include "core/formats.h"
#include "kernels/moe_fp8/moe_fp8.h"

namespace moxie::testing {

inline uint8_t* mutable_bytes(const uint8_t* at) { return const_cast<uint8_t*>(at); }
inline float* mutable_floats(const float* at) { return const_cast<float*>(at); }
inline uint16_t* mutable_words(const uint16_t* at) { return const_cast<uint16_t*>(at); }

/// The bias that makes each token choose experts first..first + top_k - 1, whose groups it keeps.
inline void choose_all(MoeFp8Params& p, int32_t first) {
  for (int32_t e = 0; e < p.num_experts; ++e)
    mutable_words(p.routing_bias)[e] = f32_to_bf16(e >= first && e < first + p.top_k ? 8.0f : 0.0f);
}

/// Scales from zero to 2^60; each pair of factors multiplies to a size that F32 holds.
inline void spread_scales(MoeFp8Params& p) {
  float* a = mutable_floats(p.hidden_states_scale);
  float* w = mutable_floats(p.gemm1_weights_scale);
  float* down = mutable_floats(p.gemm2_weights_scale);
  const int64_t in = p.hidden / kFp8Block, mid = p.intermediate / kFp8Block;
  for (int64_t i = 0; i < in * p.num_tokens; ++i) a[i] *= 0x1p60f;
  for (int64_t i = 0; i < p.num_local_experts * 2 * mid * in; ++i)
    w[i] = i % 3 == 0 ? 0.0f : w[i] * 0x1p-60f;
  for (int64_t i = 0; i < p.num_local_experts * mid * in; ++i)
    down[i] *= i % 2 == 0 ? 0x1p60f : 0x1p-60f;
}

/// The definition's rule, at its default tolerances: an output is off only if both errors are.
inline bool is_matched(double output, double reference) {
  const double error = std::fabs(output - reference);
  return error <= 1e-2 || error / (std::fabs(reference) + 1e-8) <= 1e-2;
}
inline double matched_share(const std::vector<double>& output,
                            const std::vector<double>& reference) {
  double num_matched = 0;
  for (size_t i = 0; i < output.size(); ++i) num_matched += is_matched(output[i], reference[i]);
  return num_matched / static_cast<double>(output.size());
}

}  // namespace moxie::testing
