// The functions behind out's table: one group a row.
#pragma once

#include "kernels/out/out.h"

namespace moxie {

const char* out_reference_refuses(const OutParams& params);
void out_reference(const OutParams& params);

// out_any_f32_gemv_*: F32 activations and sums over any packed format.
const char* out_any_f32_gemv_refuses(const OutParams& params);
uint64_t out_any_f32_gemv_workspace(const OutParams& params);
double out_any_f32_gemv_portable_cost(const OutParams& params);
double out_any_f32_gemv_avx2_cost(const OutParams& params);
double out_any_f32_gemv_avx512_cost(const OutParams& params);
void out_any_f32_gemv_portable(const OutParams& params);
void out_any_f32_gemv_avx2(const OutParams& params);
void out_any_f32_gemv_avx512(const OutParams& params);

// out_mxfp4_i16_gemv_*: activations in 16-bit fixed point by blocks of 32.
const char* out_mxfp4_i16_gemv_refuses(const OutParams& params);
uint64_t out_mxfp4_i16_gemv_workspace(const OutParams& params);
double out_mxfp4_i16_gemv_avx512vnni_cost(const OutParams& params);
void out_mxfp4_i16_gemv_avx512vnni(const OutParams& params);
const char* out_mxfp4_i16_gemv_neondot_refuses(const OutParams& params);
uint64_t out_mxfp4_i16_gemv_neondot_workspace(const OutParams& params);
double out_mxfp4_i16_gemv_neondot_cost(const OutParams& params);
void out_mxfp4_i16_gemv_neondot(const OutParams& params);

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

// out_any_bf16_gemm_sm90: BF16 activations, F32 sums, wgmma; for many tokens.
const char* out_any_bf16_gemm_sm90_refuses(const OutParams& params);
uint64_t out_any_bf16_gemm_sm90_workspace(const OutParams& params);
void out_any_bf16_gemm_sm90(const OutParams& params);

}  // namespace moxie
