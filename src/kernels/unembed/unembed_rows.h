// The functions behind unembed's table: one group a row.
#pragma once

#include "kernels/unembed/unembed.h"

namespace moxie {

const char* unembed_reference_refuses(const UnembedParams& params);
uint64_t unembed_reference_workspace(const UnembedParams& params);
void unembed_reference(const UnembedParams& params);

// unembed_any_f32_gemv_*: F32 activations and sums over any packed format.
const char* unembed_any_f32_gemv_refuses(const UnembedParams& params);
uint64_t unembed_any_f32_gemv_workspace(const UnembedParams& params);
double unembed_any_f32_gemv_portable_cost(const UnembedParams& params);
double unembed_any_f32_gemv_avx2_cost(const UnembedParams& params);
double unembed_any_f32_gemv_avx512_cost(const UnembedParams& params);
void unembed_any_f32_gemv_portable(const UnembedParams& params);
void unembed_any_f32_gemv_avx2(const UnembedParams& params);
void unembed_any_f32_gemv_avx512(const UnembedParams& params);

// unembed_mxfp4_i16_gemv_*: activations in 16-bit fixed point by blocks of 32.
const char* unembed_mxfp4_i16_gemv_refuses(const UnembedParams& params);
uint64_t unembed_mxfp4_i16_gemv_workspace(const UnembedParams& params);
double unembed_mxfp4_i16_gemv_avx512vnni_cost(const UnembedParams& params);
void unembed_mxfp4_i16_gemv_avx512vnni(const UnembedParams& params);
const char* unembed_mxfp4_i16_gemv_neondot_refuses(const UnembedParams& params);
uint64_t unembed_mxfp4_i16_gemv_neondot_workspace(const UnembedParams& params);
double unembed_mxfp4_i16_gemv_neondot_cost(const UnembedParams& params);
void unembed_mxfp4_i16_gemv_neondot(const UnembedParams& params);

// unembed_any_bf16_gemm_*: BF16 activations, F32 sums; for many rows.
const char* unembed_any_bf16_gemm_refuses(const UnembedParams& params);
uint64_t unembed_any_bf16_gemm_workspace(const UnembedParams& params);
double unembed_any_bf16_gemm_amx_cost(const UnembedParams& params);
void unembed_any_bf16_gemm_amx(const UnembedParams& params);
double unembed_any_bf16_gemm_avx512bf16_cost(const UnembedParams& params);
void unembed_any_bf16_gemm_avx512bf16(const UnembedParams& params);

// unembed_any_bf16x2_gemv_cuda: activations as two BF16 parts (16 bits), F32 sums.
const char* unembed_any_bf16x2_gemv_cuda_refuses(const UnembedParams& params);
void unembed_any_bf16x2_gemv_cuda(const UnembedParams& params);

// unembed_any_bf16_gemm_sm90: BF16 activations, F32 sums, wgmma; for many tokens.
const char* unembed_any_bf16_gemm_sm90_refuses(const UnembedParams& params);
uint64_t unembed_any_bf16_gemm_sm90_workspace(const UnembedParams& params);
void unembed_any_bf16_gemm_sm90(const UnembedParams& params);

}  // namespace moxie
