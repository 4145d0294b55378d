// The table of experts, and its least work.
#include "kernels/experts/experts_rows.h"
#include "kernels/gemm/mma_tiles.h"
#include "kernels/gemv/cuda_times.h"
#include "kernels/gemv/gemv_row.h"
#include "kernels/reduce/reduce.h"

namespace moxie {
namespace {

using enum LaneActivations;

constexpr const char* kAnyFormat = "f32, bf16, q8_0, mxfp4";
constexpr const char* kMxfp4Only = "mxfp4";

#if MOXIE_HAS_CUDA
constexpr const char* kFewFormats =
    "f32, bf16, q8_0, mxfp4, mxfp8; up to 18432 columns; at most 16 experts a token";
constexpr const char* kTilesFormats =
    "mxfp4; hidden a multiple of 64; at most 16 experts a token, 256 in all";
constexpr const char* kFewLimits =
    "any number of tokens in groups of 8, best for 1 to 8; activations to 2^-17; an expert is read "
    "once a group";
constexpr const char* kSlicesLimits =
    "one token, in one kernel; activations to 2^-17; hidden a multiple of 192, intermediate of 64";
constexpr const char* kTilesLimits =
    "any number of tokens in groups of 16 (of 64 choices), best for 2 to 16; activations to 2^-17; "
    "an expert is read once for every 8 tokens of a group that chose it";
constexpr const OpInfo* kRoute[] = {&Op<RouteParams>::info};
constexpr FormSet<L1Form> kL1Alone{L1Form::kL1};

Work work_of_tokens(const ExpertsParams& p, int32_t num_tokens) {
  ExpertsParams of_tokens = p;
  of_tokens.num_tokens = num_tokens;
  return Op<ExpertsParams>::work(of_tokens);
}

// Groups of up to `group` tokens, one after another.
double in_groups_us(const ExpertsParams& p, const DeviceRates& rates, const Efficiency& reached,
                    int32_t group = kGroupOfGemv) {
  const auto group_us = [&](int32_t num_tokens) {
    return num_tokens == 0
               ? 0.0
               : predicted_us(work_of_tokens(p, num_tokens), rates, rates.bf16_gflops, reached);
  };
  const int32_t num_whole = p.num_tokens / group;
  return num_whole * group_us(group) + group_us(p.num_tokens % group);
}
// Fitted on an H200, as in gemv/cuda_times.h.
double experts_ring_us(const ExpertsParams& p, const DeviceRates& rates) {
  return in_groups_us(p, rates, {.read = 0.5, .fixed_us = 4.0});
}
double experts_slices_us(const ExpertsParams& p, const DeviceRates& rates) {
  return in_groups_us(p, rates, {.read = 0.75, .fixed_us = 1.0});
}
double experts_tiles_us(const ExpertsParams& p, const DeviceRates& rates) {
  const bool is_one_large = p.num_tokens > kGroupOfGemv && p.num_tokens <= kGroupOfMxfp4;
  return in_groups_us(p, rates, {.read = is_one_large ? 0.8 : 0.75, .fixed_us = 2.0},
                      kGroupOfMxfp4);
}
// Fitted on an H200 for 32 to 256 tokens of gpt-oss-120b. More columns cost instructions; and an
// expert is read once for 16 of its tokens, whose number is random around the mean.
double experts_teams_us(const ExpertsParams& p, const DeviceRates& rates) {
  if (p.hidden < kLeastGemmHidden) return kNeverUs;
  Work work = Op<ExpertsParams>::work(p);
  const double mean = gemm::mean_pairs(p.num_tokens, p.top_k, routed_experts(p));
  work.bytes *= 1 + 0.06 * std::max(0.0, mean - 4) + std::max(0.0, (mean - 10) / 14);
  return predicted_us(work, rates, rates.mma_gflops,
                      {.read = 0.84, .products = 0.25, .fixed_us = 12.0});
}
// Of the memory's rate, measured on an H200: 0.80 with two tokens an expert, where some SMs have an
// item less; 0.86 with four; 0.71 with eight, when many experts have more than eight.
double experts_gemm_us(const ExpertsParams& p, const DeviceRates& rates) {
  if (p.hidden < kLeastGemmHidden) return kNeverUs;
  const double mean = gemm::mean_pairs(p.num_tokens, p.top_k, routed_experts(p));
  const double read = mean <= 4 ? 0.86 - 0.03 * (4 - mean) : std::max(0.71, 1.01 - 0.0375 * mean);
  return predicted_us(Op<ExpertsParams>::work(p), rates, rates.bf16_gflops,
                      {.read = read, .products = 0.55, .fixed_us = 6.0});
}
// One kernel more for few tokens.
double experts_ordered_us(const ExpertsParams& p, const DeviceRates& rates) {
  return experts_gemm_us(p, rates) + 3 * kOrderedUs;
}
double experts_mma_us(const ExpertsParams& p, const DeviceRates& rates) {
  if (p.hidden < kLeastGemmHidden) return kNeverUs;
  return predicted_us(Op<ExpertsParams>::work(p), rates, rates.mma_gflops,
                      {.read = 0.6, .products = 0.55, .fixed_us = 8.0});
}
// With fewer tokens an expert the weights' bytes are the limit, in BF16 as in 8 bits.
double experts_e4m3_us(const ExpertsParams& p, const DeviceRates& rates) {
  const bool is_many = p.num_tokens * p.top_k >= 24 * routed_experts(p);
  return (is_many ? 0.5 : 40.0) * experts_gemm_us(p, rates);
}

// Products by SM120's instruction have twice BF16's rate, of nibbles four times; the rate is
// NVIDIA's, not measured. Emulated products were measured on an H100.
double experts_mx_us(const ExpertsParams& p, const DeviceRates& rates) {
  // As for BF16: in narrow models rounding shows and gains nothing.
  if (p.hidden < kLeastGemmHidden && p.activation == DType::kMXFP8) return kNeverUs;
  const double times = p.activation == DType::kMXFP4 ? 4.0 : 2.0;
  return predicted_us(Op<ExpertsParams>::work(p), rates, times * rates.mma_gflops,
                      {.read = 0.6, .products = 0.5, .fixed_us = 8.0});
}
double experts_mx_emulated_us(const ExpertsParams& p, const DeviceRates& rates) {
  if (p.hidden < kLeastGemmHidden && p.activation == DType::kMXFP8) return kNeverUs;
  return predicted_us(Op<ExpertsParams>::work(p), rates, rates.mma_gflops,
                      {.read = 0.6, .products = 0.02, .fixed_us = 8.0});
}

#ifdef MOXIE_HAS_FLASHINFER
// Predicted, not measured. Weights are read, written unpacked and read again, whatever the number
// of tokens; a pair's operands and sums pass through memory twice; eleven kernels of a few
// microseconds at least.
double experts_cutlass_us(const ExpertsParams& p, const DeviceRates& rates) {
  if (p.hidden < kLeastGemmHidden) return kNeverUs;
  const Work work = Op<ExpertsParams>::work(p);
  const double of_pair = 2.0 * (p.hidden + p.intermediate) + 4.0 * (p.gate_up.rows + p.hidden);
  const Work memory{.bytes = 3.0 * work.bytes + of_pair * p.num_tokens * p.top_k, .flops = 0};
  const Work products{.bytes = 0, .flops = work.flops};
  return predicted_us(memory, rates, rates.fp8_gflops, {.read = 0.7, .fixed_us = 30.0}) +
         predicted_us(products, rates, rates.fp8_gflops, {.products = 0.4});
}
#endif

constexpr Row<ExpertsParams> mx_row(const char* name, Features needs, const char* limits,
                                    const char* ran_on,
                                    double (*predict_us)(const ExpertsParams&, const DeviceRates&),
                                    void (*run)(const ExpertsParams&)) {
  return {.name = name,
          .kind = "w4a8",
          .device = DeviceKind::kCuda,
          .needs = needs,
          .supports = "mxfp4; at most 256 experts, 16 a token",
          .limits = limits,
          .ran_on = ran_on,
          .layout = PackedLayout::kFragment16x32,
          .forms = {.x = kAnyX, .t = {TForm::kF32, TForm::kAbsent}, .reduce = kRoundedToo},
          .activation = DType::kMXFP8,
          .tile_rows = gemm::kMmaTileRows,
          .is_batch_invariant = true,
          .refuses = experts_mxfp4_mx_gemm_refuses,
          .predict_us = predict_us,
          .workspace = experts_mxfp4_mx_gemm_workspace,
          .run = run};
}

constexpr Row<ExpertsParams> few_row(const char* name, Features needs, const char* supports,
                                     const char* limits, RouterForm router, FormSet<L1Form> l1,
                                     const char* (*refuses)(const ExpertsParams&),
                                     double (*predict_us)(const ExpertsParams&, const DeviceRates&),
                                     uint64_t (*workspace)(const ExpertsParams&),
                                     void (*run)(const ExpertsParams&)) {
  const bool routes = router == RouterForm::kSums;
  return {
      .name = name,
      .covers = routes ? std::span<const OpInfo* const>(kRoute) : std::span<const OpInfo* const>(),
      .kind = "gemv",
      .device = DeviceKind::kCuda,
      .needs = needs,
      .supports = supports,
      .limits = limits,
      .ran_on = needs == kClusters ? kRanWithClusters : kRanAnyCuda,
      .layout = PackedLayout::kFragment16x32,
      .forms = {.x = {XForm::kF32Pair}, .router = {router}, .l1 = l1},
      .refuses = refuses,
      .predict_us = predict_us,
      .workspace = workspace,
      .run = run};
}
#endif

#if MOXIE_HAS_CUDA
constexpr const OpInfo* kReduceAndRoute[] = {&Op<ReduceParams>::info, &Op<RouteParams>::info};
// For one token of several ranks, with the exchange of what out added.
constexpr Row<ExpertsParams> reduce_row() {
  Row<ExpertsParams> row = few_row(
      "reduce_route_experts_mxfp4_bf16x2_slices_cuda", kClusters,
      "mxfp4; ranks on GPUs of one process; at most 16 experts a token, 256 in all",
      "one token, in one kernel; adds the ranks' parts of x in F32; activations to 2^-17; hidden a "
      "multiple of 192, intermediate of 64",
      RouterForm::kSums, kAnyL1, reduce_route_experts_mxfp4_bf16x2_slices_cuda_refuses,
      [](const ExpertsParams& p, const DeviceRates& rates) {
        return experts_slices_us(p, rates) + kFoldedReduceUs;
      },
      experts_any_bf16x2_gemv_cuda_workspace, reduce_route_experts_mxfp4_bf16x2_slices_cuda);
  row.covers = kReduceAndRoute;
  row.ran_on = kRanOnH100WithClusters;
  row.forms.reduce = {ReduceForm::kFolded};
  return row;
}

// The rows by wgmma for many tokens.
template <bool kInOrder>
constexpr Row<ExpertsParams> gemm_sm90_row(const char* name, const char* limits,
                                           void (*run)(const ExpertsParams&)) {
  return {.name = name,
          .kind = "w4a16",
          .device = DeviceKind::kCuda,
          .needs = kSm90a,
          .supports = "mxfp4; at most 256 experts, 16 a token",
          .limits = limits,
          .ran_on = "H200",
          .layout = PackedLayout::kFragment16x32,
          .forms = {.x = kAnyX, .t = {TForm::kF32, TForm::kAbsent}, .reduce = kRoundedToo},
          .tile_rows = gemm::kGroupedTileRows,
          .is_batch_invariant = kInOrder,
          .refuses = kInOrder ? experts_mxfp4_bf16_ordered_sm90_refuses
                              : experts_mxfp4_bf16_gemm_sm90_refuses,
          .predict_us = kInOrder ? experts_ordered_us : experts_gemm_us,
          .workspace = kInOrder ? experts_mxfp4_bf16_ordered_sm90_workspace
                                : experts_mxfp4_bf16_gemm_sm90_workspace,
          .run = run};
}
#endif

// A row in F32 whose inputs of both products are rounded to an MX format.
template <const LaneKernels& kLanes>
constexpr Row<ExpertsParams> mx_gemv_row(const char* name, Features needs,
                                         const char* ran_on = "x86-64") {
  Row<ExpertsParams> row = gemv_row<ExpertsParams, kLanes>(name, needs, kF32, kAnyFormat, ran_on);
  row.limits =
      "any number of tokens; with --activation mxfp8, mxfp6 or mxfp4; activations rounded to the "
      "format's blocks: shows what it loses, gains no time";
  row.activation = DType::kMXFP8;
  row.refuses = [](const ExpertsParams& p) { return mx_gemv_refuses(p, kLanes); };
  return row;
}

const Row<ExpertsParams> kRows[] = {
    {.name = "experts_reference",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "f32, bf16, q8_0, mxfp4",
     .limits = "any number of tokens; double precision, slow",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = experts_reference_refuses,
     .predict_us = reference_us<ExpertsParams>,
     .workspace = experts_reference_workspace,
     .run = experts_reference},
    gemv_row<ExpertsParams, kLanesPortable>("experts_any_f32_gemv_portable", kFeatureNone, kF32,
                                            kAnyFormat, kRanAnyCpu),
    mx_gemv_row<kLanesPortable>("experts_any_mx_gemv_portable", kFeatureNone, kRanAnyCpu),
#if defined(__x86_64__)
    mx_gemv_row<kLanesAvx2>("experts_any_mx_gemv_avx2", kAvx2),
    mx_gemv_row<kLanesAvx512>("experts_any_mx_gemv_avx512", kAvx512),
    gemv_row<ExpertsParams, kLanesAvx2>("experts_any_f32_gemv_avx2", kAvx2, kF32, kAnyFormat),
    gemv_row<ExpertsParams, kLanesAvx512>("experts_any_f32_gemv_avx512", kAvx512, kF32, kAnyFormat),
    gemv_row<ExpertsParams, kLanesAvx2I16>("experts_mxfp4_i16_gemv_avx2", kAvx2, kI16, kMxfp4Only),
    gemv_row<ExpertsParams, kLanesAvxVnniI16>("experts_mxfp4_i16_gemv_avxvnni", kAvx2 | kAvxVnni,
                                              kI16, kMxfp4Only),
    gemv_row<ExpertsParams, kLanesAvx512VnniI16>("experts_mxfp4_i16_gemv_avx512vnni",
                                                 kAvx512 | kAvx512Vnni, kI16, kMxfp4Only),
    gemv_row<ExpertsParams, kLanesAvx2I8>("experts_mxfp4_i8_gemv_avx2", kAvx2, kI8, kMxfp4Only),
    gemv_row<ExpertsParams, kLanesAvxVnniI8>("experts_mxfp4_i8_gemv_avxvnni", kAvx2 | kAvxVnni, kI8,
                                             kMxfp4Only),
    gemv_row<ExpertsParams, kLanesAvx512VnniI8>("experts_mxfp4_i8_gemv_avx512vnni",
                                                kAvx512 | kAvx512Vnni, kI8, kMxfp4Only),
    bf16_gemm_row<ExpertsParams>(
        "experts_any_bf16_gemm_amx", kAmxGemm, "mxfp4, bf16",
        "any number of tokens; activations rounded to bf16, so by default only from 4 pairs "
        "an expert and sizes of 1,024",
        experts_any_bf16_gemm_refuses, cpu_us<experts_any_bf16_gemm_amx_cost>,
        experts_any_bf16_gemm_workspace, experts_any_bf16_gemm_amx, "w4a16"),
    bf16_gemm_row<ExpertsParams>(
        "experts_any_bf16_gemm_avx512bf16", kDotGemm, "mxfp4, bf16",
        "any number of tokens; activations rounded to bf16, so by default only from 16 pairs "
        "an expert and sizes of 1,024",
        experts_any_bf16_gemm_refuses, dot_us<experts_any_bf16_gemm_avx512bf16_cost>,
        experts_any_bf16_gemm_workspace, experts_any_bf16_gemm_avx512bf16, "w4a16"),
#endif
    gemv_row<ExpertsParams, kLanesNeonDotI16>("experts_mxfp4_i16_gemv_neondot", kNeonDot, kI16,
                                              kMxfp4Only, kRanEmulated),
    gemv_row<ExpertsParams, kLanesNeonDotI8>("experts_mxfp4_i8_gemv_neondot", kNeonDot, kI8,
                                             kMxfp4Only, kRanEmulated),
#if MOXIE_HAS_CUDA
    few_row("experts_any_bf16x2_gemv_cuda", kClusters, kFewFormats, kFewLimits,
            RouterForm::kNothing, kAnyL1, experts_any_bf16x2_gemv_cuda_refuses, experts_ring_us,
            experts_any_bf16x2_gemv_cuda_workspace, experts_any_bf16x2_gemv_cuda),
    few_row("experts_any_bf16x2_slices_cuda", kClusters, kFewFormats, kSlicesLimits,
            RouterForm::kNothing, kAnyL1, experts_any_bf16x2_slices_cuda_refuses, experts_slices_us,
            experts_any_bf16x2_gemv_cuda_workspace, experts_any_bf16x2_slices_cuda),
    few_row("route_experts_any_bf16x2_slices_cuda", kClusters, kFewFormats, kSlicesLimits,
            RouterForm::kSums, kAnyL1, experts_any_bf16x2_slices_cuda_refuses, experts_slices_us,
            experts_any_bf16x2_gemv_cuda_workspace, experts_any_bf16x2_slices_cuda),
    reduce_row(),
    few_row("experts_mxfp4_bf16x2_tiles_cuda", kCudaAny, kTilesFormats, kTilesLimits,
            RouterForm::kNothing, kL1Alone, experts_mxfp4_bf16x2_tiles_cuda_refuses,
            experts_tiles_us, experts_mxfp4_bf16x2_tiles_cuda_workspace,
            experts_mxfp4_bf16x2_tiles_cuda),
    few_row("route_experts_mxfp4_bf16x2_tiles_cuda", kCudaAny, kTilesFormats, kTilesLimits,
            RouterForm::kSums, kL1Alone, experts_mxfp4_bf16x2_tiles_cuda_refuses, experts_tiles_us,
            experts_mxfp4_bf16x2_tiles_cuda_workspace, experts_mxfp4_bf16x2_tiles_cuda),
    {.name = "experts_mxfp4_bf16_teams_cuda",
     .kind = "w4a16",
     .device = DeviceKind::kCuda,
     .needs = kCudaAny,
     .supports =
         "mxfp4; hidden and intermediate multiples of 576, up to 2,880, or of 64, up to 320; at "
         "most 256 experts, 16 a token",
     .limits = "any number of tokens, best for up to 5 an expert; activations rounded to bf16; an "
               "expert is read once for every 16 of its tokens (8 where a block has less than 140 "
               "KiB)",
     .ran_on = kRanAnyCuda,
     .layout = PackedLayout::kFragment16x32,
     .forms = {.x = {XForm::kF32Pair}, .t = {TForm::kF32, TForm::kAbsent}, .l1 = kAnyL1},
     .refuses = experts_mxfp4_bf16_teams_cuda_refuses,
     .predict_us = experts_teams_us,
     .workspace = experts_mxfp4_bf16_teams_cuda_workspace,
     .run = experts_mxfp4_bf16_teams_cuda},
    gemm_sm90_row<false>("experts_mxfp4_bf16_gemm_sm90",
                         "any number of tokens; chosen from 17 on; activations rounded to bf16",
                         experts_mxfp4_bf16_gemm_sm90),
    gemm_sm90_row<true>(
        "experts_mxfp4_bf16_ordered_sm90",
        "any number of tokens; activations rounded to bf16; same result for any batch and chunks",
        experts_mxfp4_bf16_ordered_sm90),
    {.name = "experts_mxfp4_e4m3_gemm_sm90",
     .kind = "w4a8",
     .device = DeviceKind::kCuda,
     .needs = kSm90a,
     .supports =
         "mxfp4; at most 256 experts, 16 a token; most scales within 16 octaves of their row's",
     .limits = "any number of tokens; with --activation mxfp8 chosen from 24 tokens an expert on; "
               "activations rounded to e4m3, one scale a token",
     .ran_on = "H200",
     .layout = PackedLayout::kFragment16x32,
     .forms = {.x = kAnyX, .t = {TForm::kF32, TForm::kAbsent}, .reduce = kRoundedToo},
     .activation = DType::kMXFP8,
     .refuses = experts_mxfp4_e4m3_gemm_sm90_refuses,
     .predict_us = experts_e4m3_us,
     .workspace = experts_mxfp4_e4m3_gemm_sm90_workspace,
     .run = experts_mxfp4_e4m3_gemm_sm90},
    {.name = "experts_mxfp4_bf16_gemm_cuda",
     .kind = "w4a16",
     .device = DeviceKind::kCuda,
     .needs = kCudaAny,
     .supports = "mxfp4; at most 256 experts, 16 a token",
     .limits = kMmaLimits,
     .ran_on = kMmaRanOn,
     .layout = PackedLayout::kFragment16x32,
     .forms = {.x = kAnyX, .t = {TForm::kF32, TForm::kAbsent}, .reduce = kRoundedToo},
     .tile_rows = gemm::kMmaTileRows,
     .is_batch_invariant = true,
     .refuses = experts_mxfp4_bf16_gemm_cuda_refuses,
     .predict_us = experts_mma_us,
     .workspace = experts_mxfp4_bf16_gemm_cuda_workspace,
     .run = experts_mxfp4_bf16_gemm_cuda},
    mx_row(
        "experts_mxfp4_mx_gemm_sm120", kSm120f,
        "any number of tokens; with --activation mxfp8, mxfp6 or mxfp4; activations rounded to the "
        "format's blocks",
        "compiled only", experts_mx_us, experts_mxfp4_mx_gemm_sm120),
    mx_row(
        "experts_mxfp4_mx_emulated_cuda", kNoMxProducts,
        "as experts_mxfp4_mx_gemm_sm120, with the instruction's fragments in BF16 products: shows "
        "what a format loses, gains no time",
        "H100", experts_mx_emulated_us, experts_mxfp4_mx_emulated_cuda),
#ifdef MOXIE_HAS_FLASHINFER
    {.name = "experts_mxfp4_mxfp8_cutlass_sm100",
     .kind = "w4a8",
     .device = DeviceKind::kCuda,
     .needs = kSm100a,
     .supports = "mxfp4; at most 256 experts, 16 a token; flashinfer 0.6.0",
     .limits = "any number of tokens, best from thousands on; with --activation mxfp8; activations "
               "rounded to the format's blocks; each launch unpacks the weights of its experts",
     .ran_on = "compiled only",
     .layout = PackedLayout::kFragment16x32,
     .forms = {.x = kAnyX, .t = {TForm::kF32, TForm::kAbsent}},
     .activation = DType::kMXFP8,
     .refuses = experts_mxfp4_mxfp8_cutlass_sm100_refuses,
     .predict_us = experts_cutlass_us,
     .workspace = experts_mxfp4_mxfp8_cutlass_sm100_workspace,
     .run = experts_mxfp4_mxfp8_cutlass_sm100},
#endif
#endif
};

}  // namespace

std::span<const Row<ExpertsParams>> Op<ExpertsParams>::rows() { return kRows; }

Work Op<ExpertsParams>::work(const ExpertsParams& p) {
  const double distinct = expected_distinct_experts(routed_experts(p), p.top_k, p.num_tokens);
  return experts_work(p, static_cast<int32_t>(std::lround(distinct)));
}

Work experts_work(const ExpertsParams& p, int32_t num_distinct) {
  const double tokens = p.num_tokens, hidden = p.hidden, intermediate = p.intermediate;
  const double one_expert = static_cast<double>(p.gate_up.expert_bytes() + p.down.expert_bytes()) +
                            4.0 * (p.gate_up.rows + hidden);
  const double held = num_distinct * static_cast<double>(p.gate_up.num_experts) / routed_experts(p);
  return {.bytes = held * one_expert + tokens * (12.0 * hidden + 8.0 * p.top_k),
          .flops = 2.0 * 3.0 * hidden * intermediate * expected_pairs(p)};
}

}  // namespace moxie
