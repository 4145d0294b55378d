// The products of dense layers on Hopper: how they are cut, and the launch.
#pragma once

#include <algorithm>
#include <type_traits>
#include <utility>

#include "kernels/gemm/cluster_product_sm90.cuh"
#include "kernels/gemm/product_sm90.cuh"
#include "kernels/gemm/wide_product_sm90.cuh"

namespace moxie::gemm {

/// How the matrix is cut: as WideCut, whose rows ManyRowsCut has too, or few rows. Those are
/// FewRowsCut; FewRowsWideCut if a tile has more columns than that takes; with kInOrder
/// FewRowsOrderedCut. kInOrder: a column's sums are the same, to the bit, for any number of
/// columns.
template <bool kInOrder>
DenseItems dense_items(const PackedMatrix& weight, int32_t num_columns, int32_t num_sms) {
  constexpr int64_t kFewRowsCells = int64_t{5120} * 256;
  // If blocks of more rows would leave many SMs without work.
  const bool few_rows = int64_t{weight.rows} * num_columns <= kFewRowsCells;
  const int32_t rows = few_rows ? FewRowsCut::kRows : WideCut::kRows;
  const auto rounds = [&](int32_t columns) {
    return ceil_div(ceil_div(weight.rows, rows) * ceil_div(num_columns, columns), num_sms);
  };
  // Takes wider tiles if they need fewer rounds of all SMs.
  constexpr int32_t kFew = FewRowsCut::kMostColumns, kMany = FewRowsWideCut::kMostColumns;
  const int32_t most = !few_rows                      ? WideCut::kMostColumns
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

/// The cut of cluster_product_kernel that takes least; null if blocks that take one item after
/// another (dense_items) take less, or were not compared with it.
inline const ClusterCutSizes* choose_cluster_cut(const PackedMatrix& weight, int32_t num_columns,
                                                 int32_t num_sms) {
  if (num_columns < kLeastClusterColumns || num_columns > kMostClusterColumns) return nullptr;
  const DenseItems items = dense_items<false>(weight, num_columns, num_sms);
  const int32_t rows = 16 * items.tiles_a_block;
  const auto rounds = static_cast<double>(ceil_div<int64_t>(items.num_items(), num_sms));
  // Widths are 64 and 128, or what the cut has.
  const int32_t width = items.tile_columns <= 64 ? 64 : items.tile_columns <= 128 ? 128 : 256;
  double least =
      1.2 + rounds * (4.3 + weight.num_units() * unit_us(rows, items.tile_columns, width));
  const ClusterCutSizes* chosen = nullptr;
  for (const ClusterCutSizes& cut : kClusterCuts) {
    const double us = cluster_us(cut, weight, num_columns, num_sms);
    if (us < least) least = us, chosen = &cut;
  }
  return chosen;
}

#ifdef __CUDACC__
/// The end in wide blocks of what ends a dense product; specialised for ends that have one, which
/// is made of `end` and the matrix's rows.
template <typename End>
struct WideEnd {
  using Type = void;
};

/// Launches as many blocks as there are items, at most as many as fit on all SMs.
template <DType F, typename Cut, int... kWidths, typename Task>
void launch_product(const char* row, const Task& task, int64_t most_items, cudaStream_t stream) {
  if (most_items == 0) return;
  constexpr uint64_t kShared = Task::template kSharedBytes<Cut> + [] {
    if constexpr (kIsStreamed<Cut>) {
      return sizeof(StreamedShared<F, Cut>);
    } else {
      return sizeof(Shared<F, Cut>);
    }
  }();
  static_assert(Cut::kBlocks * (kShared + 1024) <= 228 * 1024, "an SM has this much shared memory");
  const auto blocks = std::min(most_items, int64_t{Cut::kBlocks} * fragment::num_sms());
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(blocks)),
                          .num_threads = Cut::kThreads,
                          .shared_bytes = kShared,
                          .programmatic = true};
  if constexpr (kIsStreamed<Cut>) {
    CHECK(reinterpret_cast<uintptr_t>(task.weight.data) % 128 == 0,
          "weights are copied from lines of 128 bytes");
    launch_kernel(row, streamed_product_kernel<F, Cut, Task, kWidths...>, task, shape, stream);
  } else {
    launch_kernel(row, product_kernel<F, Cut, Task, kWidths...>, task, shape, stream);
  }
}
template <DType F, typename Cut, typename End>
void launch_clusters(const char* row, const PackedMatrix& weight, const StagedView& staged,
                     int32_t num_columns, const End& end, cudaStream_t stream) {
  const int32_t tiles = ceil_div(num_columns, Cut::kMostColumns);
  const ClusterProduct<End> task{
      .num_columns = num_columns,
      .tile_columns = round_up(ceil_div(num_columns, tiles), kStagedRows),
      .row_blocks = ceil_div(weight.rows, Cut::kRows),
      .weight = weight,
      .staged = staged,
      .scale = kProductScale<F>,
      .end = end};
  launch_kernel(row, cluster_product_kernel<F, Cut, End>, task,
                {.grid = dim3(static_cast<unsigned>(tiles * task.row_blocks * Cut::kParts)),
                 .num_threads = Cut::kThreads,
                 .shared_bytes = sizeof(ClusterShared<F, Cut>),
                 .cluster = Cut::kParts,
                 .programmatic = true},
                stream);
}
/// Multiplies staged columns by `weight` in clusters, if choose_cluster_cut() finds a cut.
template <typename End>
bool multiply_in_clusters(const char* row, const PackedMatrix& weight, const StagedView& staged,
                          int32_t num_columns, const End& end, const Launch& at) {
  const auto* cut = choose_cluster_cut(weight, num_columns, fragment::num_sms());
  if (cut == nullptr) return false;
  dispatch_product(weight.format, [&]<DType F>() {
    const auto try_cut = [&]<size_t kCut>() {
      constexpr ClusterCutSizes kSizes = kClusterCuts[kCut];
      if (cut != &kClusterCuts[kCut]) return;
      launch_clusters<F, ClusterCut<kSizes.warpgroups, kSizes.columns, kSizes.parts>>(
          row, weight, staged, num_columns, end, launch_stream(at.stream));
    };
    [&]<size_t... kCuts>(std::index_sequence<kCuts...>) {
      (try_cut.template operator()<kCuts>(), ...);
    }
    (std::make_index_sequence<kClusterCuts.size()>());
  });
  return true;
}
/// Multiplies staged columns by `weight`; kInOrder: as dense_items.
template <bool kInOrder, typename End>
void multiply_dense(const char* row, const PackedMatrix& weight, const StagedView& staged,
                    int32_t num_columns, const End& end, const Launch& at) {
  const auto items = dense_items<kInOrder>(weight, num_columns, fragment::num_sms());
  dispatch_product(weight.format, [&]<DType F>() {
    using Wide = WideEnd<End>::Type;
    if constexpr (!std::is_void_v<Wide>) {
      if (!items.has_few_rows) {
        const auto launch = [&]<int kWidth>() {
          launch_wide<F, kWidth>(row, items, weight, staged, Wide{end, weight.rows},
                                 items.num_items(), launch_stream(at.stream));
        };
        return items.tile_columns <= 192 ? launch.template operator()<192>()
                                         : launch.template operator()<256>();
      }
    }
    constexpr bool kRounds = kInOrder && !std::is_void_v<Wide>;
    const DenseProduct<End, kRounds> product{
        .items = items, .weight = weight, .staged = staged, .scale = kProductScale<F>, .end = end};
    const auto launch = [&]<typename Cut, int kColumns>() {
      launch_product<F, Cut, kColumns>(row, product, items.num_items(), launch_stream(at.stream));
    };
    if constexpr (std::is_void_v<Wide>) {
      if (!items.has_few_rows) {
        if (items.tile_columns <= 64) return launch.template operator()<ManyRowsCut<64>, 64>();
        if (items.tile_columns <= 128) return launch.template operator()<ManyRowsCut<128>, 128>();
        return launch.template operator()<WideCut, WideCut::kMostColumns>();
      }
    }
    if constexpr (kInOrder) return launch.template operator()<FewRowsOrderedCut, 64>();
    if (items.tile_columns <= 32) return launch.template operator()<FewRowsCut, 32>();
    if (items.tile_columns <= 64) return launch.template operator()<FewRowsCut, 64>();
    launch.template operator()<FewRowsWideCut, 128>();
  });
}
#endif

}  // namespace moxie::gemm
