// unembed on Hopper for many rows of logits: the final norm of the requested tokens, staged in
// BF16, then one product (gemm/product_sm90.cuh).
#include "kernels/gemm/dense_sm90.cuh"
#include "kernels/gemm/stage_cuda.h"
#include "kernels/unembed/unembed_rows.h"

namespace moxie {
// Not in an unnamed namespace: other architectures leave these functions unused.
namespace gemm {

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

}  // namespace gemm

using namespace gemm;

const char* unembed_any_bf16_gemm_sm90_refuses(const UnembedParams& p) {
  return refuses_product(p.weight);
}

uint64_t unembed_any_bf16_gemm_sm90_workspace(const UnembedParams& p) {
  return staged_bytes(p.num_rows, p.weight.cols);
}

namespace {

template <bool kInOrder>
void run_unembed(const char* row, const UnembedParams& p) {
  if (p.num_rows == 0) return;
  const StagedView staged = dense_columns(p.weight, p.num_rows, p.launch);
  stage_normed({.num_rows = p.num_rows,
                .rms_eps = p.rms_eps,
                .x = p.x,
                .x_is_single = p.forms.x == XForm::kF32,
                .row_idx = p.row_idx,
                .norm_weight = p.norm_weight,
                .to = staged},
               p.launch.stream);
  multiply_dense<kInOrder>(row, p.weight, staged, p.num_rows, StoreLogits{.logits = p.logits},
                           p.launch);
}

}  // namespace

void unembed_any_bf16_gemm_sm90(const UnembedParams& p) {
  run_unembed<false>("unembed_any_bf16_gemm_sm90", p);
}

void unembed_any_bf16_ordered_sm90(const UnembedParams& p) {
  run_unembed<true>("unembed_any_bf16_ordered_sm90", p);
}

}  // namespace moxie
