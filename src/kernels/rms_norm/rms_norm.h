// rms_norm: y = RMSNorm(x) w, or y = x, for rows of x that may lie apart, to rows of y that may.
// Draft heads need it alone: they join normed rows of several tensors, and normed outputs go on as
// features. The steps of the model norm inside their own rows.
#pragma once

#include "kernels/registry.h"

namespace moxie {

struct RmsNormParams {
  Launch launch;
  int32_t num_tokens = 0, width = 0;
  float rms_eps = 1e-5f;
  const float* x = nullptr;            // [tokens, x_stride]
  const float* weight = nullptr;       // [width]; null: y = x
  float* y = nullptr;                  // [tokens, y_stride], written; may be x
  int64_t x_stride = 0, y_stride = 0;  // in values
  Forms forms;                         // of x
  XForm y_form = XForm::kF32;
};

template <>
struct Op<RmsNormParams> {
  static constexpr OpInfo info{"rms_norm"};
  static std::span<const Row<RmsNormParams>> rows();
  static Work work(const RmsNormParams& params);
};

}  // namespace moxie
