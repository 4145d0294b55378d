// The end of unembed's products over many rows.
#pragma once

#include "kernels/gemm/dense.cuh"
#include "kernels/unembed/unembed.h"

namespace moxie::gemm {

struct StoreLogits {
  float* logits;

  template <typename Cut>
  __device__ __forceinline__ void store(const SumsTile& sums, int tile, int rows, int first_column,
                                        int num_columns) const {
    const int lane = threadIdx.x % 32, row = 16 * tile + lane % 16;
    if (row >= rows) return;
#pragma unroll 8
    for (int column = lane / 16; column < num_columns; column += 2)
      logits[int64_t{first_column + column} * rows + row] = sums.at(column, lane % 16);
  }
};

/// Stages the normed rows in the workspace.
inline StagedView stage_unembed(const UnembedParams& p) {
  const StagedView staged = dense_columns(p.weight, p.num_rows, p.launch);
  stage_normed({.num_rows = p.num_rows,
                .rms_eps = p.rms_eps,
                .x = p.x,
                .x_is_single = p.forms.x == XForm::kF32,
                .row_idx = p.row_idx,
                .norm_weight = p.norm_weight,
                .to = staged},
               p.launch.stream);
  return staged;
}

}  // namespace moxie::gemm
