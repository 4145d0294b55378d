// RMSNorm in double precision: x / sqrt(mean(x^2) + eps) * weight, the weight multiplied before any
// rounding.
#pragma once

#include <cmath>
#include <cstdint>

namespace moxie {

inline void reference_rms_norm(const float* x, const float* weight, int32_t n, double eps,
                               double* out) {
  double sum = 0;
  for (int32_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  const double factor = 1.0 / std::sqrt(sum / n + eps);
  for (int32_t i = 0; i < n; ++i) out[i] = x[i] * factor * weight[i];
}

}  // namespace moxie
