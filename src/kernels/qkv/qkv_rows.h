// The functions behind qkv's table, grouped by row.
#pragma once

#include "kernels/qkv/qkv.h"

namespace moxie {

struct LaneKernels;

const char* qkv_reference_refuses(const QkvParams& params);
uint64_t qkv_reference_workspace(const QkvParams& params);
void qkv_reference(const QkvParams& params);

// qkv_any_f32_gemv_*, qkv_mxfp4_i16_gemv_* and qkv_mxfp4_i8_gemv_*: a row for each set
// of LaneKernels.
const char* gemv_refuses(const QkvParams& params, const LaneKernels& lanes);
double gemv_cost(const QkvParams& params, const LaneKernels& lanes);
uint64_t gemv_workspace(const QkvParams& params, const LaneKernels& lanes);
void gemv_run(const QkvParams& params, const LaneKernels& lanes);

// qkv_any_bf16_gemm_*: BF16 activations, F32 sums; for many tokens.
const char* qkv_any_bf16_gemm_refuses(const QkvParams& params);
uint64_t qkv_any_bf16_gemm_workspace(const QkvParams& params);
double qkv_any_bf16_gemm_amx_cost(const QkvParams& params);
void qkv_any_bf16_gemm_amx(const QkvParams& params);
double qkv_any_bf16_gemm_avx512bf16_cost(const QkvParams& params);
void qkv_any_bf16_gemm_avx512bf16(const QkvParams& params);

// qkv_any_bf16x2_gemv_cuda: activations as two BF16 parts (16 bits), F32 sums.
const char* qkv_any_bf16x2_gemv_cuda_refuses(const QkvParams& params);
void qkv_any_bf16x2_gemv_cuda(const QkvParams& params);

// qkv_mxfp4_bf16x2_split_cuda: the same precision; clusters of blocks share the columns.
const char* qkv_mxfp4_bf16x2_split_cuda_refuses(const QkvParams& params);
void qkv_mxfp4_bf16x2_split_cuda(const QkvParams& params);

// The same for one token of several ranks, whose parts of x it exchanges (ReduceForm::kFolded).
const char* reduce_qkv_mxfp4_bf16x2_split_cuda_refuses(const QkvParams& params);
void reduce_qkv_mxfp4_bf16x2_split_cuda(const QkvParams& params);

// qkv_any_bf16_gemm_sm90: BF16 activations, F32 sums, wgmma; for many tokens.
const char* qkv_any_bf16_gemm_sm90_refuses(const QkvParams& params);
uint64_t qkv_any_bf16_gemm_sm90_workspace(const QkvParams& params);
void qkv_any_bf16_gemm_sm90(const QkvParams& params);
// qkv_any_bf16_ordered_sm90: the same; sums in one order for any number of tokens.
void qkv_any_bf16_ordered_sm90(const QkvParams& params);

// qkv_any_i8_gemm_sm90: activations and weights in 8-bit integers, wgmma; for thousands of
// tokens.
const char* qkv_any_i8_gemm_sm90_refuses(const QkvParams& params);
uint64_t qkv_any_i8_gemm_sm90_workspace(const QkvParams& params);
void qkv_any_i8_gemm_sm90(const QkvParams& params);

// qkv_any_bf16_gemm_cuda: BF16 activations, F32 sums, mma.sync; for many tokens.
const char* qkv_any_bf16_gemm_cuda_refuses(const QkvParams& params);
void qkv_any_bf16_gemm_cuda(const QkvParams& params);

// qkv_any_bf16_teams_cuda: the same, warps that share the columns; for some tokens.
void qkv_any_bf16_teams_cuda(const QkvParams& params);

}  // namespace moxie
