// What the products of dense layers share on Hopper: items over all tokens, and the launch.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/gemm/product_sm90.cuh"
#include "kernels/gemm/stage_cuda.h"
#include "kernels/gemm/streamed_product_sm90.cuh"
#include "kernels/gemv/slice_gemv.cuh"

namespace moxie::gemm {

/// The work of one matrix times `num_columns` staged rows. Neighbouring items are the row blocks of
/// one tile of columns, so that items that run at the same time share activations, and the weights
/// stay in L2.
struct DenseItems {
  int32_t num_columns = 0, tile_columns = 0, row_blocks = 0, tiles_a_block = 0;
  /// Blocks of 64 rows: FewRowsCut; FewRowsWideCut if a tile has more columns than that takes; with
  /// kInOrder FewRowsOrderedCut.
  bool has_few_rows = false;

  /// kInOrder: a column's sums are the same, to the bit, for any number of columns.
  template <bool kInOrder>
  static DenseItems of(const PackedMatrix& weight, int32_t num_columns, int32_t num_sms) {
    // If blocks of 256 rows would leave many SMs without work.
    const bool few_rows = int64_t{weight.rows} * num_columns <= kFewRowsCells;
    // Chooses the cut that multiplies less padding.
    const auto cells = [&](int32_t rows, int32_t columns) {
      return int64_t{round_up(weight.rows, rows)} * round_up(num_columns, columns);
    };
    const bool is_many = cells(ManyColumnsCut::kRows, ManyColumnsCut::kMostColumns) <
                         cells(WideCut::kRows, WideCut::kMostColumns);
    const int32_t rows = few_rows  ? FewRowsCut::kRows
                         : is_many ? ManyColumnsCut::kRows
                                   : WideCut::kRows;
    const auto rounds = [&](int32_t columns) {
      return ceil_div(ceil_div(weight.rows, rows) * ceil_div(num_columns, columns), num_sms);
    };
    // Takes wider tiles if they need fewer rounds of all SMs.
    constexpr int32_t kFew = FewRowsCut::kMostColumns, kMany = FewRowsWideCut::kMostColumns;
    const int32_t most = !few_rows && is_many           ? ManyColumnsCut::kMostColumns
                         : !few_rows                    ? WideCut::kMostColumns
                         : kInOrder                     ? FewRowsOrderedCut::kMostColumns
                         : rounds(kMany) < rounds(kFew) ? kMany
                                                        : kFew;
    const int32_t tiles = std::max(1, ceil_div(num_columns, most));
    return {.num_columns = num_columns,
            .tile_columns = round_up(ceil_div(num_columns, tiles), 8),
            .row_blocks = ceil_div(weight.rows, rows),
            .tiles_a_block = rows / 16,
            .has_few_rows = few_rows};
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

/// Why a matrix cannot be multiplied here; null if it can. `most_columns`: that the staging takes.
inline const char* refuses_product(const PackedMatrix& weight,
                                   int32_t most_columns = kMaxStagedWidth) {
  if (weight.layout != PackedLayout::kFragment16x32) return "weights are not packed for CUDA";
  if (weight.format != DType::kMXFP4 && weight.format != DType::kMXFP8 &&
      weight.format != DType::kBF16) {
    return "weights are not MXFP4, MXFP8 or BF16";
  }
  if (weight.cols % 4 != 0) return "columns are not a multiple of 4";
  if (weight.cols > most_columns) return "more columns than are staged";
  return nullptr;
}

#ifdef __CUDACC__
/// A warp's sums of 16 rows and some columns, in shared memory: an end reads them from there column
/// by column, in the order in which it writes memory. An end that read registers would be a program
/// so long that its instructions would arrive too late.
struct SumsTile {
  static constexpr int kMostColumns = 64;
  static constexpr int kBytes = 16 * kMostColumns * sizeof(float);
  const float* sums;

  MOXIE_HOST_DEVICE static constexpr int place(int column_pair, int row) {
    return column_pair * 32 + 2 * (row ^ column_pair % 4 * 4);
  }
  __device__ __forceinline__ float at(int column, int row) const {
    return sums[place(column / 2, row) + column % 2];
  }
};

/// The task of a dense product, without its end. End's
///   template <Cut> void store(const SumsTile&, int tile, int rows, int first_column, int
///   num_columns)
/// uses the sums of tile `tile` of a matrix with `rows` rows.
template <typename End>
struct DenseProduct {
  template <typename Cut>
  static constexpr int kSharedBytes = SumsTile::kBytes * 4 * (Cut::kSplitsK ? 1 : Cut::kWarpgroups);
  DenseItems items;
  PackedMatrix weight;
  StagedView staged;
  float scale;
  End end;

  __device__ __forceinline__ bool item(int i, Item& item) const { return items.item(i, item); }
  template <typename Cut, int kColumns>
  __device__ __forceinline__ void finish(const Item& item, int tile,
                                         const Sums<Cut, kColumns>& sums, std::byte* shared) const {
    constexpr int kStep = kColumns < SumsTile::kMostColumns ? kColumns : SumsTile::kMostColumns;
    constexpr int kSteps = kColumns / kStep;
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    float* mine = reinterpret_cast<float*>(shared + (threadIdx.x / 32 - 4) * SumsTile::kBytes);
    // The outer loop holds the end's code once; the inner one makes register numbers constants.
#pragma unroll 1
    for (int part = 0; part < Cut::kRowTiles * kSteps; ++part) {
#pragma unroll
      for (int known = 0; known < Cut::kRowTiles * kSteps; ++known) {
        if (part != known) continue;
#pragma unroll
        for (int i = 0; i < kStep / 8; ++i) {
          const float* d = &sums[known / kSteps][known % kSteps * (kStep / 2) + 4 * i];
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            *reinterpret_cast<float2*>(mine + SumsTile::place(4 * i + q, g + 8 * half)) =
                make_float2(d[2 * half] * scale, d[2 * half + 1] * scale);
          }
        }
      }
      __syncwarp();
      const int this_tile = tile + part / kSteps * 4, first = part % kSteps * kStep;
      if (16 * this_tile < weight.rows && first < item.num_columns) {
        end.template store<Cut>(SumsTile{mine}, this_tile, weight.rows, item.first_column + first,
                                min(kStep, item.num_columns - first));
      }
      __syncwarp();
    }
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

/// Launches as many blocks as there are items, at most as many as fit on all SMs.
template <DType F, typename Cut, int... kWidths, typename Task>
void launch_product(const char* row, const Task& task, int64_t most_items, cudaStream_t stream) {
  if (most_items == 0) return;
  constexpr bool kIsStreamed = std::is_same_v<Cut, FewColumnsCut>;
  constexpr int kMost = std::max({kWidths...});
  constexpr uint64_t kShared =
      Task::template kSharedBytes<Cut> +
      (kIsStreamed ? sizeof(StreamedShared<F, kMost>) : sizeof(Shared<F, Cut>));
  static_assert(Cut::kBlocks * (kShared + 1024) <= 228 * 1024, "an SM has this much shared memory");
  const auto blocks =
      std::min(most_items, int64_t{Cut::kBlocks} * fragment::block_limits().num_units);
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(blocks)),
                          .num_threads = Cut::kThreads,
                          .shared_bytes = kShared,
                          .programmatic = true};
  if constexpr (kIsStreamed) {
    static_assert(sizeof...(kWidths) == 1, "a streamed kernel has one width");
    launch_kernel(row, streamed_product_kernel<F, kMost, Task>, task, shape, stream);
  } else {
    launch_kernel(row, product_kernel<F, Cut, Task, kWidths...>, task, shape, stream);
  }
}
/// Multiplies staged columns by `weight`; kInOrder: as DenseItems::of.
template <bool kInOrder, typename End>
void multiply_dense(const char* row, const PackedMatrix& weight, const StagedView& staged,
                    int32_t num_columns, const End& end, const Launch& at) {
  const auto items =
      DenseItems::of<kInOrder>(weight, num_columns, fragment::block_limits().num_units);
  dispatch_product(weight.format, [&]<DType F>() {
    const DenseProduct<End> product{
        .items = items, .weight = weight, .staged = staged, .scale = kProductScale<F>, .end = end};
    const auto launch = [&]<typename Cut, int kColumns>() {
      launch_product<F, Cut, kColumns>(row, product, items.num_items(), launch_stream(at.stream));
    };
    if (!items.has_few_rows && items.tiles_a_block == ManyColumnsCut::kRows / 16)
      return launch.template operator()<ManyColumnsCut, 256>();
    if (!items.has_few_rows) return launch.template operator()<WideCut, 128>();
    if constexpr (kInOrder) return launch.template operator()<FewRowsOrderedCut, 64>();
    if (items.tile_columns <= 32) return launch.template operator()<FewRowsCut, 32>();
    if (items.tile_columns <= 64) return launch.template operator()<FewRowsCut, 64>();
    launch.template operator()<FewRowsWideCut, 128>();
  });
}
/// Where a row that stages its own columns has them: at the beginning of its workspace.
inline StagedView dense_columns(const PackedMatrix& weight, int32_t num_columns, const Launch& at) {
  return {at.workspace, round_up(num_columns, kStagedRows), weight.cols};
}
#endif

}  // namespace moxie::gemm
