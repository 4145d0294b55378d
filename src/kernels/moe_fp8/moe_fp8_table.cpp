// The table of moe_fp8_block_scale, its least work, and what its extents must be.
#include <vector>

#include "kernels/distinct_experts.h"
#include "kernels/moe_fp8/moe_fp8_lanes.h"
#include "kernels/moe_fp8/moe_fp8_routing.h"
#include "kernels/moe_fp8/moe_fp8_rows.h"

namespace moxie {
namespace {

constexpr const char* kSupports =
    "e4m3 with f32 scales of 128 x 128; hidden, intermediate % 128 = 0";

#if defined(__x86_64__)
template <const MoeFp8Kernels& kKernels>
constexpr Row<MoeFp8Params> gemm_row(const char* name, Features needs, const char* limits,
                                     const char* ran_on) {
  return {.name = name,
          .kind = "gemm",
          .device = DeviceKind::kCpu,
          .needs = needs,
          .supports = kSupports,
          .limits = limits,
          .ran_on = ran_on,
          .layout = PackedLayout::kRows16,
          .refuses = moe_fp8_shape_fault,
          .predict_us =
              [](const MoeFp8Params& p, const DeviceRates& rates) {
                return 1e-3 * moe_fp8_gemm_cost(p, kKernels, rates.bf16_dot_cost) /
                       rates.num_threads;
              },
          .workspace = [](const MoeFp8Params& p) { return moe_fp8_gemm_workspace(p, kKernels); },
          .run = [](const MoeFp8Params& p) { moe_fp8_gemm(p, kKernels); }};
}
constexpr const char* kF32Limits = "any number of tokens; F32 products, sums and intermediate";
constexpr const char* kBf16x2Limits =
    "any number of tokens; F32 sums; intermediate in two BF16 parts (16 bits)";
#endif

#if MOXIE_HAS_CUDA
constexpr const char* kCudaSupports =
    "e4m3 with f32 scales of 128 x 128; hidden, intermediate % 128 = 0; at most 512 experts, 256 "
    "local, 32 a token";
constexpr int32_t kPieceOfGemv = 128;

// Both fitted on an H200 at hidden 7168, intermediate 2048, 32 of 256 experts.
double gemv_cuda_us(const MoeFp8Params& p, const DeviceRates& rates) {
  const auto piece_us = [&](int32_t num_tokens) {
    if (num_tokens == 0) return 0.0;
    MoeFp8Params piece = p;
    piece.num_tokens = num_tokens;
    return 25 + 1.14e-3 * Op<MoeFp8Params>::work(piece).bytes / rates.read_gb_s;
  };
  const int32_t num_full = p.num_tokens / kPieceOfGemv;
  return num_full * piece_us(kPieceOfGemv) + piece_us(p.num_tokens % kPieceOfGemv);
}
// Fitted as above.
double stream_sm90_us(const MoeFp8Params& p, const DeviceRates& rates) {
  return 18 + 1.15e-3 * Op<MoeFp8Params>::work(p).bytes / rates.read_gb_s;
}
// Reads and products come one after the other more than side by side. Fitted as above.
double gemm_sm90_us(const MoeFp8Params& p, const DeviceRates& rates) {
  const Work work = Op<MoeFp8Params>::work(p);
  return 60 + 1e-3 * (1.15 * work.bytes / rates.read_gb_s + 1.8 * work.flops / rates.fp8_gflops);
}
const char* requantised_cuda_refuses(const MoeFp8Params& p) {
  if (p.activation != DType::kF8E4M3)
    return "rounds the intermediate to 8 bits: runs only where it is named";
  return moe_fp8_cuda_refuses(p);
}
double requantised_sm90_us(const MoeFp8Params& p, const DeviceRates& rates) {
  return 0.85 * gemm_sm90_us(p, rates);
}
#endif

const Row<MoeFp8Params> kRows[] = {
    {.name = "moe_fp8_block_scale_reference",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = kSupports,
     .limits = "double precision, slow on purpose",
     .ran_on = "x86-64",
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = moe_fp8_shape_fault,
     .predict_us = reference_us<MoeFp8Params>,
     .workspace = moe_fp8_reference_workspace,
     .run = moe_fp8_reference},
#if defined(__x86_64__)
    gemm_row<kMoeFp8Avx2>("moe_fp8_block_scale_e4m3_f32_gemm_avx2", kAvx2, kF32Limits, "x86-64"),
    gemm_row<kMoeFp8Avx512>("moe_fp8_block_scale_e4m3_f32_gemm_avx512", kAvx512, kF32Limits,
                            "x86-64"),
    gemm_row<kMoeFp8Avx512Bf16>("moe_fp8_block_scale_e4m3_bf16x2_gemm_avx512bf16",
                                kAvx512 | kAvx512Vbmi | kAvx512Bf16, kBf16x2Limits, "x86-64"),
    gemm_row<kMoeFp8Amx>("moe_fp8_block_scale_e4m3_bf16x2_gemm_amx",
                         kAvx512 | kAvx512Vbmi | kAvx512Bf16 | kAmxBf16, kBf16x2Limits, "x86-64"),
#endif
#if MOXIE_HAS_CUDA
    {.name = "moe_fp8_block_scale_e4m3_f16_gemv_cuda",
     .kind = "gemv",
     .device = DeviceKind::kCuda,
     .needs = kClusters,
     .supports = kCudaSupports,
     .limits = "any number of tokens in pieces of 128, best up to about 100; exact FP16 products, "
               "F32 sums; intermediate in FP16 with a power of two for 16 columns",
     .ran_on = "H200",
     .layout = PackedLayout::kFragment16x32,
     .refuses = moe_fp8_cuda_refuses,
     .predict_us = gemv_cuda_us,
     .workspace = moe_fp8_block_scale_e4m3_f16_gemv_cuda_workspace,
     .run = moe_fp8_block_scale_e4m3_f16_gemv_cuda},
    {.name = "moe_fp8_block_scale_e4m3_f16_stream_sm90",
     .kind = "stream",
     .device = DeviceKind::kCuda,
     .needs = kSm90a,
     .supports = kCudaSupports,
     .limits =
         "at most 16 tokens, and 64 choices for each 8 of them; exact FP16 products, F32 sums; "
         "intermediate in FP16 with a power of two for 16 columns",
     .ran_on = "H200",
     .layout = PackedLayout::kFragment16x32,
     .refuses = moe_fp8_block_scale_e4m3_f16_stream_sm90_refuses,
     .predict_us = stream_sm90_us,
     .workspace = moe_fp8_block_scale_e4m3_f16_stream_sm90_workspace,
     .run = moe_fp8_block_scale_e4m3_f16_stream_sm90},
    {.name = "moe_fp8_block_scale_e4m3_f16_gemm_sm90",
     .kind = "gemm",
     .device = DeviceKind::kCuda,
     .needs = kSm90a,
     .supports = kCudaSupports,
     .limits = "any number of tokens; E4M3 products for gate and up, FP16 for down, F32 sums; "
               "intermediate in FP16 with a power of two for a tile's 128 columns and one for each "
               "pair",
     .ran_on = "H200",
     .layout = PackedLayout::kFragment16x32,
     .refuses = moe_fp8_cuda_refuses,
     .predict_us = gemm_sm90_us,
     .workspace = moe_fp8_block_scale_e4m3_f16_gemm_sm90_workspace,
     .run = moe_fp8_block_scale_e4m3_f16_gemm_sm90},
    {.name = "moe_fp8_block_scale_e4m3_e4m3_gemm_sm90",
     .kind = "gemm",
     .device = DeviceKind::kCuda,
     .needs = kSm90a,
     .supports = kCudaSupports,
     .limits = "any number of tokens; E4M3 products, F32 sums; the intermediate rounded to E4M3 "
               "with a scale for each 1 x 128",
     .ran_on = "H200",
     .layout = PackedLayout::kFragment16x32,
     .activation = DType::kF8E4M3,
     .refuses = requantised_cuda_refuses,
     .predict_us = requantised_sm90_us,
     .workspace = moe_fp8_block_scale_e4m3_e4m3_gemm_sm90_workspace,
     .run = moe_fp8_block_scale_e4m3_e4m3_gemm_sm90},
#endif
};

}  // namespace

std::span<const Row<MoeFp8Params>> Op<MoeFp8Params>::rows() { return kRows; }

const char* moe_fp8_shape_fault(const MoeFp8Params& p) {
  if (p.num_tokens < 0) return "the number of tokens is negative";
  if (p.num_experts < 1 || p.num_experts > kMoeFp8MaxExperts) return "experts: 1 to 4096";
  if (p.num_local_experts < 1 || p.num_local_experts > p.num_experts)
    return "local experts: 1 to the number of experts";
  if (p.local_expert_offset < 0 || p.local_expert_offset > p.num_experts - p.num_local_experts)
    return "the offset of the local experts is out of range";
  if (p.hidden < kFp8Block || p.hidden % kFp8Block != 0)
    return "hidden is not a positive multiple of 128";
  if (p.intermediate < kFp8Block || p.intermediate % kFp8Block != 0)
    return "intermediate is not a positive multiple of 128";
  if (p.num_groups < 1 || p.num_experts % p.num_groups != 0)
    return "the groups do not divide the experts";
  if (p.kept_groups < 1 || p.kept_groups > p.num_groups)
    return "kept groups: 1 to the number of groups";
  if (p.top_k < 1 || p.top_k > kMoeFp8MaxTopK ||
      p.top_k > p.kept_groups * (p.num_experts / p.num_groups))
    return "choices a token: 1 to the experts of the kept groups, at most 64";
  return nullptr;
}

MoeFp8Load expected_moe_fp8_load(const MoeFp8Params& p) {
  const double local_share = static_cast<double>(p.num_local_experts) / p.num_experts;
  return {
      .num_pairs = p.num_tokens * p.top_k * local_share,
      .num_touched = local_share * expected_distinct_experts(p.num_experts, p.top_k, p.num_tokens)};
}

MoeFp8Load moe_fp8_load(const MoeFp8Params& p) {
  MoeFp8Load load;
  std::vector<bool> is_touched(static_cast<size_t>(p.num_local_experts));
  std::vector<int32_t> experts(static_cast<size_t>(p.top_k));
  std::vector<float> weights(static_cast<size_t>(p.top_k));
  for (int32_t token = 0; token < p.num_tokens; ++token) {
    choose_moe_fp8(p, token, experts.data(), weights.data());
    for (const int32_t expert : experts) {
      const int32_t e = expert - p.local_expert_offset;
      if (e < 0 || e >= p.num_local_experts) continue;
      load.num_pairs += 1;
      if (!is_touched[static_cast<size_t>(e)]) load.num_touched += 1;
      is_touched[static_cast<size_t>(e)] = true;
    }
  }
  return load;
}

Work moe_fp8_work(const MoeFp8Params& p, const MoeFp8Load& load) {
  const double hidden = p.hidden, weights = 3.0 * hidden * p.intermediate;
  const double scale_bytes = 4.0 / (kFp8Block * kFp8Block);
  // Of a token: logits, activations with their scales, the output. Of all: the bias.
  const double token_bytes = 4.0 * p.num_experts + hidden * (1 + 4.0 / kFp8Block + 2);
  return {.bytes = load.num_touched * weights * (1 + scale_bytes) + p.num_tokens * token_bytes +
                   2.0 * p.num_experts,
          .flops = 2.0 * weights * load.num_pairs};
}

Work Op<MoeFp8Params>::work(const MoeFp8Params& p) {
  return moe_fp8_work(p, expected_moe_fp8_load(p));
}

}  // namespace moxie
