// gate on the CPU.
#include <cmath>

#include "core/threads.h"
#include "kernels/gate/gate_rows.h"

namespace moxie {

void gate_f32_portable(const GateParams& p) {
  constexpr int64_t kTokensOfTask = 2;
  p.launch.stream->pool->share(p.num_tokens, kTokensOfTask, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const float* g = p.gate_up + token * 2 * p.width;
      const float* u = g + p.width;
      float* y = p.y + token * p.width;
      for (int32_t i = 0; i < p.width; ++i) y[i] = g[i] / (1.0f + std::exp(-g[i])) * u[i];
    }
  });
}

}  // namespace moxie
