// What the products of dense layers share on Hopper: items over all tokens, and the launch.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/gemm/product_sm90.cuh"
#include "kernels/gemm/stage_cuda.h"
#include "kernels/gemm/staged_product_sm90.cuh"
#include "kernels/gemm/streamed_product_sm90.cuh"
#include "kernels/gemv/slice_gemv.cuh"

namespace moxie::gemm {

/// The work of one matrix times `num_columns` staged rows. Blocks of rows follow one another, so
/// that what runs at a time shares its activations, and the weights stay in L2.
struct DenseItems {
  int32_t num_columns = 0, tile_columns = 0, row_blocks = 0, tiles_a_block = 0;
  bool has_few_rows = false;  ///< FewRowsCut

  static DenseItems of(const PackedMatrix& weight, int32_t num_columns) {
    // While blocks of 256 rows would leave many SMs without work.
    const bool has_few_rows = int64_t{weight.rows} * num_columns <= kFewRowsCells;
    const int32_t most = has_few_rows ? FewRowsCut::kMostColumns : WideCut::kMostColumns;
    const int32_t rows = has_few_rows ? FewRowsCut::kRows : WideCut::kRows;
    const int32_t tiles = std::max(1, ceil_div(num_columns, most));
    return {.num_columns = num_columns,
            .tile_columns = round_up(ceil_div(num_columns, tiles), 8),
            .row_blocks = ceil_div(weight.rows, rows),
            .tiles_a_block = rows / 16,
            .has_few_rows = has_few_rows};
  }
  int64_t num_items() const { return int64_t{row_blocks} * ceil_div(num_columns, tile_columns); }
  static constexpr int64_t kFewRowsCells = int64_t{5120} * 256;

#ifdef __CUDACC__
  __device__ __forceinline__ bool item(int i, Item& item) const {
    const int tile = i / row_blocks, first = tile * tile_columns;
    if (first >= num_columns) return false;
    item = {.expert = 0,
            .first_tile = (i - tile * row_blocks) * tiles_a_block,
            .first_column = first,
            .num_columns = min(tile_columns, num_columns - first)};
    return true;
  }
#endif
};

/// Columns from which weights are staged too (staged_product_sm90.cuh).
inline constexpr int32_t kLeastStagedColumns = 1024;
/// Scratch of a dense product: the staged columns, and where there are many, the staged weights.
inline uint64_t dense_bytes(const PackedMatrix& weight, int32_t num_columns) {
  uint64_t bytes = staged_bytes(num_columns, weight.cols);
  if (num_columns >= kLeastStagedColumns)
    bytes += staged_bytes(round_up(weight.rows, kStagedRowsAlign), weight.cols);
  return bytes;
}

/// Why a matrix cannot be multiplied here; null if it can.
inline const char* refuses_product(const PackedMatrix& weight) {
  if (weight.layout != PackedLayout::kFragment16x32) return "weights are not packed for CUDA";
  if (weight.format != DType::kMXFP4 && weight.format != DType::kMXFP8 &&
      weight.format != DType::kBF16) {
    return "weights are not MXFP4, MXFP8 or BF16";
  }
  if (weight.cols % 4 != 0) return "columns are not a multiple of 4";
  if (weight.cols > kMaxStagedWidth) return "more than 12288 columns";
  return nullptr;
}

#ifdef __CUDACC__
/// The task of a dense product, but for its end: what End's
///   template <Cut, int kColumns> void finish(const Item&, int tile, int rows, float scale, sums)
/// does with the sums of this warp's tiles (times `scale`) of a matrix of so many rows.
template <typename End>
struct DenseProduct {
  template <typename Cut>
  static constexpr int kSharedBytes = 0;
  DenseItems items;
  PackedMatrix weight;
  StagedView staged;
  float scale;
  End end;

  __device__ __forceinline__ bool item(int i, Item& item) const { return items.item(i, item); }
  template <typename Cut, int kColumns>
  __device__ __forceinline__ void finish(const Item& item, int tile,
                                         const Sums<Cut, kColumns>& sums, std::byte*) const {
    end.template finish<Cut, kColumns>(item, tile, weight.rows, scale, sums);
  }
  __device__ __forceinline__ void drain() const {}
};

/// Calls launch<F>() for a format that refuses_product lets through.
template <typename Launch>
void dispatch_product(DType format, Launch&& launch) {
  if (format == DType::kMXFP4) return launch.template operator()<DType::kMXFP4>();
  if (format == DType::kMXFP8) return launch.template operator()<DType::kMXFP8>();
  CHECK(format == DType::kBF16, "not a format of products");
  launch.template operator()<DType::kBF16>();
}

/// How a grouped product is cut: by blocks, and its two widths.
template <typename BlockCut, int kFew_, int kMany_>
struct Grouping {
  using Cut = BlockCut;
  static constexpr int kFew = kFew_, kMany = kMany_;
};

/// The greatest width of the least grouping for tiles of about `mean` columns, some of them half as
/// many again; and launch<Grouping>() of that width.
inline int32_t grouping_slots(double mean) {
  const double most = 1.4 * mean + 4;
  return most <= 32 ? 32 : most <= 64 ? 64 : most <= 96 ? 96 : 128;
}
template <typename Launch>
void dispatch_grouping(int32_t slots, Launch&& launch) {
  if (slots == 32) return launch.template operator()<Grouping<FewColumnsCut, 16, 32>>();
  if (slots == 64) return launch.template operator()<Grouping<FewColumnsCut, 32, 64>>();
  if (slots == 96) return launch.template operator()<Grouping<WideCut, 64, 96>>();
  launch.template operator()<Grouping<WideCut, 96, 128>>();
}

/// Launches on as many SMs as there are items, `most_items` at most.
template <DType F, typename Cut, int kFew, int kMany, typename Task>
void launch_product(const char* row, const Task& task, int64_t most_items, cudaStream_t stream) {
  if (most_items == 0) return;
  constexpr bool kIsStreamed = std::is_same_v<Cut, FewColumnsCut>;
  constexpr uint64_t kShared =
      Task::template kSharedBytes<Cut> +
      (kIsStreamed ? sizeof(StreamedShared<F, kMany>) : sizeof(Shared<F, Cut>));
  static_assert(kShared <= 227 * 1024, "a block has this much shared memory");
  const auto blocks = std::min<int64_t>(most_items, fragment::block_limits().num_units);
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(blocks)),
                          .num_threads = Cut::kThreads,
                          .shared_bytes = kShared,
                          .programmatic = true};
  if constexpr (kIsStreamed) {
    launch_kernel(row, streamed_product_kernel<F, kFew, kMany, Task>, task, shape, stream);
  } else {
    launch_kernel(row, product_kernel<F, Cut, kFew, kMany, Task>, task, shape, stream);
  }
}
/// The same for a dense product; `workspace` of dense_bytes.
template <DType F, typename Task>
void launch_dense(const char* row, const Task& task, std::byte* workspace, cudaStream_t stream) {
  const DenseItems& items = task.items;
  if (items.num_columns >= kLeastStagedColumns) {
    const StagedProduct<Task> product{
        .task = task,
        .weights = {workspace + staged_bytes(items.num_columns, task.weight.cols),
                    round_up(task.weight.rows, kStagedRowsAlign), task.weight.cols},
        .num_columns = items.num_columns,
        .num_units = task.weight.num_units(),
        .num_row_pairs = ceil_div(task.weight.rows, kStagedRowsAlign)};
    const StageWeights stage{.weight = task.weight,
                             .to = product.weights,
                             .num_tiles = task.weight.num_tiles(),
                             .num_units = task.weight.num_units()};
    launch_kernel(
        row, stage_weights<F>, stage,
        {.grid = dim3(static_cast<unsigned>(ceil_div(stage.num_tiles * stage.num_units, 8))),
         .num_threads = 256,
         .programmatic = true},
        stream);
    const int32_t clusters =
        std::min(fragment::block_limits().num_units / 2,
                 product.num_row_pairs * ceil_div(items.num_columns, StagedCut::kMostColumns));
    launch_kernel(row, staged_product_kernel<Task>, product,
                  {.grid = dim3(static_cast<unsigned>(2 * clusters)),
                   .num_threads = StagedCut::kThreads,
                   .shared_bytes = sizeof(StagedShared),
                   .cluster = 2,
                   .programmatic = true},
                  stream);
    return;
  }
  const auto launch = [&]<typename Cut, int kColumns>() {
    launch_product<F, Cut, kColumns, kColumns>(row, task, items.num_items(), stream);
  };
  const int columns = items.tile_columns;
  if (!items.has_few_rows) return launch.template operator()<WideCut, 128>();
  if (columns <= 32) return launch.template operator()<FewRowsCut, 32>();
  launch.template operator()<FewRowsCut, 64>();
}
/// Multiplies the columns staged at the workspace's begin by `weight`.
template <typename End>
void multiply_dense(const char* row, const PackedMatrix& weight, const StagedView& staged,
                    int32_t num_columns, const End& end, const Launch& to) {
  dispatch_product(weight.format, [&]<DType F>() {
    const DenseProduct<End> product{.items = DenseItems::of(weight, num_columns),
                                    .weight = weight,
                                    .staged = staged,
                                    .scale = kProductScale<F>,
                                    .end = end};
    launch_dense<F>(row, product, to.workspace, launch_stream(to.stream));
  });
}
/// Where they are staged.
inline StagedView dense_columns(const PackedMatrix& weight, int32_t num_columns, const Launch& at) {
  return {at.workspace, round_up(num_columns, kStagedRows), weight.cols};
}
#endif

}  // namespace moxie::gemm
