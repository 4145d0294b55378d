// rms_norm by definition.
#include <vector>

#include "kernels/norm/reference_norm.h"
#include "kernels/rms_norm/rms_norm_rows.h"

namespace moxie {

void rms_norm_reference(const RmsNormParams& p) {
  std::vector<double> row(static_cast<size_t>(p.width));
  for (int32_t token = 0; token < p.num_tokens; ++token) {
    const float* x = p.x + token * p.x_stride;
    float* y = p.y + token * p.y_stride;
    if (p.weight != nullptr) reference_rms_norm(x, p.weight, p.width, p.rms_eps, row.data());
    for (int32_t i = 0; i < p.width; ++i)
      y[i] = p.weight != nullptr ? static_cast<float>(row[static_cast<size_t>(i)]) : x[i];
  }
}

}  // namespace moxie
