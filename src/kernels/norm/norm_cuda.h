// RMSNorm of the residual stream on CUDA, for steps that are composed of smaller kernels.
//
//   y = x / sqrt(mean(x^2) + eps) * weight, in F32, the weight multiplied before any rounding.
#pragma once

#include <cstdint>

#include "core/device.h"

namespace moxie {

inline constexpr int32_t kMaxNormedWidth = 4096;

struct RmsNormParams {
  int32_t num_tokens = 0, hidden = 0;  // hidden: a multiple of 4, at most kMaxNormedWidth
  float eps = 1e-5f;
  const float* x = nullptr;       // [tokens, hidden] of two floats (residual.cuh)
  bool x_is_single = false;       // one float a value
  const float* weight = nullptr;  // [hidden], aligned to 16 bytes as all
  float* y = nullptr;             // [tokens, hidden], written
};

void rms_norm_f32_cuda(const RmsNormParams& params, Stream* stream);

}  // namespace moxie
