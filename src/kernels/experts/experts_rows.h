// The functions behind experts' table, grouped by row.
#pragma once

#include "kernels/experts/experts.h"

namespace moxie {

struct LaneKernels;

const char* experts_reference_refuses(const ExpertsParams& params);
uint64_t experts_reference_workspace(const ExpertsParams& params);
void experts_reference(const ExpertsParams& params);

// experts_any_f32_gemv_*, experts_mxfp4_i16_gemv_* and experts_mxfp4_i8_gemv_*: a row for each set
// of LaneKernels.
const char* gemv_refuses(const ExpertsParams& params, const LaneKernels& lanes);
/// The same rows with activations in MX formats.
const char* mx_gemv_refuses(const ExpertsParams& params, const LaneKernels& lanes);
double gemv_cost(const ExpertsParams& params, const LaneKernels& lanes);
uint64_t gemv_workspace(const ExpertsParams& params, const LaneKernels& lanes);
void gemv_run(const ExpertsParams& params, const LaneKernels& lanes);

// experts_any_bf16_gemm_*: BF16 activations, F32 sums; for many tokens.
const char* experts_any_bf16_gemm_refuses(const ExpertsParams& params);
uint64_t experts_any_bf16_gemm_workspace(const ExpertsParams& params);
double experts_any_bf16_gemm_amx_cost(const ExpertsParams& params);
void experts_any_bf16_gemm_amx(const ExpertsParams& params);
double experts_any_bf16_gemm_avx512bf16_cost(const ExpertsParams& params);
void experts_any_bf16_gemm_avx512bf16(const ExpertsParams& params);

// experts_any_bf16x2_gemv_cuda: activations as two BF16 parts (16 bits), F32 sums.
const char* experts_any_bf16x2_gemv_cuda_refuses(const ExpertsParams& params);
uint64_t experts_any_bf16x2_gemv_cuda_workspace(const ExpertsParams& params);
void experts_any_bf16x2_gemv_cuda(const ExpertsParams& params);

// experts_any_bf16x2_slices_cuda: one token, in one kernel; the same workspace.
const char* experts_any_bf16x2_slices_cuda_refuses(const ExpertsParams& params);
void experts_any_bf16x2_slices_cuda(const ExpertsParams& params);

// The same in MXFP4 of several ranks, whose parts of x and of the router's products it exchanges
// (ReduceForm::kFolded).
const char* reduce_route_experts_mxfp4_bf16x2_slices_cuda_refuses(const ExpertsParams& params);
void reduce_route_experts_mxfp4_bf16x2_slices_cuda(const ExpertsParams& params);

// experts_mxfp4_bf16x2_tiles_cuda: groups of up to sixteen tokens, weights straight to registers.
const char* experts_mxfp4_bf16x2_tiles_cuda_refuses(const ExpertsParams& params);
uint64_t experts_mxfp4_bf16x2_tiles_cuda_workspace(const ExpertsParams& params);
void experts_mxfp4_bf16x2_tiles_cuda(const ExpertsParams& params);

// experts_mxfp4_bf16_teams_cuda: BF16 activations, F32 sums, weights straight to registers; for few
// tokens an expert.
const char* experts_mxfp4_bf16_teams_cuda_refuses(const ExpertsParams& params);
uint64_t experts_mxfp4_bf16_teams_cuda_workspace(const ExpertsParams& params);
void experts_mxfp4_bf16_teams_cuda(const ExpertsParams& params);

// experts_mxfp4_bf16_gemm_sm90: BF16 activations, F32 sums, wgmma; for many tokens.
const char* experts_mxfp4_bf16_gemm_sm90_refuses(const ExpertsParams& params);
uint64_t experts_mxfp4_bf16_gemm_sm90_workspace(const ExpertsParams& params);
void experts_mxfp4_bf16_gemm_sm90(const ExpertsParams& params);

// experts_mxfp4_bf16_ordered_sm90: the same, but each pair's outputs are in BF16 and are added in
// the order of the token's choices, for any number of tokens.
const char* experts_mxfp4_bf16_ordered_sm90_refuses(const ExpertsParams& params);
uint64_t experts_mxfp4_bf16_ordered_sm90_workspace(const ExpertsParams& params);
void experts_mxfp4_bf16_ordered_sm90(const ExpertsParams& params);

// experts_mxfp4_e4m3_gemm_sm90: E4M3 activations with a scale a token, wgmma; for many tokens.
const char* experts_mxfp4_e4m3_gemm_sm90_refuses(const ExpertsParams& params);
uint64_t experts_mxfp4_e4m3_gemm_sm90_workspace(const ExpertsParams& params);
void experts_mxfp4_e4m3_gemm_sm90(const ExpertsParams& params);

// experts_mxfp4_bf16_gemm_cuda: BF16 activations, F32 sums, mma.sync; for many tokens.
const char* experts_mxfp4_bf16_gemm_cuda_refuses(const ExpertsParams& params);
uint64_t experts_mxfp4_bf16_gemm_cuda_workspace(const ExpertsParams& params);
void experts_mxfp4_bf16_gemm_cuda(const ExpertsParams& params);

// experts_mxfp4_mx_*: activations in MX formats by atoms of block-scaled products, F32 sums; for
// many tokens.
const char* experts_mxfp4_mx_gemm_refuses(const ExpertsParams& params);
uint64_t experts_mxfp4_mx_gemm_workspace(const ExpertsParams& params);
void experts_mxfp4_mx_gemm_sm120(const ExpertsParams& params);
void experts_mxfp4_mx_emulated_cuda(const ExpertsParams& params);

// experts_mxfp4_mxfp8_cutlass_sm100: MXFP8 activations, unpacked weights, F32 sums, tcgen05 by
// CUTLASS; for many tokens.
const char* experts_mxfp4_mxfp8_cutlass_sm100_refuses(const ExpertsParams& params);
uint64_t experts_mxfp4_mxfp8_cutlass_sm100_workspace(const ExpertsParams& params);
void experts_mxfp4_mxfp8_cutlass_sm100(const ExpertsParams& params);

}  // namespace moxie
