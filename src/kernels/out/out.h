// out: x += W a + b, the attention's output projection added to the residual. Draft heads, whose
// layers have other products than the model's steps, also use it as x = W a + b.
#pragma once

#include "kernels/registry.h"
#include "kernels/route/route.h"

namespace moxie {

struct OutParams {
  Launch launch;
  int32_t num_tokens = 0;
  const float* a = nullptr;     // [tokens, weight.cols]
  PackedMatrix weight;          // [hidden, heads * head_dim]
  const float* bias = nullptr;  // [hidden]
  float* x = nullptr;           // [tokens, hidden], read and written
  bool overwrites = false;      // x = W a + b, x of one float a value
  /// With ReduceForm::kRounded or kSent: = W a + b in BF16, instead of x; and the same in the
  /// memory of the other of two ranks, or null.
  uint16_t *rounded = nullptr, *rounded_of_other = nullptr;
  RouteFold fold;  // with RouterForm::kSums, of the route step that follows
  /// With ReduceForm::kFolded: what the router's products are of besides this rank's part, which is
  /// all that x has; null but on the first rank. One float a value.
  const float* folded_x = nullptr;
  Forms forms;  // of a, x and the router's products
  /// kBF16 or wider; or kMXFP8: rows that round activations and weights to integers may run.
  DType activation = DType::kBF16;
};

template <>
struct Op<OutParams> {
  static constexpr OpInfo info{"out"};
  static std::span<const Row<OutParams>> rows();
  static Work work(const OutParams& params);
};

}  // namespace moxie
