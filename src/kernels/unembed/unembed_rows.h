// The functions behind unembed's table, grouped by row.
#pragma once

#include "kernels/unembed/unembed.h"

namespace moxie {

struct LaneKernels;

const char* unembed_reference_refuses(const UnembedParams& params);
uint64_t unembed_reference_workspace(const UnembedParams& params);
void unembed_reference(const UnembedParams& params);

// unembed_any_f32_gemv_*, unembed_mxfp4_i16_gemv_* and unembed_mxfp4_i8_gemv_*: a row for each set
// of LaneKernels.
const char* gemv_refuses(const UnembedParams& params, const LaneKernels& lanes);
double gemv_cost(const UnembedParams& params, const LaneKernels& lanes);
uint64_t gemv_workspace(const UnembedParams& params, const LaneKernels& lanes);
void gemv_run(const UnembedParams& params, const LaneKernels& lanes);

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

// unembed_any_bf16x2_stream_cuda: the same for one row, streamed by bulk copies.
const char* unembed_any_bf16x2_stream_cuda_refuses(const UnembedParams& params);
void unembed_any_bf16x2_stream_cuda(const UnembedParams& params);

// unembed_any_bf16_gemm_sm90: BF16 activations, F32 sums, wgmma; for many tokens.
const char* unembed_any_bf16_gemm_sm90_refuses(const UnembedParams& params);
uint64_t unembed_any_bf16_gemm_sm90_workspace(const UnembedParams& params);
void unembed_any_bf16_gemm_sm90(const UnembedParams& params);
// unembed_any_bf16_ordered_sm90: the same; sums in one order for any number of tokens.
void unembed_any_bf16_ordered_sm90(const UnembedParams& params);

// unembed_any_bf16_gemm_cuda: BF16 activations, F32 sums, mma.sync; for many tokens.
const char* unembed_any_bf16_gemm_cuda_refuses(const UnembedParams& params);
void unembed_any_bf16_gemm_cuda(const UnembedParams& params);

}  // namespace moxie
