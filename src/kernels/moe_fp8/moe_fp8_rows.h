// The rows of moe_fp8_block_scale, as functions; moe_fp8_table.cpp puts them into the table.
#pragma once

#include "kernels/moe_fp8/moe_fp8.h"

namespace moxie {

struct MoeFp8Kernels;

uint64_t moe_fp8_reference_workspace(const MoeFp8Params& params);
void moe_fp8_reference(const MoeFp8Params& params);

// moe_fp8_block_scale_e4m3_*_gemm_*: a row for each set of MoeFp8Kernels (moe_fp8_lanes.h).
/// Nanoseconds of one thread; `dot_cost`: of products by vdpbf16ps (rates.h).
double moe_fp8_gemm_cost(const MoeFp8Params& params, const MoeFp8Kernels& kernels, double dot_cost);
uint64_t moe_fp8_gemm_workspace(const MoeFp8Params& params, const MoeFp8Kernels& kernels);
void moe_fp8_gemm(const MoeFp8Params& params, const MoeFp8Kernels& kernels);

// The rows on CUDA refuse for the same reasons.
const char* moe_fp8_cuda_refuses(const MoeFp8Params& params);

// moe_fp8_block_scale_e4m3_f16_gemv_cuda: FP16 products of both matrices; for few tokens.
uint64_t moe_fp8_block_scale_e4m3_f16_gemv_cuda_workspace(const MoeFp8Params& params);
void moe_fp8_block_scale_e4m3_f16_gemv_cuda(const MoeFp8Params& params);

// moe_fp8_block_scale_e4m3_f16_stream_sm90: the same products in one kernel; for up to 16 tokens.
const char* moe_fp8_block_scale_e4m3_f16_stream_sm90_refuses(const MoeFp8Params& params);
uint64_t moe_fp8_block_scale_e4m3_f16_stream_sm90_workspace(const MoeFp8Params& params);
void moe_fp8_block_scale_e4m3_f16_stream_sm90(const MoeFp8Params& params);

// moe_fp8_block_scale_e4m3_f16_gemm_sm90: wgmma, gate and up in E4M3, down in FP16; for many
// tokens.
uint64_t moe_fp8_block_scale_e4m3_f16_gemm_sm90_workspace(const MoeFp8Params& params);
void moe_fp8_block_scale_e4m3_f16_gemm_sm90(const MoeFp8Params& params);

// moe_fp8_block_scale_e4m3_e4m3_gemm_sm90: the same with the intermediate in E4M3.
uint64_t moe_fp8_block_scale_e4m3_e4m3_gemm_sm90_workspace(const MoeFp8Params& params);
void moe_fp8_block_scale_e4m3_e4m3_gemm_sm90(const MoeFp8Params& params);

}  // namespace moxie
