// unembed on Hopper for many rows of logits: the final norm of the tokens asked for, staged in
// BF16, then one product (gemm/product_sm90.cuh).
#include "kernels/gemm/dense_sm90.cuh"
#include "kernels/gemm/stage_cuda.h"
#include "kernels/unembed/unembed_rows.h"

namespace moxie {
// Not in a namespace without a name: other architectures leave these functions unused.
namespace gemm {

struct StoreLogits {
  float* logits;

  template <typename Cut, int kColumns>
  __device__ __forceinline__ void finish(const Item& item, int tile, int rows, float scale,
                                         const Sums<Cut, kColumns>& sums) const {
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4, vocab = rows;
#pragma unroll
    for (int m = 0; m < Cut::kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * (tile + 4 * m) + g + 8 * half;
        if (row >= vocab) continue;
        float* at = logits + int64_t{item.first_column + 2 * q} * vocab + row;
#pragma unroll
        for (int i = 0; i < kColumns / 8; ++i) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            if (8 * i + 2 * q + j < item.num_columns)
              at[int64_t{8 * i + j} * vocab] = sums[m][4 * i + 2 * half + j] * scale;
          }
        }
      }
    }
  }
};

}  // namespace gemm

using namespace gemm;

const char* unembed_any_bf16_gemm_sm90_refuses(const UnembedParams& p) {
  return refuses_product(p.weight);
}

uint64_t unembed_any_bf16_gemm_sm90_workspace(const UnembedParams& p) {
  return dense_bytes(p.weight, p.num_rows);
}

void unembed_any_bf16_gemm_sm90(const UnembedParams& p) {
  if (p.num_rows == 0) return;
  const StagedView staged = dense_columns(p.weight, p.num_rows, p.launch);
  stage_normed({.num_rows = p.num_rows,
                .rms_eps = p.rms_eps,
                .x = p.x,
                .row_idx = p.row_idx,
                .norm_weight = p.norm_weight,
                .to = staged},
               p.launch.stream);
  multiply_dense("unembed_any_bf16_gemm_sm90", p.weight, staged, p.num_rows,
                 StoreLogits{.logits = p.logits}, p.launch);
}

}  // namespace moxie
