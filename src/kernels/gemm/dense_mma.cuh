// The products of dense layers on any GPU: how they are cut, and the launch.
#pragma once

#include "kernels/gemm/dense.cuh"
#include "kernels/gemm/product_mma.cuh"

namespace moxie::gemm {

/// A few columns.
using MmaFewCut = MmaCut<2, 1, 32>;

/// Why a matrix cannot be multiplied here; null if it can. `most_columns`: as of refuses_product.
inline const char* refuses_product_mma(const PackedMatrix& weight,
                                       int32_t most_columns = kMaxStagedWidth) {
  if (weight.format == DType::kMXFP8) return "weights are not MXFP4 or BF16";
  return refuses_product(weight, most_columns);
}

/// How the matrix is cut by Cut.
template <typename Cut>
DenseItems dense_items_mma(const PackedMatrix& weight, int32_t num_columns) {
  const int32_t tiles = std::max(1, ceil_div(num_columns, Cut::kMostColumns));
  return {.num_columns = num_columns,
          .tile_columns = round_up(ceil_div(num_columns, tiles), kStagedRows),
          .row_blocks = ceil_div(weight.rows, Cut::kRows),
          .tiles_a_block = Cut::kRows / 16};
}

#ifdef __CUDACC__
/// Multiplies staged columns by `weight`. A column's sums are the same, to the bit, for any number
/// of columns.
template <typename End>
void multiply_dense_mma(const char* row, const PackedMatrix& weight, const StagedView& staged,
                        int32_t num_columns, const End& end, const Launch& at) {
  const auto launch = [&]<DType F, typename Cut>() {
    const DenseProduct<End> product{.items = dense_items_mma<Cut>(weight, num_columns),
                                    .weight = weight,
                                    .staged = staged,
                                    .scale = kProductScale<F>,
                                    .end = end};
    launch_product_mma<F, Cut>(row, product, product.items.num_items(), launch_stream(at.stream));
  };
  const auto launch_cut = [&]<DType F>() {
    // Wide blocks once they give each SM one.
    const int64_t wide = dense_items_mma<MmaWideCut<>>(weight, num_columns).num_items();
    if (wide >= fragment::num_sms()) return launch.template operator()<F, MmaWideCut<>>();
    launch.template operator()<F, MmaFewCut>();
  };
  if (weight.format == DType::kMXFP4) return launch_cut.template operator()<DType::kMXFP4>();
  CHECK(weight.format == DType::kBF16, "not a format of products");
  launch_cut.template operator()<DType::kBF16>();
}
#endif

}  // namespace moxie::gemm
