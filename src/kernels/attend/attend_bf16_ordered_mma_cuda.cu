// attend on any GPU for many tokens of a sequence: flash attention with mma.sync.
//
// A block takes items, heaviest first. An item is a tile of tokens of one sequence and a KV head; a
// warp has four of the tokens: 32 rows, each row a token's query head. One more warp copies keys
// and values to a ring in shared memory, 64 keys a stage. A warp goes over them in runs of 16:
// logits (S = Q K^T), weights, sums (O += P V). Warps wait for stages, not for each other, so that
// the tensor cores multiply for one while another makes powers of two. Q, K, V and weights are
// BF16, sums F32.
//
// A pass over an item's keys first weighs every row relative to 0. Rows whose sum of weights then
// is not in kPlainLeast .. kPlainMost are done again relative to a maximum that follows the row.
//
// Keys are taken 16 at a time from multiples of 16 on, and a row is scaled by its own logits alone:
// a token's result is the same for any batch and any chunks.
//
// docs/decisions/2026-11-27-attention-on-any-gpu.md has the counts and the measurements.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/attend/attend_rows.h"
#include "kernels/attend/attend_tiles.cuh"
#include "kernels/block_barrier.cuh"
#include "kernels/features.h"
#include "kernels/matrices.cuh"

namespace moxie {
namespace {

using namespace attend_tiles;

constexpr int kWarpTokens = 4;
constexpr int kRowTiles = 2;  // of 16 rows, of a warp: two tokens' 8 query heads each
constexpr int kStageRuns = 4;
constexpr int kStageKeys = kStageRuns * kRun;
constexpr int kRowBytes = 2 * kDim;
constexpr int kRunBytes = kRun * kRowBytes;
constexpr int kValuesAt = kStageKeys * kRowBytes;  // in a stage; keys come first
constexpr int kStageBytes = 2 * kValuesAt;
constexpr int kSteps = kDim / 16;    // products of 16 dimensions for a logit
constexpr float kLowest = -3.0e38f;  // the maximum of no keys: finite, so that no difference is NaN
// A maximum rises when a logit is this much above it: the sums are scaled less often.
constexpr float kSlack = 8.0f;
// The sums of weights with which a row may be relative to 0. Weights that underflow are below 2^-80
// of the sum.
constexpr float kPlainLeast = 0x1p-40f, kPlainMost = 0x1p64f;

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

__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// c = a b, the first of a chain.
__device__ __forceinline__ void mma_first(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                          uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%10, %10, %10, %10};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  mma_m16n8k16(c, a[0], a[1], a[2], a[3], b0, b1);
}
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
    const int4 tile =
        __ldcg(reinterpret_cast<const int4*>(p.tiles.tiles + (item - work.kv_head * num_tiles)));
    work.tile = {tile.x, tile.y, tile.z, tile.w};
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

// ---- A warp's rows ------------------------------------------------------------------------------
// Row r of row tile m is query head lane / 4 of token 2 m + r of the warp's. A lane has it with
// three others: of 16 keys keys 8 n + 2 (lane % 4) + e (n, e < 2).
template <typename C>
struct Rows {
  const MmaParams& p;
  Shared<C>& shared;
  Places<C> places;
  int warp, lane;
  Place<C> next = {};
  bool is_next_there = false;  // known to be
  uint32_t q[kRowTiles][kSteps][4];
  float s[kRowTiles][2][4];          // logits of a run, then weights; element 2 r + e
  float o[kRowTiles][4 * kDim / 8];  // weighted sums
  float l[kRowTiles][4];             // sums of the weights, as a product leaves them: each twice
  // With a maximum: what the weights are relative to, and which rows (bit 2 m + r) have 0.
  float m[kRowTiles][2];
  uint32_t plain_rows;

  __device__ __forceinline__ void run() {
    for (uint32_t turn = 0;; ++turn) {
      const uint32_t slot = turn % kItems;
      block::wait(places.item_there(slot), turn / kItems & 1);
      const WorkItem& work = shared.items[slot];
      if (work.num_runs == kEnd) return;
      attend(work, slot);
      release(places.item_free(slot));
    }
  }

 private:
  __device__ __forceinline__ void release(uint32_t barrier) const {
    __syncwarp();
    if (lane == 0) block::arrive(barrier);
  }
  __device__ __forceinline__ int32_t first_token() const { return warp * kWarpTokens; }
  __device__ __forceinline__ int32_t head_of(const WorkItem& work) const {
    return work.kv_head * kGroup + lane / 4;
  }

  __device__ __forceinline__ void attend(const WorkItem& work, uint32_t slot) {
    constexpr uint32_t kAllRows = (1u << 2 * kRowTiles) - 1;
    uint8_t& kept = shared.plain_rows[slot][warp][lane];
    plain_rows = work.follows ? kept : kAllRows;
    const bool has_rows = first_token() < work.tile.num_tokens;
    if (!has_rows || (work.follows && __all_sync(~0u, plain_rows == kAllRows)))
      return look_on(work);
    const float sink =
        p.sinks == nullptr ? -INFINITY : __ldg(p.sinks + head_of(work)) * AttendParams::kLog2E;
    load_queries(work);
    if (work.follows) {
      pass<true>(work, sink);
    } else {
      pass<false>(work, sink);
      find_plain_rows();
      kept = static_cast<uint8_t>(plain_rows);
      if (__any_sync(~0u, plain_rows != kAllRows)) {
        if (lane == 0) shared.must_follow[slot] = 1;
        return;
      }
    }
    write(work, shared.page_missing[slot] != 0);
  }
  // Calls use(place in shared memory) with the next stage when it is there, and releases it. The
  // stage behind it is asked for first: the answer takes as long as some products.
  template <typename Use>
  __device__ __forceinline__ void in_stage(const Use& use) {
    if (!is_next_there) block::wait(places.keys_there(next.stage), next.phase);
    const int stage = next.stage;
    next.advance();
    is_next_there = block::has_ended(places.keys_there(next.stage), next.phase);
    use(places.stage(stage));
    release(places.keys_free(stage));
  }
  // For a warp that has nothing to do with an item.
  __device__ __forceinline__ void look_on(const WorkItem& work) {
    const int32_t num_stages = work.num_stages();
    for (int32_t i = 0; i < num_stages; ++i) in_stage([](uint32_t) {});
  }

  // Queries as the first operand of mma. Rows without a token are zeros.
  template <typename Pair>
  __device__ __forceinline__ void load_queries(const WorkItem& work, const Pair& pair_at) {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int32_t token = first_token() + 2 * i + r;
        const bool is_there = token < work.tile.num_tokens;
        const int64_t row =
            static_cast<int64_t>(work.tile.first_token + (is_there ? token : 0)) * p.to.num_heads +
            head_of(work);
        const int64_t at = row * (kDim / 2) + lane % 4;
#pragma unroll
        for (int part = 0; part < kDim / 8; ++part) {
          const uint32_t pair = pair_at(at + 4 * part);
          q[i][part / 2][part % 2 * 2 + r] = is_there ? pair : 0;
        }
      }
    }
  }
  __device__ __forceinline__ void load_queries(const WorkItem& work) {
    if (p.is_q_staged) {
      const auto* pairs = reinterpret_cast<const uint32_t*>(p.q);
      load_queries(work, [&](int64_t at) { return __ldcg(pairs + at); });
    } else {
      const auto* pairs = reinterpret_cast<const float2*>(p.q);
      load_queries(work, [&](int64_t at) {
        const float2 x = __ldcg(pairs + at);
        return pack_bf16(x.x * p.scale_log2, x.y * p.scale_log2);
      });
    }
  }

  // Hides keys that a row does not see from the logits of the run that begins at first_key. Rows
  // without a token see what the last token sees.
  __device__ __forceinline__ void hide(const WorkItem& work, float (&of_run)[kRowTiles][2][4],
                                       int32_t first_key) const {
    const int32_t position = work.tile.first_position + first_token();
    const int32_t of_lane = first_key + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int32_t of_row = min(position + 2 * i + r, last_key_of(work.tile));
        const int32_t last = of_row - of_lane;
        const int32_t first = p.tiles.window > 0 ? last - p.tiles.window + 1 : -kRun;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (8 * n + e > last || 8 * n + e < first) of_run[i][n][2 * r + e] = -INFINITY;
        }
      }
    }
  }

  // Raises the maxima of rows whose logits require it, and scales the sums so far.
  __device__ __forceinline__ void follow(const float (&of_run)[kRowTiles][2][4]) {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float most = fmaxf(fmaxf(of_run[i][0][2 * r], of_run[i][0][2 * r + 1]),
                           fmaxf(of_run[i][1][2 * r], of_run[i][1][2 * r + 1]));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        const bool keeps = (plain_rows >> (2 * i + r) & 1) != 0 || most <= m[i][r] + kSlack;
        const float raised = keeps ? m[i][r] : most;
        const float scale = power_of_two(m[i][r] - raised);
        m[i][r] = raised;
        l[i][2 * r] *= scale;
        l[i][2 * r + 1] *= scale;
#pragma unroll
        for (int j = 0; j < kDim / 8; ++j) {
          o[i][4 * j + 2 * r] *= scale;
          o[i][4 * j + 2 * r + 1] *= scale;
        }
      }
    }
  }

  // One run: this lane's places in its keys and values are `k` and `v`; `key`: its first.
  template <bool kFollows, bool kHides>
  __device__ __forceinline__ void step(const WorkItem& work, uint32_t k, uint32_t v, int32_t key) {
#pragma unroll
    for (int part = 0; part < kSteps; ++part) {
      uint32_t keys[4];
      load_matrices(k ^ part * 32u, keys);
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          if (part == 0)
            mma_first(s[i][n], q[i][part], keys[2 * n], keys[2 * n + 1]);
          else
            mma(s[i][n], q[i][part], keys[2 * n], keys[2 * n + 1]);
        }
      }
    }
    if constexpr (kHides) hide(work, s, key);
    if constexpr (kFollows) follow(s);
    uint32_t weights[kRowTiles][4];
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        float(&four)[4] = s[i][n];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          four[c] = power_of_two(kFollows ? four[c] - m[i][c / 2] : four[c]);
        }
        weights[i][2 * n] = pack_bf16(four[0], four[1]);
        weights[i][2 * n + 1] = pack_bf16(four[2], four[3]);
      }
    }
    constexpr uint32_t kOnes = 0x3F803F80;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) mma(l[i], weights[i], kOnes, kOnes);
#pragma unroll
    for (int part = 0; part < kSteps; ++part) {
      uint32_t values[4];
      load_transposed(v ^ part * 32u, values);
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          mma(reinterpret_cast<float(&)[4]>(o[i][4 * (2 * part + n)]), weights[i], values[2 * n],
              values[2 * n + 1]);
        }
      }
    }
  }

  // Over all keys of the item.
  template <bool kFollows>
  __device__ __forceinline__ void pass(const WorkItem& work, float sink) {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const bool is_plain = !kFollows || (plain_rows >> (2 * i + r) & 1) != 0;
        m[i][r] = is_plain ? 0.0f : fmaxf(sink, kLowest);
        l[i][2 * r] = l[i][2 * r + 1] = power_of_two(sink - m[i][r]);
      }
#pragma unroll
      for (int c = 0; c < 4 * kDim / 8; ++c) o[i][c] = 0.0f;
    }
    // Lane 8 i + r reads row r of matrix i: of keys the runs' two halves, each with two chunks of
    // the dimensions; of values the dimensions' two chunks, each with the two halves.
    const int row = lane % 8;
    const auto of_keys =
        static_cast<uint32_t>((lane / 16 * 8 + row) * kRowBytes + (lane / 8 % 2 ^ row) * 16);
    const auto of_values = static_cast<uint32_t>(kValuesAt + (lane / 8 % 2 * 8 + row) * kRowBytes +
                                                 (lane / 16 ^ row) * 16);
    const int32_t position = work.tile.first_position + first_token();
    // Stages from open_from to open_to hold keys that all of the warp's rows see.
    const int32_t least = p.tiles.window == 0 ? 0 : position + kWarpTokens - p.tiles.window;
    const int32_t open_from = (max(least - work.first_key, 0) + kStageKeys - 1) / kStageKeys;
    const int32_t open_to = (position + 1 - work.first_key) / kStageKeys;
    const int32_t num_stages = work.num_stages();
    const auto hidden_stages = [&](int32_t begin, int32_t end) {
#pragma unroll 1
      for (int32_t i = begin; i < end; ++i)
        in_stage([&](uint32_t at) {
          int32_t key = work.first_key + i * kStageKeys;
#pragma unroll 1
          for (int r = 0; r < kStageRuns; ++r, at += kRunBytes, key += kRun) {
            if (key > position + kWarpTokens - 1 || key + kRun <= least - kWarpTokens + 1) continue;
            if (kFollows || key < least || key + kRun - 1 > position) {
              step<kFollows, true>(work, at + of_keys, at + of_values, key);
            } else {
              step<kFollows, false>(work, at + of_keys, at + of_values, key);
            }
          }
        });
    };
    const int32_t open_end = min(open_to, num_stages), open_begin = min(open_from, open_end);
    hidden_stages(0, open_begin);
#pragma unroll 1
    for (int32_t i = open_begin; i < open_end; ++i)
      in_stage([&](uint32_t at) {
#pragma unroll C::kUnrolled
        for (uint32_t r = 0; r < kStageRuns; ++r)
          step<kFollows, false>(work, at + of_keys + r * kRunBytes, at + of_values + r * kRunBytes,
                                0);
      });
    hidden_stages(open_end, num_stages);
  }

  // Finds the rows whose weights may be relative to 0.
  __device__ __forceinline__ void find_plain_rows() {
    plain_rows = 0;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const bool is_plain = l[i][2 * r] >= kPlainLeast && l[i][2 * r] <= kPlainMost;
        plain_rows |= static_cast<uint32_t>(is_plain) << (2 * i + r);
      }
    }
  }

  __device__ __forceinline__ void write(const WorkItem& work, bool page_missing) const {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int32_t token = first_token() + 2 * i + r;
        if (token >= work.tile.num_tokens) continue;
        const float factor =
            page_missing ? __int_as_float(0x7FC00000) : __fdividef(1.0f, l[i][2 * r]);
        write_answer(p.to, work.tile.first_token + token, head_of(work), o[i], r, factor, lane);
      }
    }
  }
};

template <typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    attend_mma(const __grid_constant__ MmaParams p) {
  extern __shared__ __align__(kRowBytes) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared<C>*>(memory);
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = __shfl_sync(~0u, thread / 32, 0), lane = thread % 32;
  const Places<C> places(shared);
  if (thread == 0) places.init_barriers();
  if (thread < kItems) shared.must_follow[thread] = 0;
  __syncthreads();
  wait_for_previous();
  launch_next();
  if (warp == C::kWarps) {
    Producer<C>{.p = p, .shared = shared, .places = places, .lane = lane}.run();
  } else {
    Rows<C> rows{.p = p, .shared = shared, .places = places, .warp = warp, .lane = lane};
    rows.run();
  }
}

// ---- The launch ---------------------------------------------------------------------------------
// Predicted time of a launch, in units of that of the row that splits the keys for a token of a KV
// head. Measured on an H100 (132 SMs) at depths of 1,024 to 30,000: a wave of items takes as long,
// however few, but two of a short cut's blocks on an SM take longer than one.
template <typename C>
double time_of(const AttendParams& params) {
  constexpr double kSms = 132;
  const int32_t seqs = std::max(1, params.batch.num_seqs);
  const int32_t of_seq = ceil_div(std::max(1, params.batch.num_tokens), seqs);
  const double items =
      static_cast<double>(seqs) * ceil_div(of_seq, C::kTileTokens) * params.num_kv_heads;
  if (params.window > 0) return C::kBlocks == 1 ? kNeverUs : std::max(800.0, 4.5 * items);
  if (C::kBlocks == 1) return std::max(1500.0, 14.2 * items);
  // Of a sequence's last tile, few warps may have tokens.
  const double of_tile = std::min(of_seq, C::kTileTokens);
  return std::max(items <= kSms ? 860.0 : 1500.0, (0.9 + 0.33 * of_tile) * items);
}

template <typename C>
void launch(const AttendParams& params, const MmaParams& p) {
  constexpr const char* kRow = "attend_bf16_ordered_mma_cuda";
  const unsigned num_blocks = launch_plan<C::kTileTokens>(kRow, params, p.tiles, C::kBlocks);
  launch_kernel(kRow, attend_mma<C>, p,
                {.grid = dim3(num_blocks),
                 .num_threads = C::kThreads,
                 .shared_bytes = sizeof(Shared<C>),
                 .programmatic = true,
                 .leaves_l1 = params.launch.l1 == L1Form::kL1},
                launch_stream(params.launch.stream));
}

}  // namespace

const char* attend_prefill_refuses(const AttendParams& params) {
  if (params.is_block) return "the tokens are a block";
  const KvLayer& kv = params.kv;
  if (params.head_dim != kDim) return "head size is not 64";
  if (params.num_heads != kGroup * params.num_kv_heads) return "not 8 query heads for a KV head";
  if (kv.dtype != DType::kBF16) return "the cache is not BF16";
  if (kv.page_tokens % kRun != 0) return "pages do not hold a multiple of 16 tokens";
  if (kv.page_stride_bytes % kRowBytes != 0) return "pages are not a multiple of 128 bytes apart";
  return nullptr;
}

double attend_ordered_mma_cost(const AttendParams& params) {
  return std::min(time_of<LongCut>(params), time_of<ShortCut>(params)) /
         (std::max(1.0, static_cast<double>(params.batch.num_tokens)) * params.num_kv_heads);
}

uint64_t attend_prefill_workspace(const AttendParams& params) {
  Scratch scratch(nullptr);
  place_tiles(params, scratch);
  return scratch.bytes();
}

void attend_bf16_ordered_mma_cuda(const AttendParams& params) {
  const KvLayer& kv = params.kv;
  if (params.batch.num_tokens == 0) return;
  check_aligned(params);
  const auto runs_of_page = static_cast<uint32_t>(kv.page_tokens / kRun);
  CHECK(uint64_t{runs_of_page} * runs_of_page * static_cast<uint32_t>(kv.table_stride) < uint64_t{1}
                                                                                             << 32,
        "attend: the product of a page's runs and a sequence's runs passes 2^32");
  Scratch scratch(params.launch.workspace);
  const MmaParams p{.tiles = place_tiles(params, scratch),
                    .to = place_answers(params),
                    .q = params.q,
                    .k = kv.k,
                    .v = kv.v,
                    .sinks = params.sinks,
                    .page_table = kv.page_table,
                    .scale_log2 = params.q_factor(),
                    .page_rows = static_cast<int32_t>(kv.page_stride_bytes / kRowBytes),
                    .table_stride = kv.table_stride,
                    .page_tokens = kv.page_tokens,
                    .page_magic = ((uint32_t{1} << 31) - 1) / runs_of_page + 1,
                    .num_kv_heads = params.num_kv_heads,
                    .is_q_staged = params.forms.q == QForm::kBf16Staged};
  if (time_of<LongCut>(params) < time_of<ShortCut>(params)) {
    launch<LongCut>(params, p);
  } else {
    launch<ShortCut>(params, p);
  }
}

}  // namespace moxie
