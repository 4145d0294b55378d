// What the variants of MoeFp8Kernels share: the activation, the sum of outputs and the ends of
// products with a few tokens. Include this file only in files compiled for one instruction set; all
// its code is in an anonymous namespace, for the reason that gemv/lanes.h gives.
#pragma once

#include <immintrin.h>

#include "kernels/moe_fp8/moe_fp8_lanes.h"
#include "kernels/vectors_body.h"

namespace moxie {
namespace {

constexpr int32_t kBlock = 128, kBlocksOfVecs = 16 / kLanes;  // vectors of 16 values

// y[row * N + token] = the sums of all lanes.
template <int N>
MOXIE_INLINE void store_few(const Vec (&total)[kMoeFp8FewRows][N], float* y) {
  for (int32_t r = 0; r < kMoeFp8FewRows; ++r) {
    for (int32_t n = 0; n < N; ++n) {
      float sum = 0;
      for (int32_t lane = 0; lane < kLanes; ++lane) sum += total[r][n][lane];
      y[r * N + n] = sum;
    }
  }
}

// ---- Activation and outputs ---------------------------------------------------------------------

MOXIE_INLINE void silu_times(const Vec& gate, const Vec& up, Vec& out) {
  Vec e;
  exp_lanes(-gate, e);
  out = gate / (e + 1.0f) * up;
}

void add_outputs(const float* sums, const float* weights, int32_t num_tokens, float* const* out) {
  for (int32_t token = 0; token < num_tokens; ++token) {
    float of_token[kMoeFp8Strip];
    for (int32_t row = 0; row < kMoeFp8Strip; ++row)
      of_token[row] = sums[row * kMoeFp8Group + token];
    for (int32_t row = 0; row < kMoeFp8Strip; row += kLanes) {
      Vec y, total;
      load(of_token + row, y);
      load(out[token] + row, total);
      store(out[token] + row, total + y * weights[token]);
    }
  }
}

}  // namespace
}  // namespace moxie
