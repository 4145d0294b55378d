// out on Hopper for many tokens: the attention's output staged in BF16, then one product
// (gemm/product_sm90.cuh) added with its bias to the residual stream.
#include "kernels/gemm/dense_sm90.cuh"
#include "kernels/gemm/stage_cuda.h"
#include "kernels/out/out_rows.h"

namespace moxie {
// Not in a namespace without a name: other architectures leave these functions unused.
namespace gemm {

struct AddToResidual {
  const float* bias;
  float2* x;

  template <typename Cut, int kColumns>
  __device__ __forceinline__ void finish(const Item& item, int tile, int rows, float scale,
                                         const Sums<Cut, kColumns>& sums) const {
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4, hidden = rows;
#pragma unroll
    for (int m = 0; m < Cut::kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * (tile + 4 * m) + g + 8 * half;
        if (row >= hidden) continue;
        const float row_bias = bias[row];
        float2* at = x + int64_t{item.first_column + 2 * q} * hidden + row;
        // Loads of several columns before the first store, which might be to the same place for
        // all that the compiler knows.
        constexpr int kBatch = Cut::kWarpgroups > 2 ? 4 : 8;  // as registers allow
#pragma unroll
        for (int first = 0; first < kColumns / 4; first += kBatch) {
          float2 old[kBatch];
#pragma unroll
          for (int c = 0; c < kBatch; ++c) {
            const int column = (first + c) / 2 * 8 + (first + c) % 2;
            if (column + 2 * q < item.num_columns) old[c] = at[int64_t{column} * hidden];
          }
#pragma unroll
          for (int c = 0; c < kBatch; ++c) {
            const int i = (first + c) / 2, j = (first + c) % 2, column = 8 * i + j;
            const float sum = sums[m][4 * i + 2 * half + j] * scale + row_bias;
            if (column + 2 * q < item.num_columns)
              at[int64_t{column} * hidden] = split_residual(whole(old[c]) + sum);
          }
        }
      }
    }
  }
};

}  // namespace gemm

using namespace gemm;

const char* out_any_bf16_gemm_sm90_refuses(const OutParams& p) {
  if (p.fold.is_on) return "the route step is folded into out";
  return refuses_product(p.weight);
}

uint64_t out_any_bf16_gemm_sm90_workspace(const OutParams& p) {
  return dense_bytes(p.weight, p.num_tokens);
}

void out_any_bf16_gemm_sm90(const OutParams& p) {
  if (p.num_tokens == 0) return;
  const StagedView staged = dense_columns(p.weight, p.num_tokens, p.launch);
  stage_floats({.num_rows = p.num_tokens, .values = p.a, .to = staged}, p.launch.stream);
  const AddToResidual end{.bias = p.bias, .x = reinterpret_cast<float2*>(p.x)};
  multiply_dense("out_any_bf16_gemm_sm90", p.weight, staged, p.num_tokens, end, p.launch);
}

}  // namespace moxie
