// The table of experts, and its least work.
#include "kernels/experts/experts_rows.h"
#include "kernels/gemv/gemv_row.h"

namespace moxie {
namespace {

using enum LaneActivations;

double reference_cost(const ExpertsParams&) { return kReferenceCost; }

constexpr const char* kAnyFormat = "f32, bf16, q8_0, mxfp4";
constexpr const char* kMxfp4Only = "mxfp4";

const Row<ExpertsParams> kRows[] = {
    {.name = "experts_reference",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "f32, bf16, q8_0, mxfp4",
     .limits = "any number of tokens; double precision, slow",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .refuses = experts_reference_refuses,
     .cost = reference_cost,
     .workspace = experts_reference_workspace,
     .run = experts_reference},
    gemv_row<ExpertsParams, kLanesPortable>("experts_any_f32_gemv_portable", kFeatureNone, kF32,
                                            kAnyFormat, kRanAnyCpu),
#if defined(__x86_64__)
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
    {.name = "experts_any_bf16_gemm_amx",
     .device = DeviceKind::kCpu,
     .needs = kAvx512 | kAvx512Bf16 | kAmxBf16,
     .supports = "mxfp4, bf16",
     .limits = "any number of tokens; activations rounded to bf16, so by default only from 4 pairs "
               "an expert "
               "and sizes of 1,024",
     .ran_on = "x86-64",
     .layout = PackedLayout::kRows16,
     .refuses = experts_any_bf16_gemm_refuses,
     .cost = experts_any_bf16_gemm_amx_cost,
     .workspace = experts_any_bf16_gemm_workspace,
     .run = experts_any_bf16_gemm_amx},
    {.name = "experts_any_bf16_gemm_avx512bf16",
     .device = DeviceKind::kCpu,
     .needs = kAvx512 | kAvx512Bf16,
     .supports = "mxfp4, bf16",
     .limits =
         "any number of tokens; activations rounded to bf16, so by default only from 16 pairs "
         "an expert and sizes of 1,024",
     .ran_on = "x86-64",
     .layout = PackedLayout::kRows16,
     .refuses = experts_any_bf16_gemm_refuses,
     .cost = experts_any_bf16_gemm_avx512bf16_cost,
     .workspace = experts_any_bf16_gemm_workspace,
     .run = experts_any_bf16_gemm_avx512bf16},
#endif
    gemv_row<ExpertsParams, kLanesNeonDotI16>("experts_mxfp4_i16_gemv_neondot", kNeonDot, kI16,
                                              kMxfp4Only, kRanEmulated),
    gemv_row<ExpertsParams, kLanesNeonDotI8>("experts_mxfp4_i8_gemv_neondot", kNeonDot, kI8,
                                             kMxfp4Only, kRanEmulated),
#if MOXIE_HAS_CUDA
    {.name = "experts_any_bf16x2_gemv_cuda",
     .device = DeviceKind::kCuda,
     .needs = kCudaAny,
     .supports = "f32, bf16, q8_0, mxfp4, mxfp8; up to 12288 columns; at most 16 experts a token",
     .limits = "any number of tokens in groups of 8, best for 1 to 8; activations to 2^-17; an "
               "expert is read once a group",
     .ran_on = "H200; sm_100a and sm_120f compiled only",
     .layout = PackedLayout::kFragment16x32,
     .refuses = experts_any_bf16x2_gemv_cuda_refuses,
     .cost = [](const ExpertsParams&) { return 1.0; },
     .workspace = experts_any_bf16x2_gemv_cuda_workspace,
     .run = experts_any_bf16x2_gemv_cuda},
    {.name = "experts_mxfp4_bf16_gemm_sm90",
     .device = DeviceKind::kCuda,
     .needs = kSm90a,
     .supports = "mxfp4; at most 256 experts, 16 a token",
     .limits = "any number of tokens; chosen from 9 on; activations rounded to bf16",
     .ran_on = "H200",
     .layout = PackedLayout::kFragment16x32,
     .refuses = experts_mxfp4_bf16_gemm_sm90_refuses,
     .cost = [](const ExpertsParams& p) { return cuda_gemm_cost(p.num_tokens, p.hidden); },
     .workspace = experts_mxfp4_bf16_gemm_sm90_workspace,
     .run = experts_mxfp4_bf16_gemm_sm90},
    {.name = "experts_mxfp4_e4m3_gemm_sm90",
     .device = DeviceKind::kCuda,
     .needs = kSm90a,
     .supports =
         "mxfp4; at most 256 experts, 16 a token; most scales within 16 octaves of their row's",
     .limits = "any number of tokens; with --activation mxfp8 chosen from 96 tokens an expert on; "
               "activations rounded to e4m3, one scale a token",
     .ran_on = "H200",
     .layout = PackedLayout::kFragment16x32,
     .refuses = experts_mxfp4_e4m3_gemm_sm90_refuses,
     .cost =
         [](const ExpertsParams& p) {
           return p.num_tokens * p.top_k >= 96 * p.gate_up.num_experts ? 0.25 : 20.0;
         },
     .workspace = experts_mxfp4_e4m3_gemm_sm90_workspace,
     .run = experts_mxfp4_e4m3_gemm_sm90},
#endif
};

}  // namespace

template <>
std::span<const Row<ExpertsParams>> table_of<ExpertsParams>() {
  return kRows;
}

bool can_route_in_experts(const ExpertsParams& p) {
#if MOXIE_HAS_CUDA
  if (p.launch.device == DeviceKind::kCuda) return experts_any_bf16x2_gemv_cuda_routes(p);
#endif
  (void)p;
  return false;
}

Work experts_work(const ExpertsParams& p, int32_t num_distinct) {
  const double tokens = p.num_tokens, hidden = p.hidden, intermediate = p.intermediate;
  const double one_expert = static_cast<double>(p.gate_up.expert_bytes() + p.down.expert_bytes()) +
                            4.0 * (p.gate_up.rows + hidden);
  return {.bytes = num_distinct * one_expert + tokens * (12.0 * hidden + 8.0 * p.top_k),
          .flops = 2.0 * 3.0 * hidden * intermediate * tokens * p.top_k};
}

}  // namespace moxie
