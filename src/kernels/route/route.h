// route: t = RMSNorm(x); logits = W t + b; the top_k greatest, ties to the lower index; softmax
// over those alone.
#pragma once

#include "kernels/registry.h"

namespace moxie {

inline constexpr int32_t kMaxTopK = 16;

/// Words (of two floats) for a token in RouteFold::sums: the experts' sums, then the choices that
/// blocks of `experts` publish for each other (experts_tiles.cuh).
constexpr int32_t words_of_token(int32_t num_experts, int32_t top_k) {
  return num_experts + top_k + 1;
}

/// Routing without a kernel of its own (CUDA): `out` adds each tile's share of the router's
/// products to `sums`; `experts` applies the norm's factor and the bias and chooses.
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
  // Written by `out`: the experts' activations without the norm's factor, as BF16 parts in the
  // order that their kernel reads, 4 bytes a value: [tokens, hidden].
  std::byte* parts = nullptr;
  DType experts_format = DType::kMXFP4;  // whose scale is in the parts

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
};

template <>
struct Op<RouteParams> {
  static constexpr OpInfo info{"route"};
  static std::span<const Row<RouteParams>> rows();
  static Work work(const RouteParams& params);
};

}  // namespace moxie
