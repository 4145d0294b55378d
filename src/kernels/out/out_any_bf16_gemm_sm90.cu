// out on Hopper for many tokens: the attention's output staged in BF16, then one product
// (gemm/product_sm90.cuh) added with its bias to the residual stream.
#include "kernels/gemm/dense_sm90.cuh"
#include "kernels/gemm/stage_cuda.h"
#include "kernels/out/out_rows.h"

namespace moxie {
// Not in a namespace without a name: other architectures leave these functions unused.
namespace gemm {

struct OutProduct {
  template <typename Cut>
  static constexpr int kSharedBytes = 0;
  DenseItems items;
  PackedMatrix weight;
  StagedView staged;
  const float* bias;
  float2* x;
  float product_scale;

  __device__ __forceinline__ bool item(int i, Item& item) const { return items.item(i, item); }

  template <typename Cut, int kColumns>
  __device__ __forceinline__ void finish(const Item& item, int tile,
                                         const Sums<Cut, kColumns>& sums, std::byte*) const {
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4, hidden = weight.rows;
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
            const float sum = sums[m][4 * i + 2 * half + j] * product_scale + row_bias;
            if (column + 2 * q < item.num_columns)
              at[int64_t{column} * hidden] = split_residual(whole(old[c]) + sum);
          }
        }
      }
    }
  }
  __device__ __forceinline__ void drain() const {}
};

}  // namespace gemm

using namespace gemm;

const char* out_any_bf16_gemm_sm90_refuses(const OutParams& p) {
  if (p.fold.is_on) return "the route step is folded into out";
  if (p.weight.cols % 4 != 0) return "input size is not a multiple of 4";
  return refuses_product(p.weight);
}

uint64_t out_any_bf16_gemm_sm90_workspace(const OutParams& p) {
  return dense_bytes(p.weight, p.num_tokens);
}

void out_any_bf16_gemm_sm90(const OutParams& p) {
  if (p.num_tokens == 0) return;
  const StagedView staged{p.launch.workspace, round_up(p.num_tokens, kStagedRows), p.weight.cols};
  stage_floats({.num_rows = p.num_tokens, .values = p.a, .to = staged}, p.launch.stream);
  dispatch_product(p.weight.format, [&]<DType F>() {
    const OutProduct product{.items = DenseItems::of(p.weight, p.num_tokens),
                             .weight = p.weight,
                             .staged = staged,
                             .bias = p.bias,
                             .x = reinterpret_cast<float2*>(p.x),
                             .product_scale = kProductScale<F>};
    launch_dense<F>("out_any_bf16_gemm_sm90", product, p.launch.workspace,
                    launch_stream(p.launch.stream));
  });
}

}  // namespace moxie
