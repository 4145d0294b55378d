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
  bool x_is_single = false;     // CUDA: x has one float a value, not two (residual.cuh)
  RouteFold fold;               // of the route step that follows
  bool is_a_staged = false;     // AttendParams::stages_a: for kStagedOutRow alone
};

struct RoutePartOf;  // kernels/joined.h
template <>
struct JointOf<OutParams> {
  /// run(), with a part of route as soon as kRoutePartColumns of the outputs are final.
  void (*run_with)(const OutParams&, const RoutePartOf&) = nullptr;
};

inline constexpr const char* kStagedOutRow = "out_any_bf16_gemm_sm90";
/// From so many tokens on staged rows take no more memory than F32 ones.
inline constexpr int32_t kLeastStagedTokens = 8;

template <>
struct StepOf<OutParams> {
  static constexpr StepKind value = StepKind::kOut;
};
template <>
std::span<const Row<OutParams>> table_of<OutParams>();

Work out_work(const OutParams& params);

}  // namespace moxie
