// What bounds the tokens of one launch of the CUDA rows for a few tokens that pass their weights
// through rings in shared memory (gemv/slice_gemv.cuh): for the kernels and for their predicted
// times.
#pragma once

#include <algorithm>

#include "core/tensor.h"
#include "kernels/step.h"

namespace moxie::fragment {

/// How a warp's weights pass through shared memory: stages of neighbouring units of a tile.
struct RingShape {
  int32_t units_a_stage, num_stages;
};
constexpr RingShape ring_shape(DType format) {
  if (format == DType::kMXFP4) return {3, 3};
  if (format == DType::kMXFP8) return {2, 3};
  return {1, format == DType::kF32 ? 2 : 4};
}
/// Stages of a warp's ring in a slice kernel: all of 2880 columns over 8 warps are two stages of
/// MXFP4.
constexpr int32_t slice_stages(DType format) {
  return format == DType::kMXFP4 ? 2 : ring_shape(format).num_stages;
}

/// The most tokens of one launch whose activations leave room for four warps' rings: 8, 4 or 1.
/// `shared_bytes`: of a block; `num_units`: of a row of the weights; `ring_bytes`: a warp.
inline int32_t tokens_that_fit(uint64_t shared_bytes, int32_t num_units, uint64_t ring_bytes) {
  const uint64_t a_token = 256ull * static_cast<uint64_t>(num_units);
  for (const int32_t tokens : {8, 4}) {
    if (a_token * static_cast<uint64_t>(tokens) + 4 * ring_bytes + 8192 <= shared_bytes)
      return tokens;
  }
  return 1;
}

/// Tokens of one launch of a row in groups of up to `most`, where blocks are held to what any
/// device has (Launch::most_shared); `num_stages` of a ring.
inline int32_t few_tokens(const PackedMatrix& weight, int32_t num_stages, int32_t most,
                          const Launch& launch) {
  if (launch.most_shared == 0) return most;
  const int64_t ring_bytes =
      int64_t{num_stages} * ring_shape(weight.format).units_a_stage * weight.unit_bytes();
  return std::min(most, tokens_that_fit(launch.most_shared, weight.num_units(),
                                        static_cast<uint64_t>(ring_bytes)));
}

}  // namespace moxie::fragment
