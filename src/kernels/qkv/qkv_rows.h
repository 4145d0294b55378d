// The functions behind qkv's table: one group a row.
#pragma once

#include "kernels/qkv/qkv.h"

namespace moxie {

const char* qkv_reference_refuses(const QkvParams& params);
uint64_t qkv_reference_workspace(const QkvParams& params);
void qkv_reference(const QkvParams& params);

// qkv_any_f32_gemv_*: F32 activations and sums over any packed format.
const char* qkv_any_f32_gemv_refuses(const QkvParams& params);
uint64_t qkv_any_f32_gemv_workspace(const QkvParams& params);
double qkv_any_f32_gemv_portable_cost(const QkvParams& params);
double qkv_any_f32_gemv_avx2_cost(const QkvParams& params);
double qkv_any_f32_gemv_avx512_cost(const QkvParams& params);
void qkv_any_f32_gemv_portable(const QkvParams& params);
void qkv_any_f32_gemv_avx2(const QkvParams& params);
void qkv_any_f32_gemv_avx512(const QkvParams& params);

// qkv_mxfp4_i16_gemv_*: activations in 16-bit fixed point by blocks of 32.
const char* qkv_mxfp4_i16_gemv_refuses(const QkvParams& params);
uint64_t qkv_mxfp4_i16_gemv_workspace(const QkvParams& params);
double qkv_mxfp4_i16_gemv_avx512vnni_cost(const QkvParams& params);
void qkv_mxfp4_i16_gemv_avx512vnni(const QkvParams& params);
const char* qkv_mxfp4_i16_gemv_neondot_refuses(const QkvParams& params);
uint64_t qkv_mxfp4_i16_gemv_neondot_workspace(const QkvParams& params);
double qkv_mxfp4_i16_gemv_neondot_cost(const QkvParams& params);
void qkv_mxfp4_i16_gemv_neondot(const QkvParams& params);

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

// qkv_any_bf16_gemm_sm90: BF16 activations, F32 sums, wgmma; for many tokens.
const char* qkv_any_bf16_gemm_sm90_refuses(const QkvParams& params);
uint64_t qkv_any_bf16_gemm_sm90_workspace(const QkvParams& params);
void qkv_any_bf16_gemm_sm90(const QkvParams& params);

}  // namespace moxie
