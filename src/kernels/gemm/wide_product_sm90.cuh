// Products with many tokens on Hopper, in wide blocks (wide_block_sm90.cuh): of packed weights,
// which become wgmma's register operand (streamed_product_sm90.cuh), and columns staged in BF16.
//
// Per unit of 64 columns of K and SM: 1,024 clocks of wgmma; from L2 32 KiB of activations and 16
// KiB of BF16 weights; as many bytes are written to shared memory, and 80 KiB read from it.
#pragma once

#include "kernels/barriers_sm90.cuh"
#include "kernels/gemm/streamed_product_sm90.cuh"
#include "kernels/gemm/wide_block_sm90.cuh"
#include "kernels/tensor_map_sm90.h"

namespace moxie::gemm {

template <DType F>
struct WideShared {
  static constexpr int kUnits = 1, kUnitBytes = fragment::kUnitBytes<F>;
  static constexpr bool kHasLines = false;
  static constexpr int kStages = F == DType::kMXFP4 ? 4 : 3;
  alignas(1024) std::byte columns[kStages][kUnits][kStagedRowBytes * WideBlock::kColumns];
  alignas(128) std::byte weights[kStages][WideCut::kTiles][kUnitBytes];
  WideEnds ends;
  uint64_t full[kStages], empty[kStages];
  // Items that are copied or multiplied, since they are at most kStages units apart.
  static constexpr int kItems = 2 * kStages;
  int widths[kItems];
};

/// The work: Items as of streamed_product_kernel. End: as end_items().
template <DType F, typename Items, typename End>
struct WideProduct {
  static constexpr int kMathRegisters = 208, kEndRegisters = 88;
  static_assert(2 * kMathRegisters + kEndRegisters <= 3 * WideBlock::kLaunchRegisters);
  /// Words of 8 bytes of the units of a tile, tiles, experts; boxes are units of the block's tiles.
  CUtensorMap of_weights;
  Items items;
  PackedMatrix weight;
  StagedView staged;
  End end;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/// One thread copies both operands of all items. A copy for each tile would take too long to start.
template <typename Task, DType F>
__device__ __forceinline__ void copy_wide(const Task& task, WideShared<F>& shared, int num_units) {
  using S = WideShared<F>;
  const int num_items = task.items.count();
  const int64_t unit_stride = int64_t{kStagedRowBytes} * task.staged.capacity;
  uint32_t place = 0, number = 0;
  for (int i = static_cast<int>(blockIdx.x); i < num_items;
       i += static_cast<int>(gridDim.x), ++number) {
    const Item item = task.items.at(i);
    const uint32_t column_bytes = kStagedRowBytes * ((item.num_columns + 7) / 8 * 8);
    const std::byte* columns = task.staged.data + int64_t{kStagedRowBytes} * item.first_column;
    const int width = task.items.width(i);
#pragma unroll 1
    for (int u = 0; u < num_units; ++u, ++place) {
      const RingPlace<S> at(place);
      wait_barrier(&shared.empty[at.stage], at.phase ^ 1);  // empty from the start
      if (u == 0) shared.widths[number % S::kItems] = width;
      uint64_t* full = &shared.full[at.stage];
      expect_bytes(full, sizeof(shared.weights[0]) + column_bytes);
      copy_box(shared.weights[at.stage], &task.of_weights, u * (S::kUnitBytes / 8), item.first_tile,
               item.expert, full);
      copy_bulk(shared.columns[at.stage][0], columns, column_bytes, full);
      columns += unit_stride;
    }
  }
}

#endif

/// kWidths as of streamed_product_kernel.
template <DType F, typename Items, typename End, int... kWidths>
__global__ void __launch_bounds__(WideBlock::kThreads, 1)
    wide_product_kernel(const __grid_constant__ WideProduct<F, Items, End> task) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using W = WideBlock;
  using S = WideShared<F>;
  using Product = WideProduct<F, Items, End>;
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<S*>(shared_bytes);
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      init_barrier(&shared.full[i]);
      init_barrier(&shared.empty[i], W::kThreads - W::kFirstMath);
    }
    init_barrier(&shared.ends.full, W::kThreads - W::kFirstMath);
    init_barrier(&shared.ends.empty, 32 * W::kEndWarps);
  }
  __syncthreads();
  const int num_units = (task.weight.cols + 63) / 64, num_items = task.items.count();
  const int first = static_cast<int>(blockIdx.x), step = static_cast<int>(gridDim.x);
  if (threadIdx.x < W::kFirstMath) {
    give_registers<Product::kEndRegisters>();
    // The warps that multiply read weights, which never change, and what these copy.
    wait_for_previous();
    launch_next();
    if (threadIdx.x >= W::kFirstEnd) {
      end_items<SumsAs::kF16>(
          task.end, shared.ends, first, step, num_items, task.weight.rows,
          [&](int i) {
            const Item item = task.items.at(i);
            return WidePlace{item.expert, 16 * item.first_tile, item.first_column,
                             item.num_columns};
          },
          nullptr);
    } else if (is_elected()) {
      copy_wide(task, shared, num_units);
    }
    return;
  }
  take_registers<Product::kMathRegisters>();
  const int block_tile = static_cast<int>(threadIdx.x) / 32 - W::kFirstMath / 32;
  constexpr float kScale = kProductScale<F> * kHalfScale;
  uint32_t place = 0, number = 0;
  int i = first;
  for_each_width<kWidths...>([&]<int kWidth, int kBelow>() __attribute__((always_inline)) {
    for (; i < num_items; i += step, ++number, place += num_units) {
      // The item is known when its first unit is there.
      const RingPlace<S> at(place);
      wait_barrier(&shared.full[at.stage], at.phase);
      if (shared.widths[number % S::kItems] <= kBelow) break;
      Sums<WideCut, kWidth> sums;
      multiply_streamed<F, kWidth, S, WideCut>(shared, place, num_units, block_tile, 0, 0, sums);
      wait_barrier(&shared.ends.empty, number % 2 ^ 1);  // empty from the start
      leave_sums<SumsAs::kF16, kWidth>(shared.ends, block_tile, sums[0],
                                       [](int, float sum) { return sum * kScale; });
      arrive_barrier(&shared.ends.full);
    }
  });
#endif
}

/// Launches as many blocks as there are items, at most as many as there are SMs.
template <DType F, int... kWidths, typename Items, typename End>
void launch_wide(const char* row, const Items& items, const PackedMatrix& weight,
                 const StagedView& staged, const End& end, int64_t most_items,
                 cudaStream_t stream) {
  if (most_items == 0) return;
  constexpr int kUnit = fragment::kUnitBytes<F>;
  const int64_t tile_bytes = int64_t{weight.num_units()} * kUnit;
  const WideProduct<F, Items, End> task{
      .of_weights = tensor_map<3>(row, weight.data, CU_TENSOR_MAP_DATA_TYPE_UINT64,
                                  {tile_bytes / 8, ceil_div(weight.rows, 16), weight.num_experts},
                                  {tile_bytes, weight.expert_bytes()},
                                  {kUnit / 8, WideCut::kTiles, 1}, CU_TENSOR_MAP_SWIZZLE_NONE),
      .items = items,
      .weight = weight,
      .staged = staged,
      .end = end};
  const auto blocks = std::min<int64_t>(most_items, fragment::num_sms());
  launch_kernel(row, wide_product_kernel<F, Items, End, kWidths...>, task,
                {.grid = dim3(static_cast<unsigned>(blocks)),
                 .num_threads = WideBlock::kThreads,
                 .shared_bytes = sizeof(WideShared<F>),
                 .programmatic = true},
                stream);
}

}  // namespace moxie::gemm
