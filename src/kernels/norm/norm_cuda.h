// RMSNorm of rows on CUDA, for steps that are composed of smaller kernels.
//
//   y = x / sqrt(mean(x^2) + eps) * weight, in F32, the weight multiplied before any rounding.
#pragma once

#include <cstdint>

#include "kernels/step.h"

namespace moxie {

/// The widest rows; up to kMaxNormedWidth their weights are loaded before the wait for x.
inline constexpr int32_t kMaxWideNorm = 16384, kMaxNormedWidth = 4096;

struct NormRows {
  int32_t num_tokens = 0, width = 0;  // width and strides: multiples of 4
  float eps = 1e-5f;
  const float* x = nullptr;       // [tokens, x_stride], aligned to 16 bytes as all
  const float* weight = nullptr;  // [width]; null: y = x
  float* y = nullptr;             // [tokens, y_stride], written; may be x if the forms are alike
  int64_t x_stride = 0, y_stride = 0;  // in values
  XForm x_form = XForm::kF32Pair, y_form = XForm::kF32;
};

void rms_norm_f32_cuda(const NormRows& rows, const Launch& launch);

}  // namespace moxie
