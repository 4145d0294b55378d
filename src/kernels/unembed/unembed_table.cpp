// The table of unembed, and its least work.
#include "kernels/unembed/unembed_rows.h"

namespace moxie {
namespace {

double reference_cost(const UnembedParams&) { return kReferenceCost; }

const Row<UnembedParams> kRows[] = {
    {.name = "unembed_reference",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "f32, bf16, q8_0, mxfp4",
     .limits = "any number of rows; double precision, slow",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .refuses = unembed_reference_refuses,
     .cost = reference_cost,
     .workspace = unembed_reference_workspace,
     .run = unembed_reference},
    {.name = "unembed_any_f32_gemv_portable",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "f32, bf16, q8_0, mxfp4",
     .limits = "any number of rows, best for 1 to 64; F32 sums",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .refuses = unembed_any_f32_gemv_refuses,
     .cost = unembed_any_f32_gemv_portable_cost,
     .workspace = unembed_any_f32_gemv_workspace,
     .run = unembed_any_f32_gemv_portable},
#if defined(__x86_64__)
    {.name = "unembed_any_f32_gemv_avx2",
     .device = DeviceKind::kCpu,
     .needs = kAvx2,
     .supports = "f32, bf16, q8_0, mxfp4",
     .limits = "any number of rows, best for 1 to 64; F32 sums",
     .ran_on = "x86-64",
     .layout = PackedLayout::kRows16,
     .refuses = unembed_any_f32_gemv_refuses,
     .cost = unembed_any_f32_gemv_avx2_cost,
     .workspace = unembed_any_f32_gemv_workspace,
     .run = unembed_any_f32_gemv_avx2},
    {.name = "unembed_any_f32_gemv_avx512",
     .device = DeviceKind::kCpu,
     .needs = kAvx512,
     .supports = "f32, bf16, q8_0, mxfp4",
     .limits = "any number of rows, best for 1 to 64; F32 sums",
     .ran_on = "x86-64",
     .layout = PackedLayout::kRows16,
     .refuses = unembed_any_f32_gemv_refuses,
     .cost = unembed_any_f32_gemv_avx512_cost,
     .workspace = unembed_any_f32_gemv_workspace,
     .run = unembed_any_f32_gemv_avx512},
    {.name = "unembed_mxfp4_i16_gemv_avx512vnni",
     .device = DeviceKind::kCpu,
     .needs = kAvx512 | kAvx512Vnni,
     .supports = "mxfp4",
     .limits =
         "any number of rows, best for 1 to 4; activations to 2^-16 of their block's greatest",
     .ran_on = "x86-64",
     .layout = PackedLayout::kRows16,
     .refuses = unembed_mxfp4_i16_gemv_refuses,
     .cost = unembed_mxfp4_i16_gemv_avx512vnni_cost,
     .workspace = unembed_mxfp4_i16_gemv_workspace,
     .run = unembed_mxfp4_i16_gemv_avx512vnni},
    {.name = "unembed_any_bf16_gemm_amx",
     .device = DeviceKind::kCpu,
     .needs = kAvx512 | kAvx512Bf16 | kAmxBf16,
     .supports = "mxfp4, bf16",
     .limits = "any number of rows; activations rounded to bf16, so by default only from 16 rows "
               "and a hidden size of 1,024",
     .ran_on = "x86-64",
     .layout = PackedLayout::kRows16,
     .refuses = unembed_any_bf16_gemm_refuses,
     .cost = unembed_any_bf16_gemm_amx_cost,
     .workspace = unembed_any_bf16_gemm_workspace,
     .run = unembed_any_bf16_gemm_amx},
    {.name = "unembed_any_bf16_gemm_avx512bf16",
     .device = DeviceKind::kCpu,
     .needs = kAvx512 | kAvx512Bf16,
     .supports = "mxfp4, bf16",
     .limits = "any number of rows; activations rounded to bf16, so by default only from 16 rows "
               "and a hidden size of 1,024",
     .ran_on = "x86-64",
     .layout = PackedLayout::kRows16,
     .refuses = unembed_any_bf16_gemm_refuses,
     .cost = unembed_any_bf16_gemm_avx512bf16_cost,
     .workspace = unembed_any_bf16_gemm_workspace,
     .run = unembed_any_bf16_gemm_avx512bf16},
#endif
    {.name = "unembed_mxfp4_i16_gemv_neondot",
     .device = DeviceKind::kCpu,
     .needs = kNeonDot,
     .supports = "mxfp4",
     .limits =
         "any number of rows, best for 1 to 4; activations to 2^-16 of their block's greatest",
     .ran_on = kRanEmulated,
     .layout = PackedLayout::kRows16,
     .refuses = unembed_mxfp4_i16_gemv_neondot_refuses,
     .cost = unembed_mxfp4_i16_gemv_neondot_cost,
     .workspace = unembed_mxfp4_i16_gemv_neondot_workspace,
     .run = unembed_mxfp4_i16_gemv_neondot},
#if MOXIE_HAS_CUDA
    {.name = "unembed_any_bf16x2_gemv_cuda",
     .device = DeviceKind::kCuda,
     .needs = kCudaAny,
     .supports = "f32, bf16, q8_0, mxfp4, mxfp8; up to 12288 columns",
     .limits = "any number of rows in groups of 8, best for 1 to 8; activations to 2^-17",
     .ran_on = "H200; sm_100a and sm_120f compiled only",
     .layout = PackedLayout::kFragment16x32,
     .refuses = unembed_any_bf16x2_gemv_cuda_refuses,
     .cost = [](const UnembedParams&) { return 1.0; },
     .workspace = [](const UnembedParams&) { return uint64_t{0}; },
     .run = unembed_any_bf16x2_gemv_cuda},
    {.name = "unembed_any_bf16_gemm_sm90",
     .device = DeviceKind::kCuda,
     .needs = kSm90a,
     .supports = "bf16, mxfp4, mxfp8",
     .limits = "any number of rows; chosen from 9 on; activations rounded to bf16",
     .ran_on = "H200",
     .layout = PackedLayout::kFragment16x32,
     .refuses = unembed_any_bf16_gemm_sm90_refuses,
     .cost = [](const UnembedParams& p) { return cuda_gemm_cost(p.num_rows, p.hidden); },
     .workspace = unembed_any_bf16_gemm_sm90_workspace,
     .run = unembed_any_bf16_gemm_sm90},
#endif
};

}  // namespace

template <>
std::span<const Row<UnembedParams>> table_of<UnembedParams>() {
  return kRows;
}

Work unembed_work(const UnembedParams& p) {
  const double rows = p.num_rows, vocab = p.weight.rows;
  return {.bytes = static_cast<double>(p.weight.bytes()) + 4.0 * p.hidden +
                   4.0 * rows * (p.hidden + vocab),
          .flops = 2.0 * vocab * p.weight.cols * rows};
}

}  // namespace moxie
