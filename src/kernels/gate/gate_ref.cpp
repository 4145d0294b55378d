// gate by definition.
#include <cmath>

#include "kernels/gate/gate_rows.h"

namespace moxie {

void gate_reference(const GateParams& p) {
  for (int64_t token = 0; token < p.num_tokens; ++token) {
    const float* g = p.gate_up + token * 2 * p.width;
    const float* u = g + p.width;
    for (int32_t i = 0; i < p.width; ++i) {
      const double gate = g[i];
      p.y[token * p.width + i] = static_cast<float>(gate / (1.0 + std::exp(-gate)) * u[i]);
    }
  }
}

}  // namespace moxie
