// The rows of moe_fp8_block_scale, as functions; moe_fp8_table.cpp puts them into the table.
#pragma once

#include "kernels/moe_fp8/moe_fp8.h"

namespace moxie {

struct MoeFp8Kernels;

uint64_t moe_fp8_reference_workspace(const MoeFp8Params& params);
void moe_fp8_reference(const MoeFp8Params& params);

// moe_fp8_block_scale_e4m3_*_gemm_*: a row for each set of MoeFp8Kernels (moe_fp8_lanes.h).
double moe_fp8_gemm_cost(const MoeFp8Params& params, const MoeFp8Kernels& kernels);
uint64_t moe_fp8_gemm_workspace(const MoeFp8Params& params, const MoeFp8Kernels& kernels);
void moe_fp8_gemm(const MoeFp8Params& params, const MoeFp8Kernels& kernels);

}  // namespace moxie
