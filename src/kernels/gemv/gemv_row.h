// Rows of the CPU's products. One that multiplies by a set of LaneKernels: the kind of its
// activations determines all but the name, the needed features and the formats. And one of BF16
// products for many tokens.
#pragma once

#include "kernels/gemv/lanes.h"
#include "kernels/registry.h"

namespace moxie {

/// Of the products' activations: unchanged, or fixed point by blocks of 32 (lanes_fixed_body.h).
enum class LaneActivations : uint8_t { kF32, kI16, kI8 };

/// Whether a launch gains enough from 8-bit activations to run with them unasked.
template <typename P>
bool gains_by_int8(const P& p) {
  int32_t num_tokens = 0;
  if constexpr (requires { p.batch; })
    num_tokens = p.batch.num_tokens;
  else if constexpr (requires { p.num_tokens; })
    num_tokens = p.num_tokens;
  else
    num_tokens = p.num_rows;
  int32_t hidden = 0;
  if constexpr (requires { p.hidden; })
    hidden = p.hidden;
  else
    hidden = p.weight.rows;
  return num_tokens >= kLeastInt8Tokens && hidden >= kLeastInt8Hidden;
}

/// Microseconds for work of `ns` nanoseconds of one thread, shared by all threads; kNeverUs and
/// more stay unchanged.
inline double of_threads_us(double ns, const DeviceRates& rates) {
  return ns < kNeverUs ? 1e-3 * ns / rates.num_threads : ns;
}
/// The same for a cost function of the params.
template <auto kCostNs>
constexpr auto cpu_us =
    [](const auto& p, const DeviceRates& rates) { return of_threads_us(kCostNs(p), rates); };

/// The same of a row by vdpbf16ps.
template <auto kCostNs>
constexpr auto dot_us = [](const auto& p, const DeviceRates& rates) {
  const double ns = kCostNs(p);
  return of_threads_us(ns < kNeverUs ? ns * rates.bf16_dot_cost : ns, rates);
};

/// A row that uses the gemv_* functions of the step's <step>_rows.h.
template <typename P, const LaneKernels& kLanes>
constexpr Row<P> gemv_row(const char* name, Features needs, LaneActivations activations,
                          const char* supports, const char* ran_on = "x86-64") {
  constexpr const char* kLimits[] = {
      "any number of tokens, best for 1 to 64; F32 sums",
      "any number of tokens, best for 1 to 4; activations to 2^-16 of their block's greatest",
      ("any number of tokens, best for 8 and more; activations to 2^-8 of their block's greatest: "
       "by itself from 8 tokens and 2048 columns of x, else by --activation int8")};
  return {.name = name,
          .kind = "gemv",
          .device = DeviceKind::kCpu,
          .needs = needs,
          .supports = supports,
          .limits = kLimits[static_cast<int>(activations)],
          .ran_on = ran_on,
          .layout = PackedLayout::kRows16,
          .is_batch_invariant = true,
          .gains_by_int8 = activations == LaneActivations::kI8 ? gains_by_int8<P> : nullptr,
          .refuses = [](const P& p) { return gemv_refuses(p, kLanes); },
          .predict_us =
              [](const P& p, const DeviceRates& rates) {
                return of_threads_us(gemv_cost(p, kLanes), rates);
              },
          .workspace = [](const P& p) { return gemv_workspace(p, kLanes); },
          .run = [](const P& p) { gemv_run(p, kLanes); }};
}

/// What rows of BF16 products for many tokens need (gemv/gemm.h): AMX tiles, or vdpbf16ps.
inline constexpr Features kAmxGemm = kAvx512 | kAvx512Bf16 | kAmxBf16,
                          kDotGemm = kAvx512 | kAvx512Bf16;
/// A row of such products.
template <typename P>
constexpr Row<P> bf16_gemm_row(const char* name, Features needs, const char* supports,
                               const char* limits, const char* (*refuses)(const P&),
                               double (*predict_us)(const P&, const DeviceRates&),
                               uint64_t (*workspace)(const P&), void (*run)(const P&),
                               const char* kind = "") {
  return {.name = name,
          .kind = kind,
          .device = DeviceKind::kCpu,
          .needs = needs,
          .supports = supports,
          .limits = limits,
          .ran_on = "x86-64",
          .layout = PackedLayout::kRows16,
          .is_batch_invariant = true,
          .refuses = refuses,
          .predict_us = predict_us,
          .workspace = workspace,
          .run = run};
}

}  // namespace moxie
