// How often each scale occurs among an expert's blocks: it says by what the sums of 8-bit operands
// are to be multiplied, and which scales fold into them exactly (product_sm90.cuh).
#pragma once

#include "core/tensor.h"
#include "kernels/step.h"

namespace moxie::gemm {

/// Octaves below an expert's greatest scale that fold exactly into E5M2.
inline constexpr int kFoldedOctaves = 16;

/// counts: [num_experts, 256] in device memory, written: blocks that are not all zeros by their
/// E8M0 code. An MXFP4 matrix in kFragment16x32.
struct ScaleCounts {
  PackedMatrix matrix;
  uint32_t* counts = nullptr;
};
void count_scales(const ScaleCounts& step, Stream* stream);

/// What one expert's counts mean.
struct ScaleRange {
  uint8_t greatest = 0, least = 0;       ///< codes; 0 where all blocks are zeros
  uint64_t num_blocks = 0, num_cut = 0;  ///< cut: more than kFoldedOctaves below the greatest
};
ScaleRange scale_range(const uint32_t counts[256]);

}  // namespace moxie::gemm
