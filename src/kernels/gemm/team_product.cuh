// Grouped products with few tokens an expert, on any GPU: limited by reading the weights, which are
// loaded straight to registers, and multiplied by mma.sync.
//
// A team of up to five warps shares a tile of 16 rows: each warp holds nine neighbouring units of
// 64 columns, multiplies them with all staged columns of the item, and starts the loads of its
// team's next tile. The team's sums meet in shared memory. An SM has one block of four teams, which
// take turns at neighbouring tiles: while one waits for its loads, others multiply. All of an
// item's activations lie in shared memory, so that a block reads them once for a run of some
// hundred tiles. Blocks have shares of equal cost, to the tile, whatever the number of experts:
// rounds of whole items would leave SMs idle at the end.
//
// Codes of MXFP4 enter as BF16 of 2^-126 of their values, the activations times 2^96; the sums of
// each block of 32 columns are multiplied by the block's scale in F32. Every column's sums are the
// same whatever other columns there are.
//
// Per unit and SM, of 27 clocks that memory takes at 4.6 TB/s: some 65 instructions of a warp for 8
// columns (16 clocks of four schedulers), 2.2 KiB of shared memory read (17 clocks).
#pragma once

#include "core/cuda_launch.cuh"
#include "kernels/gemm/operand.cuh"
#include "kernels/gemm/product_mma.cuh"
#include "kernels/gemm/sort_cuda.h"
#include "kernels/gemm/staged.cuh"
#include "kernels/gemv/held_units.cuh"

namespace moxie::gemm {

inline constexpr int kMostTeamWarps = 5, kTeams = 4;
/// Sums of the products are 2^-30 of their values.
inline constexpr float kTeamScale = fragment::kSumScale<DType::kMXFP4>;

/// How a team shares a tile of so many columns: each of `warps` warps holds `units` units.
struct TeamSplit {
  int32_t units = 0, warps = 0;  ///< 0: none share them evenly
};
constexpr TeamSplit team_split(int32_t columns) {
  const int32_t all = staged_units(columns);
  if (columns % kStagedColumns != 0) return {};
  for (const int32_t units : {9, 1})
    if (all % units == 0 && all / units <= kMostTeamWarps) return {units, all / units};
  return {};
}

/// What a tile's end reads: each warp's sums, column by column (20 floats a column keep a warp's
/// stores in different banks), and the biases of the tile's rows.
inline constexpr int kSumsStride = 20;
template <int kMost>
struct TeamSums {
  float of[kMostTeamWarps][kMost][kSumsStride];
  alignas(16) float bias[16];
};
/// A block's share of the tiles, found by cost: tiles of an item with more columns take longer.
struct TeamShare {
  int32_t costs_of_warps[kMostTeamWarps * kTeams];
  int32_t begin, end;
};
MOXIE_HOST_DEVICE constexpr int32_t team_tile_cost(int32_t num_columns) {
  return num_columns <= 8 ? 3 : 4;
}
template <int kMost>
constexpr uint64_t team_shared_bytes(int32_t columns) {
  return uint64_t{kMost} * static_cast<uint64_t>(staged_units(columns)) * kStagedRowBytes +
         2 * kTeams * sizeof(TeamSums<kMost>) + sizeof(TeamShare);
}

#ifdef __CUDACC__

/// A team's share of one tile, in a lane: codes and both rows' scales of each unit.
template <int kUnits>
struct TeamUnits {
  static constexpr DType F = DType::kMXFP4;
  uint4 codes[kUnits];
  uint32_t scales[kUnits];

  __device__ __forceinline__ void load(const std::byte* first) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      codes[u] = fragment::load_streamed_16(first + u * fragment::kUnitBytes<F> + 16 * lane);
      scales[u] = fragment::load_streamed_4(first + u * fragment::kUnitBytes<F> +
                                            fragment::kCodeBytes<F> + lane / 4 * 4);
    }
  }
  /// sums[c]: as mma's, of columns 8 c and the next seven. `columns`: the address of the lane's row
  /// of the first unit's staged columns, of kRows rows a unit.
  template <int kColumns, int kRows>
  __device__ __forceinline__ void multiply(uint32_t columns, float (&sums)[kColumns / 8][4]) const {
    const uint32_t lane = threadIdx.x % 32, row = lane % 8, matrix = lane / 8;
#pragma unroll
    for (int c = 0; c < kColumns / 8; ++c) {
#pragma unroll
      for (float& sum : sums[c]) sum = 0;
    }
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      fragment::Unit<F> unit;
      unit.codes[0] = codes[u];
      unit.scales[0] = scales[u];
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        uint32_t top[4], bottom[4];
        fragment::decode<F>(unit, block, 0, 0, top);
        fragment::decode<F>(unit, block, 1, 0, bottom);
        const float of_top = fragment::scale_of<F>(unit, block, 0),
                    of_bottom = fragment::scale_of<F>(unit, block, 1);
        const uint32_t chunk = 16 * ((4 * block + matrix) ^ row);
#pragma unroll
        for (int c = 0; c < kColumns / 8; ++c) {
          uint32_t b[4];
          load_matrices(columns + (u * kRows + 8 * c) * kStagedRowBytes + chunk, b);
          float products[4] = {};
          mma_m16n8k16(products, top[0], bottom[0], top[1], bottom[1], b[0], b[1]);
          mma_m16n8k16(products, top[2], bottom[2], top[3], bottom[3], b[2], b[3]);
          sums[c][0] += products[0] * of_top;
          sums[c][1] += products[1] * of_top;
          sums[c][2] += products[2] * of_bottom;
          sums[c][3] += products[3] * of_bottom;
        }
      }
    }
  }
};

/// Finds the block's tiles, from number item * num_tiles + tile on. All threads call it.
template <typename Task>
__device__ __forceinline__ void find_share(const Task& task, int num_tiles, TeamShare& share) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_warps = blockDim.x / 32;
  const int num_items = task.items.count();
  // Each thread has neighbouring items.
  const int num_threads = static_cast<int>(blockDim.x),
            each = (num_items + num_threads - 1) / num_threads;
  const int first = min(num_items, static_cast<int>(threadIdx.x) * each);
  const int last = min(num_items, first + each);
  int own = 0;
  for (int i = first; i < last; ++i) own += team_tile_cost(task.items.item(i).num_columns);
  int up_to = own;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int lower = __shfl_up_sync(~0u, up_to, step);
    if (lane >= step) up_to += lower;
  }
  if (lane == 31) share.costs_of_warps[warp] = up_to;
  if (threadIdx.x == 0) share.begin = share.end = num_items * num_tiles;
  __syncthreads();
  int before = up_to - own, all = 0;
  for (int w = 0; w < num_warps; ++w) {
    if (w < warp) before += share.costs_of_warps[w];
    all += share.costs_of_warps[w];
  }
  const int cost_of_all = all * num_tiles, of_block = cost_of_all / static_cast<int>(gridDim.x);
  const int rest = cost_of_all % static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  const int from = block * of_block + min(block, rest);
  const int to = from + of_block + (block < rest ? 1 : 0);
  for (int i = first; i < last; ++i) {
    const int cost = team_tile_cost(task.items.item(i).num_columns);
    const int begins = before * num_tiles, ends = begins + cost * num_tiles, tiles = i * num_tiles;
    if (begins <= from && from < ends) share.begin = tiles + (from - begins) / cost;
    if (begins <= to && to < ends) share.end = tiles + (to - begins) / cost;
    before += cost;
  }
  __syncthreads();
}

/// The kernel. Task: `weight` (PackedMatrix), `staged` (StagedView), `bias` (a float a row of each
/// expert, aligned to 16 bytes), `items`, and on the device
///   int items.count()        of the launch
///   Item items.item(int i)   number i; its first_tile is not used
///   template <int kColumns> void finish(const Item&, int tile, const TeamSums&, int part,
///                                       int warps)
///     stores the tile's outputs, of the sums that `warps` warps left; `part`: the calling warp
template <int kUnits, int kMost, typename Task>
__global__ void __launch_bounds__(32 * kMostTeamWarps * kTeams, 1)
    team_product_kernel(const __grid_constant__ Task task) {
  constexpr DType F = DType::kMXFP4;
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  const int num_units = task.weight.cols / kStagedColumns, warps = num_units / kUnits;
  const int warp = threadIdx.x / 32, team = warp / warps, part = warp - team * warps;
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  auto* all_sums =
      reinterpret_cast<TeamSums<kMost>*>(shared_bytes + kMost * num_units * kStagedRowBytes);
  auto* sums_of_team = all_sums + 2 * team;
  auto& share = *reinterpret_cast<TeamShare*>(all_sums + 2 * kTeams);
  const uint32_t columns =
      shared_address(shared_bytes) + (part * kUnits * kMost + lane % 8) * kStagedRowBytes;
  const int num_tiles = task.weight.rows / 16, tile_bytes = num_units * fragment::kUnitBytes<F>;
  find_share(task, num_tiles, share);
  int at = share.begin;
  const int end = share.end;
  bool is_first = true;
  int turn = 0;
  while (at < end) {
    const int i = at / num_tiles, first = at - i * num_tiles;
    const int last = min(end - i * num_tiles, num_tiles);
    at += last - first;
    const Item item = task.items.item(i);
    int tile = first + team;
    const std::byte* from = tile_of<F>(task.weight, num_units, item.expert, tile) +
                            part * kUnits * fragment::kUnitBytes<F>;
    TeamUnits<kUnits> held;
    if (tile < last) held.load(from);
    // Weights never change; the activations are the previous kernel's.
    if (is_first) {
      wait_for_previous();
      launch_next();
    } else {
      __syncthreads();  // all have read the previous item's activations
    }
    is_first = false;
    const auto stage = [&]<int kColumns>() {
      const __nv_bfloat162 raise = __float2bfloat162_rn(fragment::kActivationScale<F>);
      const std::byte* rows = task.staged.data + int64_t{item.first_column} * kStagedRowBytes;
      const int64_t of_unit = int64_t{task.staged.capacity} * kStagedRowBytes;
      constexpr int kChunks = kColumns * kStagedRowBytes / 16;
#pragma unroll 2
      for (int k = threadIdx.x; k < num_units * kChunks; k += blockDim.x) {
        const int unit = k / kChunks, in_unit = 16 * (k % kChunks);
        uint4 four = *reinterpret_cast<const uint4*>(rows + unit * of_unit + in_unit);
        auto* pairs = reinterpret_cast<__nv_bfloat162*>(&four);
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) pairs[pair] = __hmul2(pairs[pair], raise);
        *reinterpret_cast<uint4*>(shared_bytes + unit * (kMost * kStagedRowBytes) + in_unit) = four;
      }
    };
    item.num_columns <= 8 ? stage.template operator()<8>() : stage.template operator()<kMost>();
    __syncthreads();
    const auto multiply = [&]<int kColumns>() {
#pragma unroll 1
      for (; tile < last; tile += kTeams, ++turn) {
        TeamSums<kMost>& met = sums_of_team[turn % 2];
        if (part == 0 && lane < 4)
          copy_async_16(shared_address(&met.bias[4 * lane]),
                        task.bias + int64_t{item.expert} * task.weight.rows + 16 * tile + 4 * lane);
        commit_copies();
        float sums[kColumns / 8][4];
        held.multiply<kColumns, kMost>(columns, sums);
        wait_for_copies<0>();  // before the next loads start, which it would wait for as well
        from += kTeams * tile_bytes;
        if (tile + kTeams < last) held.load(from);
#pragma unroll
        for (int c = 0; c < kColumns / 8; ++c) {
          float* of = &met.of[part][8 * c + 2 * q][g];
          of[0] = sums[c][0], of[kSumsStride] = sums[c][1];
          of[8] = sums[c][2], of[kSumsStride + 8] = sums[c][3];
        }
        barrier_wait(1 + team, 32 * warps);
        // The sums of the turn before this one are read: all have come here since.
        task.template finish<kColumns>(item, tile, met, (part + turn) % warps, warps);
      }
    };
    item.num_columns <= 8 ? multiply.template operator()<8>()
                          : multiply.template operator()<kMost>();
  }
  if (is_first) {
    wait_for_previous();
    launch_next();
  }
}

/// Launches a block an SM, or fewer if there are few tiles.
template <int kMost, typename Task>
void launch_team_product(const char* row, const Task& task, int64_t most_items,
                         cudaStream_t stream) {
  const TeamSplit split = team_split(task.weight.cols);
  const int64_t most_turns = most_items * (task.weight.rows / 16) / kTeams;
  const auto blocks = std::clamp<int64_t>(most_turns, 1, fragment::num_sms());
  const auto kernel =
      split.units == 9 ? team_product_kernel<9, kMost, Task> : team_product_kernel<1, kMost, Task>;
  launch_kernel(row, kernel, task,
                {.grid = dim3(static_cast<unsigned>(blocks)),
                 .num_threads = 32 * kTeams * split.warps,
                 .shared_bytes = team_shared_bytes<kMost>(task.weight.cols),
                 .programmatic = true,
                 .leaves_l1 = true},
                stream);
}

#endif  // __CUDACC__

}  // namespace moxie::gemm
