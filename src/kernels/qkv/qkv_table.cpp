// The table of qkv, and its least work.
#include "kernels/gemv/cuda_times.h"
#include "kernels/gemv/gemv_row.h"
#include "kernels/qkv/qkv_rows.h"
#include "kernels/reduce/reduce.h"

namespace moxie {
namespace {

using enum LaneActivations;

constexpr const char* kAnyFormat =
    "f32, bf16, q8_0, mxfp4; cache f32, bf16, fp8_e4m3; head_dim a multiple of 32";
constexpr const char* kMxfp4Only = "mxfp4; cache f32, bf16, fp8_e4m3; head_dim a multiple of 32";

#if defined(__x86_64__)
constexpr const char* kBf16Formats =
    "mxfp4, bf16; cache f32, bf16, fp8_e4m3; head_dim a multiple of 32";
constexpr const char* kBf16Limits =
    "any number of tokens; activations rounded to bf16, so by default only from 16 tokens and a "
    "hidden size of 1,024";
#endif

#if MOXIE_HAS_CUDA
constexpr const char* kFewLimits =
    "any number of tokens in groups of 8, best for 1 to 8; activations to 2^-17";
constexpr const char* kSplitLimits =
    "any number of tokens in groups of 16, best for 1 to 16; activations to 2^-17";
// The rows for a few tokens, in groups of kGroup. For one group their predicted times are equal:
// the first that can run is taken.
template <int32_t kGroup>
constexpr Row<QkvParams> few_row(const char* name, const char* supports, const char* limits,
                                 const char* (*refuses)(const QkvParams&),
                                 void (*run)(const QkvParams&)) {
  return {.name = name,
          .kind = "gemv",
          .device = DeviceKind::kCuda,
          .needs = kGroup == kGroupOfMxfp4 ? kClusters : kCudaAny,
          .supports = supports,
          .limits = limits,
          .ran_on = kGroup == kGroupOfMxfp4 ? kRanWithClusters : kRanAnyCuda,
          .layout = PackedLayout::kFragment16x32,
          .forms = {.x = {XForm::kF32Pair}, .l1 = kAnyL1},
          .refuses = refuses,
          .predict_us =
              [](const QkvParams& p, const DeviceRates& rates) {
                const int32_t group =
                    kGroup == kGroupOfGemv ? slice_group(p.weight, p.launch) : kGroup;
                return dense_gemv_us(Op<QkvParams>::work(p), p.weight, p.batch.num_tokens, group,
                                     p.launch.l1, rates);
              },
          .workspace = [](const QkvParams&) { return uint64_t{0}; },
          .run = run};
}
constexpr const OpInfo* kReduce[] = {&Op<ReduceParams>::info};
// For one token of several ranks, with the exchange of what the experts before added.
constexpr Row<QkvParams> reduce_row() {
  Row<QkvParams> row = few_row<kGroupOfMxfp4>(
      "reduce_qkv_mxfp4_bf16x2_split_cuda",
      "mxfp4 of 2880 columns; ranks on GPUs of one process; cache f32, bf16, fp8_e4m3; head_dim a "
      "multiple of 16",
      "one token; adds the ranks' parts of x in F32; activations to 2^-17",
      reduce_qkv_mxfp4_bf16x2_split_cuda_refuses, reduce_qkv_mxfp4_bf16x2_split_cuda);
  row.covers = kReduce;
  row.ran_on = kRanOnH100WithClusters;
  row.forms.reduce = {ReduceForm::kFolded};
  row.predict_us = [](const QkvParams& p, const DeviceRates& rates) {
    return dense_gemv_us(Op<QkvParams>::work(p), p.weight, 1, 1, p.launch.l1, rates) +
           kFoldedReduceUs;
  };
  return row;
}
// The row by wgmma in chains that leave L1 to loads: their other rows take two floats a value.
const char* gemm_sm90_refuses(const QkvParams& p) {
  if (p.forms.l1 == L1Form::kL1 && p.forms.x == XForm::kF32)
    return "x in one float where L1 is left to loads";
  return qkv_any_bf16_gemm_sm90_refuses(p);
}
// The rows by wgmma for many tokens.
template <bool kInOrder>
constexpr Row<QkvParams> gemm_sm90_row(const char* name, const char* limits,
                                       void (*run)(const QkvParams&)) {
  return {.name = name,
          .device = DeviceKind::kCuda,
          .needs = kSm90a,
          .supports = "bf16, mxfp4, mxfp8; cache f32, bf16, fp8_e4m3; head_dim a multiple of 16",
          .limits = limits,
          .ran_on = "H200",
          .layout = PackedLayout::kFragment16x32,
          .forms = {.x = kAnyX,
                    .q = {QForm::kF32, QForm::kBf16Staged},
                    .l1 = kInOrder ? FormSet<L1Form>{L1Form::kShared} : kAnyL1},
          .is_batch_invariant = kInOrder,
          .refuses = kInOrder ? qkv_any_bf16_gemm_sm90_refuses : gemm_sm90_refuses,
          .predict_us =
              [](const QkvParams& p, const DeviceRates& rates) {
                return dense_gemm_us(Op<QkvParams>::work(p), p.hidden, rates) +
                       other_split_us(p.launch.l1) + (kInOrder ? kOrderedUs : 0);
              },
          .workspace = qkv_any_bf16_gemm_sm90_workspace,
          .run = run};
}
#endif

const Row<QkvParams> kRows[] = {
    {.name = "qkv_reference",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "f32, bf16, q8_0, mxfp4; cache f32, bf16, fp8_e4m3",
     .limits = "any number of tokens; double precision, slow",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = qkv_reference_refuses,
     .predict_us = reference_us<QkvParams>,
     .workspace = qkv_reference_workspace,
     .run = qkv_reference},
    gemv_row<QkvParams, kLanesPortable>("qkv_any_f32_gemv_portable", kFeatureNone, kF32, kAnyFormat,
                                        kRanAnyCpu),
#if defined(__x86_64__)
    gemv_row<QkvParams, kLanesAvx2>("qkv_any_f32_gemv_avx2", kAvx2, kF32, kAnyFormat),
    gemv_row<QkvParams, kLanesAvx512>("qkv_any_f32_gemv_avx512", kAvx512, kF32, kAnyFormat),
    gemv_row<QkvParams, kLanesAvx2I16>("qkv_mxfp4_i16_gemv_avx2", kAvx2, kI16, kMxfp4Only),
    gemv_row<QkvParams, kLanesAvxVnniI16>("qkv_mxfp4_i16_gemv_avxvnni", kAvx2 | kAvxVnni, kI16,
                                          kMxfp4Only),
    gemv_row<QkvParams, kLanesAvx512VnniI16>("qkv_mxfp4_i16_gemv_avx512vnni", kAvx512 | kAvx512Vnni,
                                             kI16, kMxfp4Only),
    gemv_row<QkvParams, kLanesAvx2I8>("qkv_mxfp4_i8_gemv_avx2", kAvx2, kI8, kMxfp4Only),
    gemv_row<QkvParams, kLanesAvxVnniI8>("qkv_mxfp4_i8_gemv_avxvnni", kAvx2 | kAvxVnni, kI8,
                                         kMxfp4Only),
    gemv_row<QkvParams, kLanesAvx512VnniI8>("qkv_mxfp4_i8_gemv_avx512vnni", kAvx512 | kAvx512Vnni,
                                            kI8, kMxfp4Only),
    bf16_gemm_row<QkvParams>("qkv_any_bf16_gemm_amx", kAmxGemm, kBf16Formats, kBf16Limits,
                             qkv_any_bf16_gemm_refuses, cpu_us<qkv_any_bf16_gemm_amx_cost>,
                             qkv_any_bf16_gemm_workspace, qkv_any_bf16_gemm_amx),
    bf16_gemm_row<QkvParams>("qkv_any_bf16_gemm_avx512bf16", kDotGemm, kBf16Formats, kBf16Limits,
                             qkv_any_bf16_gemm_refuses, dot_us<qkv_any_bf16_gemm_avx512bf16_cost>,
                             qkv_any_bf16_gemm_workspace, qkv_any_bf16_gemm_avx512bf16),
#endif
    gemv_row<QkvParams, kLanesNeonDotI16>("qkv_mxfp4_i16_gemv_neondot", kNeonDot, kI16, kMxfp4Only,
                                          kRanEmulated),
    gemv_row<QkvParams, kLanesNeonDotI8>("qkv_mxfp4_i8_gemv_neondot", kNeonDot, kI8, kMxfp4Only,
                                         kRanEmulated),
#if MOXIE_HAS_CUDA
    few_row<kGroupOfMxfp4>(
        "qkv_mxfp4_bf16x2_split_cuda",
        "mxfp4 of 2880 or 4096 columns; cache f32, bf16, fp8_e4m3; head_dim a multiple of 16",
        kSplitLimits, qkv_mxfp4_bf16x2_split_cuda_refuses, qkv_mxfp4_bf16x2_split_cuda),
    reduce_row(),
    few_row<kGroupOfGemv>(
        "qkv_any_bf16x2_gemv_cuda",
        "f32, bf16, q8_0, mxfp4, mxfp8; up to 18432 columns; cache f32, bf16, fp8_e4m3; "
        "head_dim a multiple of 16",
        kFewLimits, qkv_any_bf16x2_gemv_cuda_refuses, qkv_any_bf16x2_gemv_cuda),
    gemm_sm90_row<false>("qkv_any_bf16_gemm_sm90",
                         "any number of tokens; chosen from 9 on, of mxfp4 from 17; activations "
                         "rounded to bf16",
                         qkv_any_bf16_gemm_sm90),
    gemm_sm90_row<true>(
        "qkv_any_bf16_ordered_sm90",
        "any number of tokens; activations rounded to bf16; same result for any batch and chunks",
        qkv_any_bf16_ordered_sm90),
    {.name = "qkv_any_i8_gemm_sm90",
     .kind = "w8a8",
     .device = DeviceKind::kCuda,
     .needs = kSm90a,
     .supports = "bf16, mxfp4, mxfp8 of up to 4096 columns; cache f32, bf16, fp8_e4m3; head_dim a "
                 "multiple of 16",
     .limits = kI8Limits,
     .ran_on = kI8RanOn,
     .layout = PackedLayout::kFragment16x32,
     .forms = {.x = kAnyX, .q = {QForm::kF32, QForm::kBf16Staged}},
     .activation = DType::kMXFP8,
     .refuses = qkv_any_i8_gemm_sm90_refuses,
     .predict_us =
         [](const QkvParams& p, const DeviceRates& rates) {
           return dense_i8_us(Op<QkvParams>::work(p), p.hidden, rates);
         },
     .workspace = qkv_any_i8_gemm_sm90_workspace,
     .run = qkv_any_i8_gemm_sm90},
    {.name = "qkv_any_bf16_gemm_cuda",
     .device = DeviceKind::kCuda,
     .needs = kCudaAny,
     .supports = "bf16, mxfp4; cache f32, bf16, fp8_e4m3; head_dim a multiple of 16",
     .limits = kMmaLimits,
     .ran_on = kMmaRanOn,
     .layout = PackedLayout::kFragment16x32,
     .forms = {.x = kAnyX, .q = {QForm::kF32, QForm::kBf16Staged}},
     .is_batch_invariant = true,
     .refuses = qkv_any_bf16_gemm_cuda_refuses,
     .predict_us =
         [](const QkvParams& p, const DeviceRates& rates) {
           return dense_mma_us(Op<QkvParams>::work(p), p.weight, p.batch.num_tokens, rates);
         },
     .workspace = qkv_any_bf16_gemm_sm90_workspace,
     .run = qkv_any_bf16_gemm_cuda},
    {.name = "qkv_any_bf16_teams_cuda",
     .device = DeviceKind::kCuda,
     .needs = kCudaAny,
     .supports = "bf16, mxfp4; cache f32, bf16, fp8_e4m3; head_dim a multiple of 16",
     .limits = kTeamsLimits,
     .ran_on = kMmaRanOn,
     .layout = PackedLayout::kFragment16x32,
     .forms = {.x = kAnyX, .q = {QForm::kF32, QForm::kBf16Staged}},
     .refuses = qkv_any_bf16_gemm_cuda_refuses,
     .predict_us =
         [](const QkvParams& p, const DeviceRates& rates) {
           return dense_teams_us(Op<QkvParams>::work(p), p.weight, p.batch.num_tokens, rates);
         },
     .workspace = qkv_any_bf16_gemm_sm90_workspace,
     .run = qkv_any_bf16_teams_cuda},
#endif
};

}  // namespace

std::span<const Row<QkvParams>> Op<QkvParams>::rows() { return kRows; }

Work Op<QkvParams>::work(const QkvParams& p) {
  const double tokens = p.batch.num_tokens, rows = p.weight.rows;
  const double q_bytes = 4.0 * p.num_heads * p.head_dim;
  const double kv_bytes = 2.0 * p.num_kv_heads * static_cast<double>(p.kv.row_bytes(p.head_dim));
  return {.bytes = static_cast<double>(p.weight.bytes()) + 4.0 * (rows + p.hidden) +
                   tokens * (4.0 * p.hidden + q_bytes + kv_bytes),
          .flops = 2.0 * rows * p.weight.cols * tokens};
}

}  // namespace moxie
