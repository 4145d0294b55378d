// What the kernels of moe_fp8_block_scale for many tokens on Hopper share: the task, the rings of
// stages in shared memory, and the items among clusters of two blocks.
//
// A block of 128 pairs by 256 rows of weights would read L2 faster than L2 can, so the two blocks
// of a cluster share the weights, where an expert has two tiles of pairs side by side, or the
// pairs. One thread copies, two warpgroups multiply. For sm_90a only.
#pragma once

#include <cuda.h>
#include <cuda_fp16.h>

#include "core/cuda_launch.cuh"
#include "kernels/barriers_sm90.cuh"
#include "kernels/moe_fp8/moe_fp8_exponents.cuh"
#include "kernels/moe_fp8/moe_fp8_pairs_cuda.h"
#include "kernels/wgmma.cuh"

namespace moxie::moe_fp8 {

inline constexpr int kThreads = 384, kCopyThreads = 128;
inline constexpr int kMathThreads = kThreads - kCopyThreads, kCluster = 2;
inline constexpr int kLeastRows = 32;        // of pairs in a box
inline constexpr int kBoxBytes = 128 * 128;  // of 128 rows of 128 bytes
inline constexpr int kMathBarrier = 1;       // named barrier of all math warps
inline constexpr int kGroupBarrier = 2;      // and the next: of a warpgroup
inline constexpr int kBlock = kFp8Block;

/// Maps of pairs' rows in boxes of 128, 64 and 32. Each copy takes the same time to issue, so a
/// tile of pairs comes in as few as it can.
struct PairMaps {
  CUtensorMap of_rows[3] = {};

  __device__ const CUtensorMap* of(int32_t rows) const {
    return &of_rows[rows == 128 ? 0 : rows == 64 ? 1 : 2];
  }
};

struct ManyTask {
  Piece piece;
  int32_t slots = 0;          // of the most tiles: 128 each
  uint8_t* x = nullptr;       // [pairs, hidden] activations of the pairs' tokens
  float* x_scales = nullptr;  // [hidden / 128, slots]
  int32_t* sizes = nullptr;   // for FP16: [pairs] exponent of about the greatest activation
  // [pairs, intermediate] E4M3, or FP16 divided by 4^size, the columns of 64 as store_f16() says
  std::byte* h = nullptr;
  // of E4M3: [intermediate / 128, slots]; of FP16: [tiles, intermediate / 128]
  float* h_scales = nullptr;
  CUtensorMap w1 = {}, w2 = {};
  PairMaps of_x = {}, of_h = {};
};
static_assert(kManyPairs == 128);

/// The rows that are copied for a tile of pairs.
__device__ __forceinline__ int32_t rows_of(int32_t num_pairs) {
  return num_pairs <= kLeastRows ? kLeastRows : num_pairs <= 64 ? 64 : 128;
}

/// Sizes are within these limits, so that 4^size is a normal F32.
inline constexpr int kMostSize = 60;
__device__ __forceinline__ float power_of_4(int size) { return power_of_two(127 + 2 * size); }

__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

/// A ring's barriers.
template <int kStages_>
struct Ring {
  static constexpr int kStages = kStages_;
  uint64_t full[kStages], empty[kStages];

  /// By one thread. Full: the bytes of boxes; empty: the math warps of the cluster.
  __device__ void init() {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(&full[i]);
      init_barrier(&empty[i], kCluster * kMathThreads / 32);
    }
  }
  /// By one lane: this warp needs a stage no more.
  __device__ void release(uint32_t stage) {
    for (uint32_t rank = 0; rank < kCluster; ++rank) arrive_barrier(&empty[stage], rank);
  }
};
template <typename Shared>
inline constexpr int kRingBytes = decltype(Shared::ring)::kStages* Shared::kStageBytes;
template <typename Shared>
inline constexpr uint64_t kSharedBytes = kRingBytes<Shared> + sizeof(Shared);

/// What a block multiplies: a tile of pairs by two blocks of weights.
struct Item {
  PairTile tile;
  int32_t tile_number, block;
  bool shares_weights;  // with the cluster's other block; otherwise they share the pairs
};

/// Item number i of a cluster's list, `blocks` of weights for a tile. With an odd number of blocks
/// a tile alone ends with one that is not there: its results are not stored.
__device__ __forceinline__ Item item_of(const Piece& piece, int32_t i, int32_t blocks,
                                        bool may_share_weights) {
  const int32_t half = (blocks + 1) / 2, number = i / half, rest = i % half;
  const auto rank = static_cast<int32_t>(cluster_rank());
  const PairTile tile = piece.tiles[number];
  if (!may_share_weights || tile.kind == TileKind::kAlone)
    return {tile, number, 2 * rest + rank, false};
  const int32_t second = tile.kind == TileKind::kSecond, other = number - second + rank;
  return {piece.tiles[other], other, second * half + rest, true};
}
__device__ __forceinline__ bool is_void(const Item& item, int32_t blocks) {
  return item.shares_weights && item.block >= blocks;
}

/// The items of a kernel among its clusters, and the warpgroups of a block. copy(stages, shared,
/// first, items, step) runs in one thread, multiply(stages, shared, group, item, place) in two
/// warpgroups.
template <typename Shared, bool kMayShareWeights, typename Copy, typename Multiply>
__device__ __forceinline__ void run_items(const ManyTask& task, int32_t blocks, Copy&& copy,
                                          Multiply&& multiply) {
  extern __shared__ __align__(1024) std::byte stages[];
  auto& shared = *reinterpret_cast<Shared*>(stages + kRingBytes<Shared>);
  if (threadIdx.x == 0) shared.ring.init();
  __syncthreads();
  cluster_arrive();
  cluster_wait();
  wait_for_previous();
  launch_next();
  const int32_t num_items = *task.piece.num_tiles * ((blocks + 1) / 2);
  const auto first = static_cast<int32_t>(blockIdx.x / kCluster);
  const auto step = static_cast<int32_t>(gridDim.x / kCluster);
  if (threadIdx.x < kCopyThreads) {
    give_registers<Shared::kCopyRegisters>();
    if (threadIdx.x < 32 && is_elected()) copy(stages, shared, first, num_items, step);
    __syncwarp();
  } else {
    take_registers<Shared::kMathRegisters>();
    const int group = threadIdx.x / 128 - 1;
    uint32_t place = 0;
    // The next item is looked up before the products of one, which hide how long that takes.
    Item next = first < num_items ? item_of(task.piece, first, blocks, kMayShareWeights) : Item{};
    for (int32_t i = first; i < num_items; i += step) {
      const Item item = next;
      if (i + step < num_items) next = item_of(task.piece, i + step, blocks, kMayShareWeights);
      if (!is_void(item, blocks)) multiply(stages, shared, group, item, place);
    }
  }
  // The other block may copy into this one, or report to it, until it has ended, too.
  cluster_arrive();
  cluster_wait();
}

}  // namespace moxie::moe_fp8
