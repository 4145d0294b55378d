// out: x += W a + b, the attention's output projection added to the residual.
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
  RouteFold fold;               // with RouterForm::kSums, of the route step that follows
  Forms forms;                  // of a, x and the router's products
};

struct RoutePartOf;  // kernels/joined.h
template <>
struct JointOf<OutParams> {
  /// run(), with a part of route as soon as kRoutePartColumns of the outputs are final.
  void (*run_with)(const OutParams&, const RoutePartOf&) = nullptr;
};

template <>
struct StepOf<OutParams> {
  static constexpr StepKind value = StepKind::kOut;
};
template <>
std::span<const Row<OutParams>> table_of<OutParams>();

Work out_work(const OutParams& params);

}  // namespace moxie
