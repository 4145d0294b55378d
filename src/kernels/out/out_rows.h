// The functions behind out's table, grouped by row.
#pragma once

#include "kernels/out/out.h"

namespace moxie {

struct LaneKernels;

const char* out_reference_refuses(const OutParams& params);
void out_reference(const OutParams& params);

// out_any_f32_gemv_*, out_mxfp4_i16_gemv_* and out_mxfp4_i8_gemv_*: a row for each set
// of LaneKernels.
const char* gemv_refuses(const OutParams& params, const LaneKernels& lanes);
double gemv_cost(const OutParams& params, const LaneKernels& lanes);
uint64_t gemv_workspace(const OutParams& params, const LaneKernels& lanes);
void gemv_run(const OutParams& params, const LaneKernels& lanes);

// out_any_bf16_gemm_*: BF16 activations, F32 sums; for many tokens.
const char* out_any_bf16_gemm_refuses(const OutParams& params);
uint64_t out_any_bf16_gemm_workspace(const OutParams& params);
double out_any_bf16_gemm_amx_cost(const OutParams& params);
void out_any_bf16_gemm_amx(const OutParams& params);
double out_any_bf16_gemm_avx512bf16_cost(const OutParams& params);
void out_any_bf16_gemm_avx512bf16(const OutParams& params);

// out_any_bf16x2_gemv_cuda: activations as two BF16 parts (16 bits), F32 sums.
const char* out_any_bf16x2_gemv_cuda_refuses(const OutParams& params);
void out_any_bf16x2_gemv_cuda(const OutParams& params);

// out_mxfp4_bf16x2_split_cuda: the same precision; clusters of blocks share the columns.
const char* out_mxfp4_bf16x2_split_cuda_refuses(const OutParams& params);
void out_mxfp4_bf16x2_split_cuda(const OutParams& params);

// out_any_bf16_gemm_sm90: BF16 activations, F32 sums, wgmma; for many tokens.
const char* out_any_bf16_gemm_sm90_refuses(const OutParams& params);
uint64_t out_any_bf16_gemm_sm90_workspace(const OutParams& params);
void out_any_bf16_gemm_sm90(const OutParams& params);
// out_any_bf16_ordered_sm90: the same; sums in one order for any number of tokens.
void out_any_bf16_ordered_sm90(const OutParams& params);

// out_any_i8_gemm_sm90: activations and weights in 8-bit integers, wgmma; for thousands of
// tokens.
const char* out_any_i8_gemm_sm90_refuses(const OutParams& params);
uint64_t out_any_i8_gemm_sm90_workspace(const OutParams& params);
void out_any_i8_gemm_sm90(const OutParams& params);

// out_any_bf16_gemm_cuda: BF16 activations, F32 sums, mma.sync; for many tokens.
const char* out_any_bf16_gemm_cuda_refuses(const OutParams& params);
void out_any_bf16_gemm_cuda(const OutParams& params);

// out_any_bf16_teams_cuda: the same, warps that share the columns; for some tokens.
void out_any_bf16_teams_cuda(const OutParams& params);

}  // namespace moxie
