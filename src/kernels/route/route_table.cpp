// The table of route, and its least work.
#include <algorithm>

#include "kernels/gemv/cuda_times.h"
#include "kernels/gemv/gemv_row.h"
#include "kernels/route/route_rows.h"

namespace moxie {
namespace {

using enum LaneActivations;

#if MOXIE_HAS_CUDA
// Fitted on an H200: 4.7 us for one token. The row that keeps the router in registers takes less
// from four tokens on, the wide row from some 1,800. (For many tokens it takes more than is
// predicted, 17.5 us for 512 and 49 for 2,048; with that, plans take other experts' rows, which are
// predicted too well.)
double route_gemv_us(const RouteParams& p) { return 4.7 + 0.012 * p.num_tokens; }
double route_gemm_us(const RouteParams& p) {
  return (p.num_tokens < 4 ? 2.0 : 0.75) * route_gemv_us(p);
}
// Two kernels: 8.3 us for 8 tokens of 32 or 128 experts on an H100, 8.2 for 64. Beyond, the tokens'
// reads from L2 are estimated: more than the wide row from some 1,500 tokens on. With less for a
// token, x in one float would be planned on Hopper from some 200 tokens on; where clusters are, the
// row above stays ahead for any number.
double route_tiles_us(const RouteParams& p) {
  return std::max(route_gemm_us(p), 8.3 + 0.04 * std::max(0, p.num_tokens - 64));
}
#endif

constexpr const char* kAnyFormat = "f32, bf16, q8_0, mxfp4";

const Row<RouteParams> kRows[] = {
    {.name = "route_reference",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "f32, bf16, q8_0, mxfp4",
     .limits = "any number of tokens; double precision, slow",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = route_reference_refuses,
     .predict_us = reference_us<RouteParams>,
     .workspace = route_reference_workspace,
     .run = route_reference},
    gemv_row<RouteParams, kLanesPortable>("route_any_f32_gemv_portable", kFeatureNone, kF32,
                                          kAnyFormat, kRanAnyCpu),
#if defined(__x86_64__)
    gemv_row<RouteParams, kLanesAvx2>("route_any_f32_gemv_avx2", kAvx2, kF32, kAnyFormat),
    gemv_row<RouteParams, kLanesAvx512>("route_any_f32_gemv_avx512", kAvx512, kF32, kAnyFormat),
#endif
#if MOXIE_HAS_CUDA
    {.name = "route_any_bf16x2_gemv_cuda",
     .kind = "gemv",
     .device = DeviceKind::kCuda,
     .needs = kClusters,
     .supports = "f32, bf16, q8_0, mxfp4, mxfp8; up to 18432 columns; at most 256 experts",
     .limits = "any number of tokens in groups of 8, best for 1 to 8; activations to 2^-17",
     .ran_on = kRanWithClusters,
     .layout = PackedLayout::kFragment16x32,
     .forms = {.x = {XForm::kF32Pair}, .l1 = kAnyL1},
     .refuses = route_any_bf16x2_gemv_cuda_refuses,
     .predict_us = [](const RouteParams& p, const DeviceRates&) { return route_gemv_us(p); },
     .workspace = [](const RouteParams&) { return uint64_t{0}; },
     .run = route_any_bf16x2_gemv_cuda},
    {.name = "route_bf16_bf16x2_gemm_cuda",
     .device = DeviceKind::kCuda,
     .needs = kClusters,
     .supports = "bf16; up to 3072 columns; at most 128 experts, 256 of fewer columns",
     .limits = "any number of tokens, best from 4 on; activations to 2^-17",
     .ran_on = kRanWithClusters,
     .layout = PackedLayout::kFragment16x32,
     .forms = {.x = {XForm::kF32Pair}, .l1 = kAnyL1},
     .is_batch_invariant = true,
     .refuses = route_bf16_bf16x2_gemm_cuda_refuses,
     .predict_us = [](const RouteParams& p, const DeviceRates&) { return route_gemm_us(p); },
     .workspace = [](const RouteParams&) { return uint64_t{0}; },
     .run = route_bf16_bf16x2_gemm_cuda},
    {.name = "route_bf16_bf16x2_wide_cuda",
     .device = DeviceKind::kCuda,
     .needs = kCudaAny,
     .supports = "bf16; up to 4096 columns; at most 256 experts",
     .limits = "any number of tokens, best from some 1,800 on; activations to 2^-17",
     .ran_on = kRanAnyCuda,
     .layout = PackedLayout::kFragment16x32,
     .forms = {.x = kAnyX, .t = {TForm::kF32, TForm::kAbsent}, .l1 = kAnyL1},
     .is_batch_invariant = true,
     .refuses = route_bf16_bf16x2_wide_cuda_refuses,
     .predict_us =
         [](const RouteParams& p, const DeviceRates& rates) {
           // A block of 16 tokens takes 20 us on an H200; two on an SM take 36.
           // Prompts of 1,024 tokens with it were some 5% slower than on other cards without it;
           // why was not looked for.
           if (p.num_tokens < 1800) return std::max(30.0, 3.0 * route_gemv_us(p));
           const int32_t num_sms = rates.num_sms > 0 ? rates.num_sms : 132;
           return 20.0 + 0.006 * std::max(0, p.num_tokens - 16 * num_sms);
         },
     .workspace = [](const RouteParams&) { return uint64_t{0}; },
     .run = route_bf16_bf16x2_wide_cuda},
    {.name = "route_bf16_bf16x2_tiles_cuda",
     .device = DeviceKind::kCuda,
     .needs = kCudaAny,
     .supports = "bf16; up to 3072 columns; at most 256 experts",
     .limits = "any number of tokens, best for 5 to some hundred; activations to 2^-17",
     .ran_on = kMmaRanOn,
     .layout = PackedLayout::kFragment16x32,
     .forms = {.x = kAnyX, .t = {TForm::kF32, TForm::kAbsent}, .l1 = kAnyL1},
     .is_batch_invariant = true,
     .refuses = route_bf16_bf16x2_tiles_cuda_refuses,
     .predict_us = [](const RouteParams& p, const DeviceRates&) { return route_tiles_us(p); },
     .workspace = route_bf16_bf16x2_tiles_cuda_workspace,
     .run = route_bf16_bf16x2_tiles_cuda},
#endif
};

}  // namespace

std::span<const Row<RouteParams>> Op<RouteParams>::rows() { return kRows; }

Work Op<RouteParams>::work(const RouteParams& p) {
  const double tokens = p.num_tokens, rows = p.weight.rows;
  return {.bytes = static_cast<double>(p.weight.bytes()) + 4.0 * (rows + p.hidden) +
                   tokens * ((p.forms.t == TForm::kAbsent ? 4.0 : 8.0) * p.hidden + 8.0 * p.top_k),
          .flops = 2.0 * rows * p.weight.cols * tokens};
}

}  // namespace moxie
