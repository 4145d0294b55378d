// The greatest scale of each row of experts' weights. It gives the factor of sums of 8-bit
// operands, and the scales that fold into these operands exactly (product_sm90.cuh).
#pragma once

#include "core/tensor.h"
#include "kernels/step.h"

namespace moxie::gemm {

/// Octaves below a row's greatest scale that fold exactly into E5M2.
inline constexpr int kFoldedOctaves = 16;

/// Of an expert: its blocks that are not all zeros, and those among them whose scale is more than
/// kFoldedOctaves below their row's greatest.
struct FoldedBlocks {
  uint32_t num_blocks = 0, num_cut = 0;
};

/// For an MXFP4 matrix in kFragment16x32. greatest: [num_experts, 16 * num_tiles] E8M0 codes, over
/// blocks that are not all zeros; 0 if all are. blocks: [num_experts]. Both are in device memory
/// and written.
struct GreatestScales {
  PackedMatrix matrix;
  uint8_t* greatest = nullptr;
  FoldedBlocks* blocks = nullptr;
};
void find_greatest_scales(const GreatestScales& step, Stream* stream);

}  // namespace moxie::gemm
