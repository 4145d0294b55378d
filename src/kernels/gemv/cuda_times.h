// Predicted times of the CUDA rows that multiply dense layers. Shares and launches were fitted so
// that what was faster on an H200 is what is predicted to be; other devices scale them by their
// rates.
#pragma once

#include "core/packing.h"
#include "kernels/registry.h"

namespace moxie {

inline constexpr FormSet<XForm> kAnyX{XForm::kF32, XForm::kF32Pair};
inline constexpr FormSet<L1Form> kAnyL1{L1Form::kShared, L1Form::kL1};

/// Rows for a few tokens go through more in groups of so many.
inline constexpr int32_t kGroupOfGemv = 8;
/// Up to so many tokens weights of MXFP4 are loaded straight to registers (gemv/split_gemv.cuh).
/// There L1 holds what is on its way; other formats go through rings in shared memory.
inline double dense_gemv_us(const Work& work, const PackedMatrix& weight, int32_t num_tokens,
                            L1Form l1, const DeviceRates& rates) {
  const double us = grouped_us(work, static_cast<double>(weight.bytes()), num_tokens, kGroupOfGemv,
                               rates, {.read = 0.85, .fixed_us = 2.0});
  const bool is_suited = (weight.format == DType::kMXFP4) == (l1 == L1Form::kL1);
  return is_suited ? us : 1.02 * us;
}

/// The rows by wgmma.
inline double dense_gemm_us(const Work& work, int32_t hidden, const DeviceRates& rates) {
  if (hidden < kLeastGemmHidden) return kNeverUs;
  return predicted_us(work, rates, rates.bf16_gflops,
                      {.read = 0.6, .products = 0.65, .fixed_us = 3.0});
}

/// What the ordered rows, which give a token the same result in any batch, take longer at least: so
/// that the planner takes them where they are asked for alone.
inline constexpr double kOrderedUs = 1.0;

}  // namespace moxie
