// route: t = RMSNorm(x); logits = W t + b; the top_k greatest, ties to the lower index; softmax
// over those alone.
#pragma once

#include "kernels/registry.h"

namespace moxie {

inline constexpr int32_t kMaxTopK = 16;

struct RouteParams {
  Launch launch;
  int32_t num_tokens = 0, hidden = 0, top_k = 0;
  float rms_eps = 1e-5f;
  const float* x = nullptr;            // [tokens, hidden]
  const float* norm_weight = nullptr;  // [hidden]
  PackedMatrix weight;                 // [experts, hidden]
  const float* bias = nullptr;         // [experts]
  float* t = nullptr;                  // [tokens, hidden], written: the experts' input
  int32_t* expert_ids = nullptr;       // [tokens, top_k], written, by falling logit
  float* expert_weights = nullptr;     // [tokens, top_k], written
};

template <>
struct StepOf<RouteParams> {
  static constexpr StepKind value = StepKind::kRoute;
};
template <>
std::span<const Row<RouteParams>> table_of<RouteParams>();

Work route_work(const RouteParams& params);

}  // namespace moxie
