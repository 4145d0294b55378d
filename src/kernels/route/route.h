// route: t = RMSNorm(x); logits = W t + b; the top_k greatest, ties to the lower index; softmax
// over those alone.
#pragma once

#include "kernels/registry.h"

namespace moxie {

inline constexpr int32_t kMaxTopK = 16;

/// Words of two floats of a token in RouteFold::sums: the experts' sums, then what blocks of
/// `experts` say to each other (experts_tiles.cuh).
constexpr int32_t words_of_token(int32_t num_experts, int32_t top_k) {
  return num_experts + top_k + 1;
}

/// Routing without a kernel of its own (CUDA): `out` adds each tile's part of the router's products
/// to `sums`, `experts` applies the norm's factor and the bias and chooses.
struct RouteFold {
  int32_t top_k = 0;
  float rms_eps = 1e-5f;
  const float* norm_weight = nullptr;  // [hidden]
  PackedMatrix weight;                 // [experts, hidden], BF16
  const float* bias = nullptr;         // [experts]
  // Zero when `out` starts: [tokens, words_of_token] of two floats (kernels/residual.cuh).
  float* sums = nullptr;
  float* next_sums = nullptr;  // likewise, cleared by `experts` for the next layer
  float* squares = nullptr;    // [tokens, hidden / 16] sums of x^2 over tiles, written by `out`
  // Written by `out`: what the experts multiply, but for the norm's factor, as parts of BF16 in the
  // order of their kernel, 4 bytes a value: [tokens, hidden].
  std::byte* parts = nullptr;
  DType experts_format = DType::kMXFP4;  // whose scale the parts have

  int32_t words_of_token() const { return moxie::words_of_token(weight.rows, top_k); }
};

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
  Forms forms;                         // of x, read, and of t
  /// CPU: null, or room for route_parts_size() floats, where JointOf<RouteParams>::part has written
  /// the router's products: run() adds them up.
  float* parts = nullptr;
};

/// Columns of x whose products are one part.
inline constexpr int32_t kRoutePartColumns = 64;
/// Floats of one part of a token: a sum for each expert, and that of x^2 behind them.
constexpr int64_t route_part_stride(int32_t num_experts) {
  return round_up<int64_t>(num_experts, 16) + 16;
}
/// Floats of RouteParams::parts [hidden / kRoutePartColumns, tokens, route_part_stride].
constexpr int64_t route_parts_size(int64_t num_tokens, int32_t hidden, int32_t num_experts) {
  return num_tokens * (hidden / kRoutePartColumns) * route_part_stride(num_experts);
}

template <>
struct JointOf<RouteParams> {
  /// The products with columns part * kRoutePartColumns on of x, which are final, of some tokens.
  void (*part)(const RouteParams&, int32_t part, int32_t first_token, int32_t num_tokens) = nullptr;
};

template <>
struct StepOf<RouteParams> {
  static constexpr StepKind value = StepKind::kRoute;
};
template <>
std::span<const Row<RouteParams>> table_of<RouteParams>();

Work route_work(const RouteParams& params);
/// The part of it that are the router's products.
Work router_work(const RouteParams& params);

}  // namespace moxie
