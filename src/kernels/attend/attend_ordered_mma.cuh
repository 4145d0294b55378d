// What the kernel of attention by mma.sync is made of beside its products: parameters, the block's
// shared memory, and the warp that copies keys and values.
#pragma once

#include <algorithm>

#include "kernels/attend/attend_tiles.cuh"
#include "kernels/block_barrier.cuh"
#include "kernels/features.h"

namespace moxie::attend_ordered {

using namespace attend_tiles;

constexpr int kWarpTokens = 4;
constexpr int kRowTiles = 2;  // of 16 rows, of a warp: two tokens' 8 query heads each
constexpr int kStageRuns = 4;
constexpr int kStageKeys = kStageRuns * kRun;
constexpr int kRowBytes = 2 * kDim;
constexpr int kRunBytes = kRun * kRowBytes;
constexpr int kValuesAt = kStageKeys * kRowBytes;  // in a stage; keys come first
constexpr int kStageBytes = 2 * kValuesAt;
constexpr int kSteps = kDim / 16;  // products of 16 dimensions for a logit
// kWarps multiply, one more copies. kBlocks: of an SM. kUnrolled: runs of keys that are one stretch
// of code. More hide more of each other's latencies, but need registers, and short items are
// slower.
template <int kWarpsOfBlock, int kBlocksOfSm, int kUnrolledRuns>
struct Cut {
  static constexpr int kUnrolled = kUnrolledRuns;
  static constexpr int kWarps = kWarpsOfBlock, kBlocks = kBlocksOfSm;
  static constexpr int kThreads = 32 * (kWarps + 1);
  static constexpr int kTileTokens = kWarpTokens * kWarps;
  // Blocks of keys on their way or in use; the rest is the size of barriers and items.
  static constexpr int kStages =
      std::min(6, (static_cast<int>(kPortableSharedBytes) / kBlocks - 1024) / kStageBytes);
  static_assert(kStages >= 2);
};
// Three warps for each scheduler of an SM, so that each has 168 registers. Long tiles share the
// copies of keys among 11 warps. Windows and sequences of few tokens have short
// items, of which two on an SM hide each other's first copies and stores.
using LongCut = Cut<11, 1, 2>;
using ShortCut = Cut<5, 2, 1>;

struct MmaParams {
  TileParams tiles;
  AnswerPlace to;
  const float* q;
  const std::byte *k, *v;
  const float* sinks;
  const int32_t* page_table;
  float scale_log2;   // logits in powers of two
  int32_t page_rows;  // rows of kRowBytes from a page to the next
  int32_t table_stride, page_tokens;
  uint32_t page_magic;  // 2^31 / (runs of a page), rounded up
  int32_t num_kv_heads;
  bool is_q_staged;  // BF16, scaled as the logits
};

// The work of a block at a time. Run i of keys begins at key first_key + i * kRun. No token sees
// the keys before seen_from; they are less than a run.
struct WorkItem {
  TokenTile tile;
  int32_t kv_head, seen_from, first_key;
  int32_t num_runs;  // 0: nothing to do; kEnd: nor will there be
  bool follows;      // done again, with a maximum
  __device__ __forceinline__ int32_t num_stages() const {
    return (num_runs + kStageRuns - 1) / kStageRuns;
  }
};
constexpr int32_t kEnd = -1;

constexpr int kItems = 2;  // items being copied or in use
template <typename C>
struct Shared {
  alignas(kRowBytes) std::byte stages[C::kStages][kStageBytes];
  WorkItem items[kItems];
  int32_t page_missing[kItems];  // whether the item's keys so far lack a page
  // What a pass without a maximum leaves: of each lane's rows those that need none, and whether a
  // warp has others.
  uint8_t plain_rows[kItems][C::kWarps][32];
  int32_t must_follow[kItems];
  // Barriers: `there`: it may be read; `free`: it may be written again.
  uint64_t keys_there[C::kStages], keys_free[C::kStages];
  uint64_t item_there[kItems], item_free[kItems];
};
// Where its parts are. The address is held in a register: it would be made anew for each use.
template <typename C>
struct Places {
  uint32_t base;
  explicit __device__ __forceinline__ Places(const Shared<C>& shared)
      : base(shared_address(&shared)) {
    asm volatile("" : "+r"(base));
  }
  __device__ __forceinline__ uint32_t stage(int i) const {
    return base + static_cast<uint32_t>(i * kStageBytes);
  }
  __device__ __forceinline__ uint32_t keys_there(int i) const {
    return base + static_cast<uint32_t>(offsetof(Shared<C>, keys_there) + 8 * i);
  }
  __device__ __forceinline__ uint32_t keys_free(int i) const {
    return base + static_cast<uint32_t>(offsetof(Shared<C>, keys_free) + 8 * i);
  }
  __device__ __forceinline__ uint32_t item_there(int i) const {
    return base + static_cast<uint32_t>(offsetof(Shared<C>, item_there) + 8 * i);
  }
  __device__ __forceinline__ uint32_t item_free(int i) const {
    return base + static_cast<uint32_t>(offsetof(Shared<C>, item_free) + 8 * i);
  }
  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < C::kStages; ++i) {
      block::init(keys_there(i), 32 + 1);
      block::init(keys_free(i), C::kWarps);
    }
    for (int i = 0; i < kItems; ++i) {
      block::init(item_there(i), 1);
      block::init(item_free(i), C::kWarps);
    }
  }
};
// A place in the ring of stages, and the phase of its barriers there.
template <typename C>
struct Place {
  int stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == C::kStages) stage = 0, phase ^= 1;
  }
};
static_assert(sizeof(Shared<LongCut>) <= kPortableSharedBytes);
static_assert(2 * (sizeof(Shared<ShortCut>) + 1024) <= kPortableSharedBytes + 1024);

// Copies 16 bytes, or writes 16 zeros.
__device__ __forceinline__ void copy_or_clear_16(uint32_t to, const void* from, bool copies) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(copies ? 16 : 0)
               : "memory");
}

// ---- The producer -------------------------------------------------------------------------------
// One warp. It takes items in the order of the plan, one head after another, so that blocks that
// work at the same time read the same keys, and copies their keys and values. Lane 8 i + c copies
// chunk c (16 bytes) of every fourth key, from key i on. Keys that no token sees become zeros:
// values are multiplied by weights of 0, so that they must be numbers.
template <typename C>
struct Producer {
  const MmaParams& p;
  Shared<C>& shared;
  Places<C> places;
  int lane;
  Place<C> next = {};

  __device__ __forceinline__ void run() {
    const int32_t num_tiles = __ldcg(&p.tiles.plan->num_tiles);
    const int32_t num_items = num_tiles * p.num_kv_heads;
    auto item = static_cast<int32_t>(blockIdx.x);
    // Turns without work since the last with work: when each slot had one, no item comes back.
    int num_idle = 0;
    for (uint32_t turn = 0;; ++turn) {
      const uint32_t slot = turn % kItems;
      block::wait(places.item_free(slot), (turn / kItems & 1) ^ 1);
      WorkItem work = {};
      if (shared.must_follow[slot] != 0) {
        work = shared.items[slot];
        work.follows = true;
      } else if (item < num_items) {
        work = work_of(item, num_tiles);
        int32_t taken = 0;
        if (lane == 0) taken = atomicAdd(&p.tiles.plan->next_item, 1);
        item = __shfl_sync(~0u, taken, 0) + static_cast<int32_t>(gridDim.x);
      } else if (num_idle == kItems) {
        work.num_runs = kEnd;
      }
      num_idle = work.num_runs == 0 ? num_idle + 1 : 0;
      __syncwarp();
      if (lane == 0) {
        shared.items[slot] = work;
        shared.must_follow[slot] = 0;
        shared.page_missing[slot] = 0;
        block::arrive(places.item_there(slot));
      }
      if (work.num_runs == kEnd) return;
      prefetch_queries(work);
      bring_keys(work, &shared.page_missing[slot]);
    }
  }

 private:
  // Brings the item's queries to L2, while its warps are still at the item before.
  __device__ __forceinline__ void prefetch_queries(const WorkItem& work) const {
    constexpr int kLine = 128;
    const int value_bytes = p.is_q_staged ? 2 : 4;
    const int lines_of_token = kGroup * kDim * value_bytes / kLine;
    const auto* q = reinterpret_cast<const std::byte*>(p.q);
    for (int i = lane; i < work.tile.num_tokens * lines_of_token; i += 32) {
      const int token = i / lines_of_token, line = i % lines_of_token;
      const int64_t row = static_cast<int64_t>(work.tile.first_token + token) * p.to.num_heads +
                          work.kv_head * kGroup;
      asm volatile("prefetch.global.L2 [%0];" ::"l"(q + row * kDim * value_bytes + line * kLine));
    }
  }
  __device__ __forceinline__ WorkItem work_of(int32_t item, int32_t num_tiles) const {
    WorkItem work = {};
    work.kv_head = item / num_tiles;
    work.tile = p.tiles.tile(item - work.kv_head * num_tiles);
    work.seen_from = p.tiles.first_seen(work.tile.first_position);
    work.first_key = work.seen_from / kRun * kRun;
    work.num_runs = (last_key_of(work.tile) - work.first_key) / kRun + 1;
    return work;
  }

  __device__ __forceinline__ void bring_keys(const WorkItem& work, int32_t* page_missing) {
    constexpr int kHeld = 32 / kStageRuns;  // stages whose pages are looked up together
    const int32_t* pages = p.page_table + static_cast<int64_t>(work.tile.seq) * p.table_stride;
    const int32_t last_key = last_key_of(work.tile);
    const int chunk = lane % 8, first = lane / 8;
    const int64_t of_lane =
        (int64_t{work.kv_head} * p.page_tokens + first) * kRowBytes + 16 * chunk;
    const std::byte *k = p.k + of_lane, *v = p.v + of_lane;
    // Of keys `first` and `first` + 4 of a run: the two places that a chunk has in a row.
    const uint32_t to[2] = {
        static_cast<uint32_t>(first * kRowBytes + (chunk ^ first) * 16),
        static_cast<uint32_t>((first + 4) * kRowBytes + (chunk ^ (first + 4)) * 16)};
    int32_t row = 0, is_missing = 0;  // of run `lane` of the runs looked up
    const int32_t num_stages = work.num_stages();
    for (int32_t s = 0; s < num_stages; ++s, next.advance()) {
      const int32_t held = s % kHeld * kStageRuns, begin = work.first_key + s * kStageKeys;
      if (held == 0) {
        const int32_t key = begin + lane * kRun;
        const uint32_t page_idx = __umulhi(static_cast<uint32_t>(key) / kRun * 2, p.page_magic);
        const int32_t page = key <= last_key ? __ldcg(pages + page_idx) : 0;
        is_missing = page < 0;
        row = max(page, 0) * p.page_rows + key - static_cast<int32_t>(page_idx) * p.page_tokens;
        if (key > last_key) row = 0;
      }
      block::wait(places.keys_free(next.stage), next.phase ^ 1);
      const uint32_t missing = __ballot_sync(~0u, is_missing != 0) >> held;
      const uint32_t place = places.stage(next.stage);
      const bool sees_all = begin >= work.seen_from && begin + kStageKeys - 1 <= last_key;
#pragma unroll
      for (int r = 0; r < kStageRuns; ++r) {
        const int64_t from = int64_t{__shfl_sync(~0u, row, held + r)} * kRowBytes;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t at =
              place + to[i % 2] + static_cast<uint32_t>(r * kRunBytes + i / 2 * 8 * kRowBytes);
          const std::byte *key = k + from + 4 * i * kRowBytes,
                          *value = v + from + 4 * i * kRowBytes;
          if (sees_all) {
            copy_async_16(at, key);
            copy_async_16(at + kValuesAt, value);
          } else {
            const int32_t mine = begin + r * kRun + 4 * i + first;
            const bool is_seen = mine >= work.seen_from && mine <= last_key;
            copy_or_clear_16(at, key, is_seen);
            copy_or_clear_16(at + kValuesAt, value, is_seen);
          }
        }
      }
      block::arrive_behind_copies(places.keys_there(next.stage));
      if (lane == 0) {
        if ((missing & ((1u << kStageRuns) - 1)) != 0) *page_missing = 1;
        block::arrive(places.keys_there(next.stage));
      }
    }
  }
};

}  // namespace moxie::attend_ordered
