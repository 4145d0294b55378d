// Sorting by expert in one kernel: the blocks of a cluster, and the warps of a block, each have a
// run of the pairs. Every warp counts its pairs of each expert. Sums over the warps of a block,
// then over the blocks before it (through shared memory), and over the experts before, make the
// first slot of each (expert, warp). A second pass gives the pairs their slots, in order.
//
// 20 bytes in and out a pair: limited by latency, and by the scattered stores of a slot's values,
// one a clock and SM. With many pairs a second kernel on all SMs does these stores.
#include "core/cuda_launch.cuh"
#include "kernels/cluster.cuh"
#include "kernels/gemm/sort_cuda.h"
#include "kernels/ptx.cuh"

namespace moxie::gemm {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;
constexpr int kMaxBlocks = 8;             // of a cluster, on every device
constexpr int kPairsOfABlock = 256;       // at least, if there are several blocks
constexpr int kHeld = 4;                  // of a thread's pairs, read once
constexpr int32_t kMostScattered = 8192;  // pairs whose values the first kernel stores
constexpr int kFillThreads = 256;
static_assert(kMaxSortedExperts <= kThreads, "a thread an expert");

struct SortTask {
  SortShape shape;
  SortedPairs sorted;
  const int32_t* expert_ids;
  const float* expert_weights;
  bool scatters;  // slot_token and slot_weight
};

struct SortShared {
  int32_t counts[kWarps][kMaxSortedExperts];  // a warp's pairs, then those before them
  int32_t totals[kMaxSortedExperts];          // of the block; other blocks read it
  int32_t first_slot[kMaxSortedExperts];      // of the block's pairs
  int32_t slots_of_warps[kWarps], tiles_of_warps[kWarps];
  int32_t num_slots;  // over all runs
  struct {
    int32_t width, num_tiles;
  } of_expert[kMaxSortedExperts];
};

/// The sum of `value` over the block's threads before this one.
__device__ __forceinline__ int32_t sum_before(int32_t value, int32_t* sums_of_warps) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int32_t sum = warp_sum_up_to(value);
  if (lane == 31) sums_of_warps[warp] = sum;
  __syncthreads();
  return sum - value +
         __reduce_add_sync(~0u, static_cast<unsigned>(lane < warp ? sums_of_warps[lane] : 0));
}

__device__ __forceinline__ int32_t aligned(int32_t num_slots) {
  return (num_slots + kSlotsAlign - 1) / kSlotsAlign * kSlotsAlign;
}

__device__ __forceinline__ void write_tiles(const SortTask& p, int expert, int32_t first_slot,
                                            int32_t total, int32_t first_tile, int32_t num_tiles,
                                            int32_t width) {
  for (int i = 0; i < num_tiles; ++i) {
    p.sorted.tiles[first_tile + i] = {expert, first_slot + i * width,
                                      i + 1 < num_tiles ? width : total - i * width, width};
  }
}

__device__ __forceinline__ void clear_slots(const SortedPairs& sorted, int32_t first, int32_t end,
                                            int32_t step) {
  for (int32_t slot = first; slot < end; slot += step) {
    sorted.slot_token[slot] = -1;
    sorted.slot_weight[slot] = 0.0f;
  }
}

__device__ __forceinline__ void fill_slot(const SortTask& p, int32_t pair, int32_t slot,
                                          float weight) {
  p.sorted.slot_token[slot] = pair / p.shape.top_k;
  p.sorted.slot_weight[slot] = weight;
}

__global__ void __launch_bounds__(kFillThreads) fill_slots(const __grid_constant__ SortTask p) {
  wait_for_previous();
  launch_next();
  const int32_t pair = static_cast<int32_t>(blockIdx.x) * kFillThreads + threadIdx.x;
  if (pair >= p.shape.num_tokens * p.shape.top_k) return;
  const int32_t slot = p.sorted.slot_of_pair[pair];
  if (slot >= 0) fill_slot(p, pair, slot, p.expert_weights[pair]);
}

/// The number of a pair's expert among those that are sorted; negative: it is none of them.
__device__ __forceinline__ int32_t expert_of(const SortTask& p, int32_t pair) {
  const int32_t expert = p.expert_ids[pair] - p.shape.first_expert;
  return expert < p.shape.num_experts ? expert : -1;
}

__global__ void __launch_bounds__(kThreads) sort_by_expert(const __grid_constant__ SortTask p) {
  __shared__ SortShared shared;
  ClusterOfBlocks cluster;
  const int rank = static_cast<int>(blockIdx.x), num_blocks = static_cast<int>(gridDim.x);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  int32_t* counts = shared.counts[warp];
  for (int e = lane; e < kMaxSortedExperts; e += 32) counts[e] = 0;
  __syncwarp();
  wait_for_previous();
  launch_next();

  const int32_t num_pairs = p.shape.num_tokens * p.shape.top_k;
  const int32_t pairs_a_block = (num_pairs + 32 * num_blocks - 1) / (32 * num_blocks) * 32;
  const int32_t pairs_a_warp = (pairs_a_block + 32 * kWarps - 1) / (32 * kWarps) * 32;
  const int32_t end_of_block = min((rank + 1) * pairs_a_block, num_pairs);
  const int32_t first = rank * pairs_a_block + warp * pairs_a_warp + lane;
  const int32_t end = min(first - lane + pairs_a_warp, end_of_block);
  int32_t held[kHeld];
  float held_weights[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int32_t pair = first + 32 * i;
    held[i] = pair < end ? expert_of(p, pair) : -1;
    held_weights[i] = pair < end && p.scatters ? p.expert_weights[pair] : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (held[i] >= 0) atomicAdd(&counts[held[i]], 1);
  }
#pragma unroll 4
  for (int32_t pair = first + 32 * kHeld; pair < end; pair += 32) {
    const int32_t id = expert_of(p, pair);
    if (id >= 0) atomicAdd(&counts[id], 1);
  }
  __syncthreads();

  // One thread for each expert: the last threads, since their warps are the last to get pairs. The
  // other threads add zeros.
  const int expert = thread - (kThreads - kMaxSortedExperts);
  const bool is_expert = expert >= 0 && expert < p.shape.num_experts;
  int32_t total_here = 0;
  if (is_expert) {
    const int32_t pairs_here = max(0, end_of_block - rank * pairs_a_block);
    const int busy_warps = min(kWarps, (pairs_here + pairs_a_warp - 1) / max(pairs_a_warp, 1));
#pragma unroll 8
    for (int w = 0; w < busy_warps; ++w) {
      const int32_t count = shared.counts[w][expert];
      shared.counts[w][expert] = total_here;
      total_here += count;
    }
    shared.totals[expert] = total_here;
  }
  int32_t before = 0, total = total_here;
  if (num_blocks > 1) {
    cluster.sync();
    total = 0;
    if (is_expert) {
#pragma unroll
      for (int b = 0; b < kMaxBlocks; ++b) {
        if (b >= num_blocks) break;
        const int32_t count = *cluster.in_block(&shared.totals[expert], b);
        before += b < rank ? count : 0;
        total += count;
      }
    }
    cluster.arrive();  // the totals have been read
  }
  const int32_t num_tiles = (total + p.shape.tile_slots - 1) / p.shape.tile_slots;
  const int32_t first_slot = sum_before(aligned(total), shared.slots_of_warps);
  const int32_t first_tile = sum_before(num_tiles, shared.tiles_of_warps);
  const int32_t width = num_tiles == 0 ? 0 : aligned((total + num_tiles - 1) / num_tiles);
  if (is_expert) {
    shared.first_slot[expert] = first_slot + before;
    shared.of_expert[expert] = {width, num_tiles};
  }
  if (thread == kThreads - 1) shared.num_slots = first_slot + aligned(total);
  __syncthreads();

  // The last block does this, since it has the fewest pairs.
  if (rank == num_blocks - 1) {
    clear_slots(p.sorted, first_slot + total, first_slot + aligned(total), 1);
    if (is_expert) {
      int32_t at = first_tile;
      if (p.shape.widest_first) {
        at = 0;
#pragma unroll 8
        for (int e = 0; e < p.shape.num_experts; ++e) {
          const auto other = shared.of_expert[e];
          const bool is_before = other.width > width || (other.width == width && e < expert);
          at += is_before ? other.num_tiles : 0;
        }
      }
      write_tiles(p, expert, first_slot, total, at, num_tiles, width);
    }
    if (thread == kThreads - 1) *p.sorted.num_tiles = first_tile + num_tiles;
    clear_slots(p.sorted, shared.num_slots + thread, p.sorted.capacity, kThreads);
  }

  const auto place = [&](int32_t pair, int32_t id, float weight) {
    const uint32_t same = __match_any_sync(~0u, id), lower = same & ((1u << lane) - 1);
    const int32_t in_block = id >= 0 ? counts[id] : 0;
    __syncwarp();
    if (id >= 0) {
      const int32_t slot = shared.first_slot[id] + in_block + __popc(lower);
      if (lower == 0) counts[id] = in_block + __popc(same);
      p.sorted.slot_of_pair[pair] = slot;
      if (p.scatters) fill_slot(p, pair, slot, weight);
    } else if (pair < end) {
      p.sorted.slot_of_pair[pair] = -1;
    }
    __syncwarp();
  };
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (32 * i < pairs_a_warp) place(first + 32 * i, held[i], held_weights[i]);
  }
#pragma unroll 2
  for (int32_t i = 32 * kHeld; i < pairs_a_warp; i += 32) {
    const int32_t pair = first + i;
    const bool is_pair = pair < end;
    place(pair, is_pair ? expert_of(p, pair) : -1,
          is_pair && p.scatters ? p.expert_weights[pair] : 0.0f);
  }

  if (num_blocks > 1) cluster.wait();
}

}  // namespace

SortedPairs take_sorted_pairs(const SortShape& shape, Scratch& scratch) {
  SortedPairs sorted;
  sorted.capacity = shape.capacity();
  sorted.max_tiles = shape.max_tiles();
  sorted.slot_of_pair = scratch.take<int32_t>(shape.num_pairs());
  sorted.slot_token = scratch.take<int32_t>(sorted.capacity);
  sorted.slot_weight = scratch.take<float>(sorted.capacity);
  sorted.tiles = scratch.take<SlotTile>(sorted.max_tiles);
  sorted.num_tiles = scratch.take<int32_t>(1);
  return sorted;
}

void sort_pairs(const SortShape& shape, const int32_t* expert_ids, const float* expert_weights,
                const SortedPairs& sorted, Stream* stream) {
  CHECK(shape.num_experts <= kMaxSortedExperts, std::to_string(shape.num_experts) + " experts");
  CHECK(shape.tile_slots > 0 && shape.tile_slots % kSlotsAlign == 0,
        "tiles of " + std::to_string(shape.tile_slots));
  const int most_blocks = code_has_clusters() ? kMaxBlocks : 1;
  const int blocks = std::clamp(ceil_div(shape.num_pairs(), kPairsOfABlock), 1, most_blocks);
  const SortTask task{shape, sorted, expert_ids, expert_weights,
                      shape.num_pairs() <= kMostScattered};
  launch_kernel("sort_pairs", sort_by_expert, task,
                {.grid = dim3(static_cast<unsigned>(blocks)),
                 .num_threads = kThreads,
                 .cluster = blocks,
                 .programmatic = true},
                launch_stream(stream));
  if (task.scatters) return;
  launch_kernel("sort_pairs", fill_slots, task,
                {.grid = dim3(static_cast<unsigned>(ceil_div(shape.num_pairs(), kFillThreads))),
                 .num_threads = kFillThreads,
                 .programmatic = true},
                launch_stream(stream));
}

}  // namespace moxie::gemm
