// RMSNorm on CUDA, for the steps that are composed of smaller kernels; rows that fuse it take the
// device function in norm_cuda.cuh.
//
//   y = x / sqrt(mean(x^2) + eps) * weight, in F32, the weight multiplied before any rounding.
#pragma once

#include <cstdint>

#include "core/device.h"

namespace moxie {

struct RmsNormParams {
  int32_t num_tokens = 0, hidden = 0;  // hidden: a multiple of 4
  float eps = 1e-5f;
  const float* x = nullptr;       // [tokens, hidden], aligned to 16 bytes
  const float* weight = nullptr;  // [hidden]
  float* y = nullptr;             // [tokens, hidden], written; may be x
};

void rms_norm_f32_cuda(const RmsNormParams& params, Stream* stream);

}  // namespace moxie
