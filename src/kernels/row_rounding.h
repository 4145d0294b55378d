// How far a row's outputs may be from the reference row's: what its sums and its activations round.
// Tests of rows and the self-test at start (model/self_test.h) compare by it.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/tensor.h"

namespace moxie {

/// A sum of `k` products in F32: chains of 32 and k / 32 chains, each addition off by at most
/// 2^-24 of a partial sum; random signs keep partial sums near the size of the result.
inline double f32_sum_error(int64_t k) { return (32.0 + static_cast<double>(k) / 32.0) * 0x1p-24; }

/// What splitting activations into two BF16 parts adds, in CUDA rows: it loses 2^-17 of each
/// activation, and of each F32 weight. Errors have random signs; the greatest of thousands of
/// outputs is several deviations off.
inline constexpr double kSplitRounding = 0x1p-15;

/// What rounding a row's activations may add to an output's error, as a share of the outputs'
/// greatest, on top of the F32 sums. Rows in 16-bit fixed point round each activation to 2^-16 of
/// its block's greatest, those in 8 bits to 2^-8, and the experts do so twice. Rows in BF16 round
/// each to 2^-9 of itself: the errors of a sum have random signs and are spread as its terms are,
/// 2^-9 / sqrt(3) of it in the mean, and the greatest of thousands of outputs, four to five
/// deviations out, is compared with outputs of one to three. Rows in E4M3 round each to 2^-4. Rows
/// in integers with a scale a token round activations and weights to 2^-8 of their rows' greatest.
/// in MX formats lose up to an eighth of a block's greatest where its significand is above 1.75
/// (448 is MXFP8's greatest, the scale would allow 512), and the experts may do so twice.
inline constexpr double kI16Rounding = 0x1p-14, kI8Rounding = 0x1p-6, kBf16Rounding = 0x1p-7,
                        kE4m3Rounding = 0x1p-3, kI8RowRounding = 0x1p-5, kMxRounding = 0x3p-4;

struct RowRounding {
  std::string_view row;  ///< name behind "<step>_"
  double activations;
};
/// Every row that rounds its activations, of attend queries and weights. A row that is not listed
/// may not.
inline constexpr RowRounding kRowRoundings[] = {
    {"any_bf16_peers_cuda", kBf16Rounding},
    {"any_bf16_units_peers_cuda", kBf16Rounding},
    {"any_bf16_two_shot_peers_cuda", kBf16Rounding},
    {"any_bf16_nccl_cuda", kBf16Rounding},
    {"mxfp4_i16_gemv_avx2", kI16Rounding},
    {"mxfp4_i16_gemv_avxvnni", kI16Rounding},
    {"mxfp4_i16_gemv_avx512vnni", kI16Rounding},
    {"mxfp4_i16_gemv_neondot", kI16Rounding},
    {"mxfp4_i8_gemv_avx2", kI8Rounding},
    {"mxfp4_i8_gemv_avxvnni", kI8Rounding},
    {"mxfp4_i8_gemv_avx512vnni", kI8Rounding},
    {"mxfp4_i8_gemv_neondot", kI8Rounding},
    {"any_bf16_gemm_amx", kBf16Rounding},
    {"any_bf16_gemm_avx512bf16", kBf16Rounding},
    {"any_bf16_gemm_cuda", kBf16Rounding},
    {"any_bf16_teams_cuda", kBf16Rounding},
    {"mxfp4_bf16_gemm_cuda", kBf16Rounding},
    {"mxfp4_bf16_teams_cuda", kBf16Rounding},
    {"any_bf16_gemm_sm90", kBf16Rounding},
    {"mxfp4_bf16_gemm_sm90", kBf16Rounding},
    {"any_bf16_ordered_sm90", kBf16Rounding},
    {"mxfp4_bf16_ordered_sm90", kBf16Rounding},
    {"mxfp4_e4m3_gemm_sm90", kE4m3Rounding},
    {"any_i8_gemm_sm90", kI8RowRounding},
    {"mxfp4_mx_gemm_sm120", kMxRounding},
    {"mxfp4_mx_emulated_cuda", kMxRounding},
    {"mxfp4_mxfp8_cutlass_sm100", kMxRounding},
    {"any_mx_gemv_portable", kMxRounding},
    {"any_mx_gemv_avx2", kMxRounding},
    {"any_mx_gemv_avx512", kMxRounding},
    {"any_bf16_flash_amx", kBf16Rounding},
    {"any_bf16_flash_avx512bf16", kBf16Rounding},
    {"bf16_prefill_wgmma_sm90", kBf16Rounding},
    {"bf16_ordered_wgmma_sm90", kBf16Rounding},
    {"e4m3_prefill_wgmma_sm90", kBf16Rounding},
    {"e4m3_ordered_wgmma_sm90", kBf16Rounding},
    {"bf16_ordered_mma_cuda", kBf16Rounding},
    {"bf16_prefill_flashinfer_fa2_cuda", kBf16Rounding},
    {"bf16_prefill_flashinfer_fa3_sm90", kBf16Rounding}};

inline double activation_rounding(std::string_view row) {
  for (const RowRounding& rounding : kRowRoundings) {
    const std::string_view name = rounding.row;
    if (row.ends_with(name) && row[row.size() - name.size() - 1] == '_')
      return rounding.activations;
  }
  return 0;
}
/// With `activation` asked for. Of an MX format other than MXFP8 more: E2M1 keeps one bit behind
/// the first, E3M2 two, E2M3 and E4M3 three.
inline double activation_rounding(std::string_view row, DType activation) {
  if (row.find("_mx_") == std::string_view::npos) return activation_rounding(row);
  const double coarser = activation == DType::kMXFP4       ? 4.0
                         : activation == DType::kMXFP6E3M2 ? 2.0
                                                           : 1.0;
  return coarser * activation_rounding(row);
}

}  // namespace moxie
