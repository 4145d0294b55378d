// rms_norm on the CPU: bound by memory, as are the products beside it by their weights.
#include <algorithm>
#include <cmath>

#include "core/threads.h"
#include "kernels/rms_norm/rms_norm_rows.h"

namespace moxie {
namespace {

void norm_row(const RmsNormParams& p, const float* x, float* y) {
  if (p.weight == nullptr) {
    if (x != y) std::copy_n(x, p.width, y);
    return;
  }
  float sum = 0;
  for (int32_t i = 0; i < p.width; ++i) sum += x[i] * x[i];
  const float factor = 1.0f / std::sqrt(sum / static_cast<float>(p.width) + p.rms_eps);
  for (int32_t i = 0; i < p.width; ++i) y[i] = x[i] * factor * p.weight[i];
}

}  // namespace

void rms_norm_f32_portable(const RmsNormParams& p) {
  constexpr int64_t kTokensOfTask = 8;
  p.launch.stream->pool->share(p.num_tokens, kTokensOfTask, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token)
      norm_row(p, p.x + token * p.x_stride, p.y + token * p.y_stride);
  });
}

}  // namespace moxie
