// The table of unembed, and its least work.
#include "kernels/gemv/cuda_times.h"
#include "kernels/gemv/gemv_row.h"
#include "kernels/unembed/unembed_rows.h"

namespace moxie {
namespace {

using enum LaneActivations;

constexpr const char* kAnyFormat = "f32, bf16, q8_0, mxfp4";
constexpr const char* kMxfp4Only = "mxfp4";

#if defined(__x86_64__)
constexpr const char* kBf16Limits =
    "any number of rows; activations rounded to bf16, so by default only from 16 rows and a hidden "
    "size of 1,024";
#endif

#if MOXIE_HAS_CUDA
constexpr const char* kFewLimits =
    "any number of rows in groups of 8, best for 1 to 8; of 16 for mxfp4 of up to 2944 columns; "
    "activations to 2^-17";
// Rows of one launch: 16 where their activations leave room for the rings of 8 warps, in the 227 KB
// of shared memory that a block of a Hopper can have.
int32_t group_of(const PackedMatrix& weight, const Launch& launch) {
  const bool is_large = weight.format == DType::kMXFP4 && weight.cols <= 2944;
  return fragment::few_tokens(weight, fragment::ring_shape(weight.format).num_stages,
                              is_large ? kGroupOfMxfp4 : kGroupOfGemv, launch);
}
// The rows by wgmma for many tokens.
template <bool kInOrder>
constexpr Row<UnembedParams> gemm_sm90_row(const char* name, const char* limits,
                                           void (*run)(const UnembedParams&)) {
  return {.name = name,
          .device = DeviceKind::kCuda,
          .needs = kSm90a,
          .supports = "bf16, mxfp4, mxfp8",
          .limits = limits,
          .ran_on = "H200",
          .layout = PackedLayout::kFragment16x32,
          .forms = {.x = kAnyX, .l1 = kAnyL1},
          .is_batch_invariant = kInOrder,
          .refuses = unembed_any_bf16_gemm_sm90_refuses,
          .predict_us =
              [](const UnembedParams& p, const DeviceRates& rates) {
                return dense_gemm_us(Op<UnembedParams>::work(p), p.hidden, rates) +
                       (kInOrder ? kOrderedUs : 0);
              },
          .workspace = unembed_any_bf16_gemm_sm90_workspace,
          .run = run};
}
#endif

const Row<UnembedParams> kRows[] = {
    {.name = "unembed_reference",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "f32, bf16, q8_0, mxfp4",
     .limits = "any number of rows; double precision, slow",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = unembed_reference_refuses,
     .predict_us = reference_us<UnembedParams>,
     .workspace = unembed_reference_workspace,
     .run = unembed_reference},
    gemv_row<UnembedParams, kLanesPortable>("unembed_any_f32_gemv_portable", kFeatureNone, kF32,
                                            kAnyFormat, kRanAnyCpu),
#if defined(__x86_64__)
    gemv_row<UnembedParams, kLanesAvx2>("unembed_any_f32_gemv_avx2", kAvx2, kF32, kAnyFormat),
    gemv_row<UnembedParams, kLanesAvx512>("unembed_any_f32_gemv_avx512", kAvx512, kF32, kAnyFormat),
    gemv_row<UnembedParams, kLanesAvx2I16>("unembed_mxfp4_i16_gemv_avx2", kAvx2, kI16, kMxfp4Only),
    gemv_row<UnembedParams, kLanesAvxVnniI16>("unembed_mxfp4_i16_gemv_avxvnni", kAvx2 | kAvxVnni,
                                              kI16, kMxfp4Only),
    gemv_row<UnembedParams, kLanesAvx512VnniI16>("unembed_mxfp4_i16_gemv_avx512vnni",
                                                 kAvx512 | kAvx512Vnni, kI16, kMxfp4Only),
    gemv_row<UnembedParams, kLanesAvx2I8>("unembed_mxfp4_i8_gemv_avx2", kAvx2, kI8, kMxfp4Only),
    gemv_row<UnembedParams, kLanesAvxVnniI8>("unembed_mxfp4_i8_gemv_avxvnni", kAvx2 | kAvxVnni, kI8,
                                             kMxfp4Only),
    gemv_row<UnembedParams, kLanesAvx512VnniI8>("unembed_mxfp4_i8_gemv_avx512vnni",
                                                kAvx512 | kAvx512Vnni, kI8, kMxfp4Only),
    bf16_gemm_row<UnembedParams>("unembed_any_bf16_gemm_amx", kAmxGemm, "mxfp4, bf16", kBf16Limits,
                                 unembed_any_bf16_gemm_refuses,
                                 cpu_us<unembed_any_bf16_gemm_amx_cost>,
                                 unembed_any_bf16_gemm_workspace, unembed_any_bf16_gemm_amx),
    bf16_gemm_row<UnembedParams>("unembed_any_bf16_gemm_avx512bf16", kDotGemm, "mxfp4, bf16",
                                 kBf16Limits, unembed_any_bf16_gemm_refuses,
                                 dot_us<unembed_any_bf16_gemm_avx512bf16_cost>,
                                 unembed_any_bf16_gemm_workspace, unembed_any_bf16_gemm_avx512bf16),
#endif
    gemv_row<UnembedParams, kLanesNeonDotI16>("unembed_mxfp4_i16_gemv_neondot", kNeonDot, kI16,
                                              kMxfp4Only, kRanEmulated),
    gemv_row<UnembedParams, kLanesNeonDotI8>("unembed_mxfp4_i8_gemv_neondot", kNeonDot, kI8,
                                             kMxfp4Only, kRanEmulated),
#if MOXIE_HAS_CUDA
    {.name = "unembed_any_bf16x2_gemv_cuda",
     .kind = "gemv",
     .device = DeviceKind::kCuda,
     .needs = kCudaAny,
     .supports = "f32, bf16, q8_0, mxfp4, mxfp8; up to 18432 columns",
     .limits = kFewLimits,
     .ran_on = kRanAnyCuda,
     .layout = PackedLayout::kFragment16x32,
     .forms = {.x = kAnyX, .l1 = kAnyL1},
     .refuses = unembed_any_bf16x2_gemv_cuda_refuses,
     .predict_us =
         [](const UnembedParams& p, const DeviceRates& rates) {
           return dense_gemv_us(Op<UnembedParams>::work(p), p.weight, p.num_rows,
                                group_of(p.weight, p.launch), p.launch.l1, rates);
         },
     .workspace = [](const UnembedParams&) { return uint64_t{0}; },
     .run = unembed_any_bf16x2_gemv_cuda},
    {.name = "unembed_any_bf16x2_stream_cuda",
     .device = DeviceKind::kCuda,
     .needs = kClusters,
     .supports = "bf16, q8_0, mxfp4, mxfp8; columns in 192s up to 2880",
     .limits = "one row after another; activations to 2^-17",
     .ran_on = kRanOnH100WithClusters,
     .layout = PackedLayout::kFragment16x32,
     .forms = {.x = kAnyX, .l1 = kAnyL1},
     .refuses = unembed_any_bf16x2_stream_cuda_refuses,
     .predict_us =
         [](const UnembedParams& p, const DeviceRates& rates) {
           return grouped_us(Op<UnembedParams>::work(p), static_cast<double>(p.weight.bytes()),
                             p.num_rows, 1, rates, {.read = 0.93, .fixed_us = 3.0});
         },
     .workspace = [](const UnembedParams&) { return uint64_t{0}; },
     .run = unembed_any_bf16x2_stream_cuda},
    gemm_sm90_row<false>("unembed_any_bf16_gemm_sm90",
                         "any number of rows; chosen from 9 on, of mxfp4 from 17; activations "
                         "rounded to bf16",
                         unembed_any_bf16_gemm_sm90),
    gemm_sm90_row<true>(
        "unembed_any_bf16_ordered_sm90",
        "any number of rows; activations rounded to bf16; same result for any batch and chunks",
        unembed_any_bf16_ordered_sm90),
    {.name = "unembed_any_bf16_gemm_cuda",
     .device = DeviceKind::kCuda,
     .needs = kCudaAny,
     .supports = "bf16, mxfp4",
     .limits = kMmaLimits,
     .ran_on = kMmaRanOn,
     .layout = PackedLayout::kFragment16x32,
     .forms = {.x = kAnyX},
     .is_batch_invariant = true,
     .refuses = unembed_any_bf16_gemm_cuda_refuses,
     .predict_us =
         [](const UnembedParams& p, const DeviceRates& rates) {
           return dense_mma_us(Op<UnembedParams>::work(p), p.weight, p.num_rows, rates);
         },
     .workspace = unembed_any_bf16_gemm_sm90_workspace,
     .run = unembed_any_bf16_gemm_cuda},
#endif
};

}  // namespace

std::span<const Row<UnembedParams>> Op<UnembedParams>::rows() { return kRows; }

Work Op<UnembedParams>::work(const UnembedParams& p) {
  const double rows = p.num_rows, vocab = p.weight.rows;
  return {.bytes = static_cast<double>(p.weight.bytes()) + 4.0 * p.hidden +
                   4.0 * rows * (p.hidden + vocab),
          .flops = 2.0 * vocab * p.weight.cols * rows};
}

}  // namespace moxie
