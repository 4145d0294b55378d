// gate: y = SiLU(g) u, with SiLU(g) = g / (1 + exp(-g)): the activation of plain Llama layers,
// which draft heads have.
#pragma once

#include "kernels/registry.h"

namespace moxie {

struct GateParams {
  Launch launch;
  int32_t num_tokens = 0, width = 0;
  const float* gate_up = nullptr;  // [tokens, 2 * width]: g, then u
  float* y = nullptr;              // [tokens, width], written
};

template <>
struct Op<GateParams> {
  static constexpr OpInfo info{"gate"};
  static std::span<const Row<GateParams>> rows();
  static Work work(const GateParams& params);
};

}  // namespace moxie
