// The functions behind route's table, grouped by row.
#pragma once

#include "kernels/route/route.h"

namespace moxie {

struct LaneKernels;

const char* route_reference_refuses(const RouteParams& params);
uint64_t route_reference_workspace(const RouteParams& params);
void route_reference(const RouteParams& params);

// route_any_f32_gemv_*: a row for each set of LaneKernels.
const char* gemv_refuses(const RouteParams& params, const LaneKernels& lanes);
double gemv_cost(const RouteParams& params, const LaneKernels& lanes);
uint64_t gemv_workspace(const RouteParams& params, const LaneKernels& lanes);
void gemv_run(const RouteParams& params, const LaneKernels& lanes);

// route_any_bf16x2_gemv_cuda: activations as two BF16 parts (16 bits), F32 sums.
const char* route_any_bf16x2_gemv_cuda_refuses(const RouteParams& params);
void route_any_bf16x2_gemv_cuda(const RouteParams& params);

// route_bf16_bf16x2_gemm_cuda: the same precision, for many tokens.
const char* route_bf16_bf16x2_gemm_cuda_refuses(const RouteParams& params);
void route_bf16_bf16x2_gemm_cuda(const RouteParams& params);

// route_bf16_bf16x2_wide_cuda: the same precision, for thousands of tokens.
const char* route_bf16_bf16x2_wide_cuda_refuses(const RouteParams& params);
void route_bf16_bf16x2_wide_cuda(const RouteParams& params);

// On CUDA, t by a kernel of its own, if a row reads it.
void write_route_input(const RouteParams& params);

// route_bf16_bf16x2_tiles_cuda: the same precision, for some tokens on any GPU.
const char* route_bf16_bf16x2_tiles_cuda_refuses(const RouteParams& params);
uint64_t route_bf16_bf16x2_tiles_cuda_workspace(const RouteParams& params);
void route_bf16_bf16x2_tiles_cuda(const RouteParams& params);

}  // namespace moxie
