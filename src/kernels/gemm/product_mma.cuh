// Products of packed weights with many tokens on any GPU since sm_80: mma.m16n8k16 in BF16, copies
// by cp.async, at most 99 KiB of shared memory. Operands and staged activations are those of
// product_sm90.cuh (operand.cuh, staged.cuh).
//
// A block takes one work item: its rows times up to 128 staged rows. Each warp multiplies its own
// tiles of 16 rows by all columns. The ring holds, for each unit of 64 columns of K, the block's
// weights and activations; copies of later units run while one is multiplied. A column's sums are
// added in the order of K, by one warp, whatever the cut: the same bits in any batch.
//
// Per unit, SM and 256 rows x 128 columns: 1,024 mma of 2,048 multiply-adds, 2,048 clocks at the
// A100's rate; 256 ldmatrix.x4 (128 KiB, 1,024 clocks of shared memory); some 300 issue slots of
// each scheduler for operands; 24.5 KiB from L2.
#pragma once

#include <algorithm>

#include "core/cuda_launch.cuh"
#include "kernels/gemm/operand.cuh"
#include "kernels/gemm/staged.cuh"

namespace moxie::gemm {

/// How a block is cut: warps in groups of four, kRowTiles tiles of 16 rows of each warp.
template <int kWarpgroups_, int kRowTiles_, int kMostColumns_,
          int kBlocks_ = (kRowTiles_ * kMostColumns_ * kWarpgroups_ > 256 ? 1 : 2)>
struct MmaCut {
  static constexpr int kWarpgroups = kWarpgroups_, kRowTiles = kRowTiles_;
  static constexpr int kMostColumns = kMostColumns_;
  static constexpr int kRows = 64 * kRowTiles * kWarpgroups, kThreads = 128 * kWarpgroups;
  static constexpr int kFirstWarp = 0;
  static constexpr bool kSplitsK = false;
  static constexpr DType kActivation = DType::kBF16;
  static constexpr int kRowBytes = kStagedRowBytes;
  static constexpr int kBlocks = kBlocks_;  ///< on an SM at a time, as registers allow
};

/// Many columns: a load of activations serves two tiles of a warp, and two blocks share an SM, so
/// that one multiplies while the other makes operands or ends.
using MmaWideCut = MmaCut<1, 2, 128, 2>;

/// The most shared memory of a block that all devices have, and of the blocks of an SM.
inline constexpr uint64_t kPortableSharedBytes = 99 * 1024;

template <DType F, typename Cut>
struct MmaShared {
  static constexpr int kTileBytes = fragment::kUnitBytes<F>;
  static constexpr int kColumnBytes = Cut::kRowBytes * Cut::kMostColumns;
  static constexpr int kWeightBytes = Cut::kRows / 16 * kTileBytes;
  static constexpr int kStageBytes = round_up(kColumnBytes + kWeightBytes, 1024);
  static constexpr int kStages =
      std::clamp(static_cast<int>(kPortableSharedBytes) / Cut::kBlocks / kStageBytes, 2, 8);
  static constexpr uint64_t kBytes = uint64_t{kStages} * kStageBytes;
  static_assert(kBytes <= kPortableSharedBytes);
};

#ifdef __CUDACC__

/// Four 8 x 8 matrices of 16-bit elements; lane 8 i + r gives the address of row r of matrix i.
__device__ __forceinline__ void load_matrices(uint32_t at, uint32_t (&words)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(at));
}

/// The copies of one item's units into the ring.
template <DType F, typename Cut>
struct MmaCopies {
  using S = MmaShared<F, Cut>;
  uint32_t base;
  const std::byte* columns;  // this thread's first 16 bytes of the next unit
  int64_t columns_step;
  int num_column_bytes;
  const std::byte* weights;  // of this warp's first tile, this lane's first 16 bytes
  int32_t other_tile;        // from there to the warp's second tile
  int tile_in_block;         // this warp's first
  int num_units, next_unit = 0, stage = 0;

  __device__ __forceinline__ void fill() {
    if (next_unit < num_units) {
      const uint32_t to = base + stage * S::kStageBytes;
      for (int at = 16 * threadIdx.x; at < num_column_bytes; at += 16 * Cut::kThreads)
        copy_async_16(to + at, columns + at - 16 * threadIdx.x);
      columns += columns_step;
      const uint32_t tiles = to + S::kColumnBytes + 16 * (threadIdx.x % 32);
#pragma unroll
      for (int m = 0; m < Cut::kRowTiles; ++m)
        copy_unit<F>(tiles + (tile_in_block + 4 * m) * S::kTileBytes, weights + m * other_tile);
      weights += S::kTileBytes;
    }
    commit_copies();
    ++next_unit;
    if (++stage == S::kStages) stage = 0;
  }
};

/// sums += this warp's tiles of a unit times its columns, in groups of kGroup up to num_columns.
/// Activations are loaded one step of eight columns ahead of the products that use them.
template <DType F, typename Cut>
__device__ __forceinline__ void multiply_unit(const std::byte* stage, int tile_in_block,
                                              int num_columns, Sums<Cut, Cut::kMostColumns>& sums) {
  using S = MmaShared<F, Cut>;
  constexpr int kTiles = Cut::kRowTiles, kSteps = Cut::kMostColumns / 8;
  constexpr int kGroup = 32, kStepsOfGroup = kGroup / 8;
  // Matrix i of a load is chunk i of a block of 32 columns of K: the operands of two products.
  const uint32_t lane = threadIdx.x % 32, row = lane % 8;
  const uint32_t first = shared_address(stage) + row * Cut::kRowBytes;
  fragment::Unit<F> units[kTiles];
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
    units[m] = read_operand<F>(stage + S::kColumnBytes + (tile_in_block + 4 * m) * S::kTileBytes);
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    const uint32_t at = first + staged_pair_offset(row, 16 * block + lane / 8);
    uint32_t b[2][4];
    load_matrices(at, b[0]);
    uint32_t a[kTiles][8];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) make_operand<F>(units[m], block, a[m]);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (i > 0 && i % kStepsOfGroup == 0 && 8 * i >= num_columns) break;
      if (i + 1 < kSteps) load_matrices(at + 8 * (i + 1) * Cut::kRowBytes, b[(i + 1) % 2]);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          const uint32_t* of = &a[m][4 * k];
          mma_m16n8k16(reinterpret_cast<float(&)[4]>(sums[m][4 * i]), of[0], of[1], of[2], of[3],
                       b[i % 2][2 * k], b[i % 2][2 * k + 1]);
        }
      }
    }
  }
}

/// The kernel: block i takes item i. Task: as of product_kernel, with
///   template <Cut, int kColumns> void finish(const Item&, int tile, sums, void* shared)
/// which all warps call at once, and whose kSharedBytes<Cut> lie where the ring was.
template <DType F, typename Cut, typename Task>
__global__ void __launch_bounds__(Cut::kThreads, Cut::kBlocks)
    product_mma_kernel(const __grid_constant__ Task task) {
  using S = MmaShared<F, Cut>;
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  wait_for_previous();
  launch_next();
  Item item;
  if (!task.item(blockIdx.x, item)) return;
  const int warp = threadIdx.x / 32;
  const int tile_in_block = 4 * Cut::kRowTiles * (warp / 4) + warp % 4;
  const int tile = item.first_tile + tile_in_block;
  const int num_units = (task.weight.cols + kStagedColumns - 1) / kStagedColumns;
  static_assert(Cut::kRowTiles <= 2);
  MmaCopies<F, Cut> copies{
      .base = shared_address(shared_bytes),
      .columns = task.staged.data + Cut::kRowBytes * int64_t{item.first_column} + 16 * threadIdx.x,
      .columns_step = Cut::kRowBytes * int64_t{task.staged.capacity},
      .num_column_bytes = Cut::kRowBytes * ((item.num_columns + 7) / 8 * 8),
      .weights = tile_of<F>(task.weight, num_units, item.expert, tile) + 16 * (threadIdx.x % 32),
      .other_tile =
          Cut::kRowTiles == 1
              ? 0
              : static_cast<int32_t>(tile_of<F>(task.weight, num_units, item.expert, tile + 4) -
                                     tile_of<F>(task.weight, num_units, item.expert, tile)),
      .tile_in_block = tile_in_block,
      .num_units = num_units};
  Sums<Cut, Cut::kMostColumns> sums;
#pragma unroll
  for (int m = 0; m < Cut::kRowTiles; ++m) {
#pragma unroll
    for (int i = 0; i < Cut::kMostColumns / 2; ++i) sums[m][i] = 0;
  }
#pragma unroll 1
  for (int u = 0; u < S::kStages - 1; ++u) copies.fill();
  int stage = 0;
#pragma unroll 1
  for (int u = 0; u < num_units; ++u) {
    wait_for_copies<S::kStages - 2>();
    __syncthreads();  // all copies of this unit are there, and all have read the unit before
    copies.fill();
    multiply_unit<F, Cut>(shared_bytes + stage * S::kStageBytes, tile_in_block, item.num_columns,
                          sums);
    if (++stage == S::kStages) stage = 0;
  }
  wait_for_copies<0>();
  __syncthreads();  // the ring's memory is the end's now
  task.template finish<Cut, Cut::kMostColumns>(item, tile, sums, shared_bytes);
}

/// Launches a block for each item.
template <DType F, typename Cut, typename Task>
void launch_product_mma(const char* row, const Task& task, int64_t most_items,
                        cudaStream_t stream) {
  if (most_items == 0) return;
  constexpr uint64_t kShared =
      std::max<uint64_t>(MmaShared<F, Cut>::kBytes, Task::template kSharedBytes<Cut>);
  static_assert(kShared <= kPortableSharedBytes, "a block has this much on any device");
  launch_kernel(row, product_mma_kernel<F, Cut, Task>, task,
                {.grid = dim3(static_cast<unsigned>(most_items)),
                 .num_threads = Cut::kThreads,
                 .shared_bytes = kShared,
                 .programmatic = true},
                stream);
}

#endif  // __CUDACC__

}  // namespace moxie::gemm
