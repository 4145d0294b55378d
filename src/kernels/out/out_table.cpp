// The table of out, and its least work.
#include "kernels/gemv/cuda_times.h"
#include "kernels/gemv/gemv_row.h"
#include "kernels/out/out_rows.h"

namespace moxie {
namespace {

using enum LaneActivations;

uint64_t no_workspace(const OutParams&) { return 0; }

constexpr const char* kAnyFormat = "f32, bf16, q8_0, mxfp4";
constexpr const char* kMxfp4Only = "mxfp4";

#if defined(__x86_64__)
constexpr const char* kBf16Limits =
    "any number of tokens; activations rounded to bf16, so by default only from 16 tokens and "
    "sizes of 1,024";
#endif

#if MOXIE_HAS_CUDA
constexpr const char* kFewLimits =
    "any number of tokens in groups of 8, best for 1 to 8; activations to 2^-17";
constexpr const char* kSplitLimits =
    "any number of tokens in groups of 16, best for 1 to 16; activations to 2^-17";
// The rows for a few tokens, in groups of kGroup. For one group their predicted times are equal:
// the first that can run is taken.
template <int32_t kGroup>
constexpr Row<OutParams> few_row(const char* name, const char* supports, const char* limits,
                                 const char* (*refuses)(const OutParams&),
                                 void (*run)(const OutParams&)) {
  return {.name = name,
          .kind = "gemv",
          .device = DeviceKind::kCuda,
          .needs = kGroup == kGroupOfMxfp4 ? kClusters : kCudaAny,
          .supports = supports,
          .limits = limits,
          .ran_on = kGroup == kGroupOfMxfp4 ? kRanWithClusters : kRanAnyCuda,
          .layout = PackedLayout::kFragment16x32,
          .forms = {.x = kAnyX,
                    .router = {RouterForm::kNothing, RouterForm::kSums},
                    .l1 = kAnyL1,
                    .reduce = kGroup == kGroupOfMxfp4 ? kAnyReduce : kReduceAlone},
          .refuses = refuses,
          .predict_us =
              [](const OutParams& p, const DeviceRates& rates) {
                const int32_t group =
                    kGroup == kGroupOfGemv ? slice_group(p.weight, p.launch) : kGroup;
                return dense_gemv_us(Op<OutParams>::work(p), p.weight, p.num_tokens, group,
                                     p.launch.l1, rates);
              },
          .workspace = [](const OutParams&) { return uint64_t{0}; },
          .run = run};
}
// The rows by wgmma for many tokens.
template <bool kInOrder>
constexpr Row<OutParams> gemm_sm90_row(const char* name, const char* limits,
                                       void (*run)(const OutParams&)) {
  return {.name = name,
          .device = DeviceKind::kCuda,
          .needs = kSm90a,
          .supports = "bf16, mxfp4, mxfp8",
          .limits = limits,
          .ran_on = "H200",
          .layout = PackedLayout::kFragment16x32,
          .forms = {.x = kAnyX, .a = {AForm::kF32, AForm::kBf16Staged}, .reduce = kSentToo},
          .is_batch_invariant = kInOrder,
          .refuses = out_any_bf16_gemm_sm90_refuses,
          .predict_us =
              [](const OutParams& p, const DeviceRates& rates) {
                return dense_gemm_us(Op<OutParams>::work(p), p.weight.rows, rates) +
                       (kInOrder ? kOrderedUs : 0);
              },
          .workspace = out_any_bf16_gemm_sm90_workspace,
          .run = run};
}
#endif

const Row<OutParams> kRows[] = {
    {.name = "out_reference",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "f32, bf16, q8_0, mxfp4",
     .limits = "any number of tokens; double precision, slow",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = out_reference_refuses,
     .predict_us = reference_us<OutParams>,
     .workspace = no_workspace,
     .run = out_reference},
    gemv_row<OutParams, kLanesPortable>("out_any_f32_gemv_portable", kFeatureNone, kF32, kAnyFormat,
                                        kRanAnyCpu),
#if defined(__x86_64__)
    gemv_row<OutParams, kLanesAvx2>("out_any_f32_gemv_avx2", kAvx2, kF32, kAnyFormat),
    gemv_row<OutParams, kLanesAvx512>("out_any_f32_gemv_avx512", kAvx512, kF32, kAnyFormat),
    gemv_row<OutParams, kLanesAvx2I16>("out_mxfp4_i16_gemv_avx2", kAvx2, kI16, kMxfp4Only),
    gemv_row<OutParams, kLanesAvxVnniI16>("out_mxfp4_i16_gemv_avxvnni", kAvx2 | kAvxVnni, kI16,
                                          kMxfp4Only),
    gemv_row<OutParams, kLanesAvx512VnniI16>("out_mxfp4_i16_gemv_avx512vnni", kAvx512 | kAvx512Vnni,
                                             kI16, kMxfp4Only),
    gemv_row<OutParams, kLanesAvx2I8>("out_mxfp4_i8_gemv_avx2", kAvx2, kI8, kMxfp4Only),
    gemv_row<OutParams, kLanesAvxVnniI8>("out_mxfp4_i8_gemv_avxvnni", kAvx2 | kAvxVnni, kI8,
                                         kMxfp4Only),
    gemv_row<OutParams, kLanesAvx512VnniI8>("out_mxfp4_i8_gemv_avx512vnni", kAvx512 | kAvx512Vnni,
                                            kI8, kMxfp4Only),
    bf16_gemm_row<OutParams>("out_any_bf16_gemm_amx", kAmxGemm, "mxfp4, bf16", kBf16Limits,
                             out_any_bf16_gemm_refuses, cpu_us<out_any_bf16_gemm_amx_cost>,
                             out_any_bf16_gemm_workspace, out_any_bf16_gemm_amx),
    bf16_gemm_row<OutParams>("out_any_bf16_gemm_avx512bf16", kDotGemm, "mxfp4, bf16", kBf16Limits,
                             out_any_bf16_gemm_refuses, dot_us<out_any_bf16_gemm_avx512bf16_cost>,
                             out_any_bf16_gemm_workspace, out_any_bf16_gemm_avx512bf16),
#endif
    gemv_row<OutParams, kLanesNeonDotI16>("out_mxfp4_i16_gemv_neondot", kNeonDot, kI16, kMxfp4Only,
                                          kRanEmulated),
    gemv_row<OutParams, kLanesNeonDotI8>("out_mxfp4_i8_gemv_neondot", kNeonDot, kI8, kMxfp4Only,
                                         kRanEmulated),
#if MOXIE_HAS_CUDA
    few_row<kGroupOfMxfp4>("out_mxfp4_bf16x2_split_cuda",
                           "mxfp4 of 1024, 2048, 2880, 4096 or 7680 columns", kSplitLimits,
                           out_mxfp4_bf16x2_split_cuda_refuses, out_mxfp4_bf16x2_split_cuda),
    few_row<kGroupOfGemv>("out_any_bf16x2_gemv_cuda",
                          "f32, bf16, q8_0, mxfp4, mxfp8; up to 18432 columns", kFewLimits,
                          out_any_bf16x2_gemv_cuda_refuses, out_any_bf16x2_gemv_cuda),
    gemm_sm90_row<false>("out_any_bf16_gemm_sm90",
                         "any number of tokens; chosen from 17 on; activations rounded to bf16",
                         out_any_bf16_gemm_sm90),
    gemm_sm90_row<true>(
        "out_any_bf16_ordered_sm90",
        "any number of tokens; activations rounded to bf16; same result for any batch and chunks",
        out_any_bf16_ordered_sm90),
    {.name = "out_any_i8_gemm_sm90",
     .kind = "w8a8",
     .device = DeviceKind::kCuda,
     .needs = kSm90a,
     .supports = "bf16, mxfp4, mxfp8 of up to 4096 columns; rows a multiple of 4",
     .limits = kI8Limits,
     .ran_on = kI8RanOn,
     .layout = PackedLayout::kFragment16x32,
     .forms = {.x = kAnyX, .a = {AForm::kF32, AForm::kBf16Staged}},
     .activation = DType::kMXFP8,
     .refuses = out_any_i8_gemm_sm90_refuses,
     .predict_us =
         [](const OutParams& p, const DeviceRates& rates) {
           return dense_i8_us(Op<OutParams>::work(p), p.weight.rows, rates);
         },
     .workspace = out_any_i8_gemm_sm90_workspace,
     .run = out_any_i8_gemm_sm90},
    {.name = "out_any_bf16_gemm_cuda",
     .device = DeviceKind::kCuda,
     .needs = kCudaAny,
     .supports = "bf16, mxfp4",
     .limits = kMmaLimits,
     .ran_on = kMmaRanOn,
     .layout = PackedLayout::kFragment16x32,
     .forms = {.x = kAnyX, .a = {AForm::kF32, AForm::kBf16Staged}, .reduce = kSentToo},
     .is_batch_invariant = true,
     .refuses = out_any_bf16_gemm_cuda_refuses,
     .predict_us =
         [](const OutParams& p, const DeviceRates& rates) {
           return dense_mma_us(Op<OutParams>::work(p), p.weight, p.num_tokens, rates);
         },
     .workspace = out_any_bf16_gemm_sm90_workspace,
     .run = out_any_bf16_gemm_cuda},
    {.name = "out_any_bf16_teams_cuda",
     .device = DeviceKind::kCuda,
     .needs = kCudaAny,
     .supports = "bf16, mxfp4",
     .limits = kTeamsLimits,
     .ran_on = kMmaRanOn,
     .layout = PackedLayout::kFragment16x32,
     .forms = {.x = kAnyX, .a = {AForm::kF32, AForm::kBf16Staged}},
     .refuses = out_any_bf16_gemm_cuda_refuses,
     .predict_us =
         [](const OutParams& p, const DeviceRates& rates) {
           return dense_teams_us(Op<OutParams>::work(p), p.weight, p.num_tokens, rates);
         },
     .workspace = out_any_bf16_gemm_sm90_workspace,
     .run = out_any_bf16_teams_cuda},
#endif
};

}  // namespace

std::span<const Row<OutParams>> Op<OutParams>::rows() { return kRows; }

Work Op<OutParams>::work(const OutParams& p) {
  const double tokens = p.num_tokens, rows = p.weight.rows, cols = p.weight.cols;
  return {.bytes = static_cast<double>(p.weight.bytes()) + 4.0 * rows +
                   4.0 * tokens * (cols + 2.0 * rows),
          .flops = 2.0 * rows * cols * tokens};
}

}  // namespace moxie
