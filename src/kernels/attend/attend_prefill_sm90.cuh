// What the kernels of prefill attention by wgmma are made of: parameters, the block's shared
// memory, the producer that copies keys, values and queries, and the softmax of a warpgroup's rows.
#pragma once

#include <type_traits>

#include "kernels/attend/attend.h"
#include "kernels/attend/attend_tiles.cuh"
#include "kernels/attend/attend_wgmma_sm90.cuh"
#include "kernels/step.h"
#include "kernels/tensor_map_sm90.h"

namespace moxie::attend_wgmma {

using namespace attend_tiles;

constexpr int kWarpgroups = 3;  // warpgroups that multiply
constexpr int kRows = 64;       // of a warpgroup; a row is one query head of a token
constexpr int kTokens = kRows / kGroup;
constexpr int kTileTokens = kWarpgroups * kTokens;
constexpr int kConverters = 3;  // warps; each converts the queries of a warpgroup
static_assert(kConverters == kWarpgroups);
constexpr int kItems = 2;  // items being copied or in use
constexpr int kThreads = 128 * (kWarpgroups + 1);
constexpr int kOwnBarrier = 1;    // + warpgroup: barrier of its own warps; 0 is __syncthreads
constexpr int kOwnThreads = 128;  // of a warpgroup
constexpr int kRowBytes = 2 * kDim;
constexpr float kLog2E = AttendParams::kLog2E;
// For rows without a maximum: the greatest logit of the first block, sink included, must be in
// kPlainLeast .. kPlainMost, and the sum of weights may grow to kPlainSum. Weights that underflow
// are then below 2^-90 of the sum.
constexpr float kPlainLeast = -32.0f, kPlainMost = 64.0f, kPlainSum = 0x1p100f;
static_assert(kRowBytes == 128, "a row of a tile is one row of the swizzle");

struct PrefillParams {
  CUtensorMap k_runs, v_runs;  // boxes of kRun keys, over the whole pool from page 0 on
  CUtensorMap q_tokens;        // boxes of kTileTokens tokens and a KV head; BF16 in tiles' order
  const float* sinks;
  const int32_t* page_table;
  TileParams tiles;  // of kTileTokens
  AnswerPlace to;
  float scale_log2;   // logits in powers of two
  int32_t page_rows;  // rows of a head's key from a page to the next
  int32_t table_stride, page_tokens, num_kv_heads;
  bool is_q_staged;  // BF16, scaled as the logits
};

// The work of a block at a time: a tile of tokens and a KV head. Block i of keys begins at key
// first_key + i * kKeys. No token sees the keys before seen_from; they are less than a run.
struct WorkItem {
  TokenTile tile;
  int32_t kv_head, seen_from, first_key, num_blocks;  // num_blocks 0: no more work
};

// Blocks of keys and values in E4M3 on their way to the converters.
template <int kKeys>
struct Codes {
  static constexpr int kStages = 2;
  alignas(128) uint8_t k[kStages][kKeys * kDim];
  alignas(128) uint8_t v[kStages][kKeys * kDim];
  int32_t page_missing[kStages];
  uint64_t there[kStages], free[kStages];
};
struct NoCodes {};

// kKeys: keys of one block of keys. kIsE4m3: of the cache; otherwise it is BF16.
template <int kKeys, bool kIsE4m3>
struct Shared {
  // Blocks being copied (E4M3: widened) or in use.
  static constexpr int kStages = (kKeys == 128 ? 4 : 5) - (kIsE4m3 ? 1 : 0);
  alignas(1024) uint16_t q[kItems][kWarpgroups][kRows * kDim];
  alignas(1024) uint16_t k[kStages][kKeys * kDim];
  alignas(1024) uint16_t v[kStages][kKeys * kDim];
  alignas(128) float q_raw[kTileTokens * kGroup * kDim];
  std::conditional_t<kIsE4m3, Codes<kKeys>, NoCodes> codes;
  WorkItem items[kItems];
  int32_t page_missing[kStages];
  // Barriers: `there`: the copy has arrived; `free`: the buffer may be written again.
  uint64_t keys_there[kStages], keys_free[kStages];
  uint64_t item_there[kItems], item_free[kItems];
  uint64_t raw_there, raw_free;

  __device__ __forceinline__ void init_barriers(bool is_q_staged) {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(&keys_there[i], kIsE4m3 ? kConverters : 1);
      init_barrier(&keys_free[i], 4 * kWarpgroups);
    }
    for (int i = 0; i < kItems; ++i) {
      init_barrier(&item_there[i], is_q_staged ? 1 : kConverters);
      init_barrier(&item_free[i], 4 * kWarpgroups);
    }
    init_barrier(&raw_there, 1);
    init_barrier(&raw_free, kConverters);
    if constexpr (kIsE4m3) {
      for (int i = 0; i < codes.kStages; ++i) {
        init_barrier(&codes.there[i], 1);
        init_barrier(&codes.free[i], kConverters);
      }
    }
  }
};
constexpr size_t kSharedMemory = 227 * 1024;  // of a block, at most
static_assert(sizeof(Shared<128, false>) <= kSharedMemory &&
              sizeof(Shared<96, false>) <= kSharedMemory &&
              sizeof(Shared<128, true>) <= kSharedMemory &&
              sizeof(Shared<96, true>) <= kSharedMemory);

// ---- The producer -------------------------------------------------------------------------------
// One warp. It takes items in the order of the plan, one head after another, so that blocks that
// work at the same time read the same keys. kInOrder: blocks of keys begin at multiples of kKeys;
// otherwise at the run of the first key that the tile sees.
template <int kKeys, bool kInOrder, bool kIsE4m3>
struct Producer {
  using S = Shared<kKeys, kIsE4m3>;
  const PrefillParams& p;
  S& shared;
  int lane;
  int32_t num_filled = 0;  // stages, over all items

  __device__ __forceinline__ void run() {
    const int32_t num_tiles = __ldcg(&p.tiles.plan->num_tiles);
    const int32_t num_items = num_tiles * p.num_kv_heads;
    auto item = static_cast<int32_t>(blockIdx.x);
    for (uint32_t turn = 0;; ++turn) {
      int32_t next = 0;
      if (lane == 0)
        next = atomicAdd(&p.tiles.plan->next_item, 1) + static_cast<int32_t>(gridDim.x);
      WorkItem work = {};
      if (item < num_items) {
        work.kv_head = item / num_tiles;
        work.tile = p.tiles.tile(item - work.kv_head * num_tiles);
        work.seen_from = p.tiles.first_seen(work.tile.first_position);
        constexpr int32_t kAligned = kInOrder ? kKeys : kRun;
        work.first_key = work.seen_from / kAligned * kAligned;
        work.num_blocks = (last_key_of(work.tile) - work.first_key) / kKeys + 1;
      }
      hand_over(work, turn);
      if (work.num_blocks == 0) return;
      bring_keys(work);
      item = __shfl_sync(~0u, next, 0);
    }
  }

 private:
  // Hands over the item and its queries: staged queries to the warpgroups, others to the
  // converters.
  __device__ __forceinline__ void hand_over(const WorkItem& work, uint32_t turn) {
    const uint32_t slot = turn % kItems;
    wait_barrier(&shared.item_free[slot], (turn / kItems & 1) ^ 1);
    if (!p.is_q_staged) wait_barrier(&shared.raw_free, (turn & 1) ^ 1);
    if (lane > 0) return;
    shared.items[slot] = work;
    const bool is_work = work.num_blocks > 0;
    if (p.is_q_staged) {
      expect_bytes(&shared.item_there[slot], is_work ? sizeof(shared.q[slot]) : 0);
      if (is_work) {
        copy_box(shared.q[slot], &p.q_tokens, 0, kGroup * work.kv_head, work.tile.first_token,
                 &shared.item_there[slot]);
      }
    } else {
      expect_bytes(&shared.raw_there, is_work ? sizeof(shared.q_raw) : 0);
      if (is_work) {
        copy_box(shared.q_raw, &p.q_tokens, 0, 2 * work.kv_head, work.tile.first_token,
                 &shared.raw_there);
      }
    }
  }

  // Where the keys and values of a block are copied to.
  struct Stage {
    std::byte *k, *v;
    int32_t* page_missing;
    uint64_t *there, *free;
    uint32_t phase;
  };
  __device__ __forceinline__ Stage stage_of(int32_t num) const {
    const auto in = [&](auto& stages, uint64_t* there, uint64_t* free, int32_t count) {
      const int32_t i = num % count;
      return Stage{reinterpret_cast<std::byte*>(stages.k[i]),
                   reinterpret_cast<std::byte*>(stages.v[i]),
                   &stages.page_missing[i],
                   &there[i],
                   &free[i],
                   static_cast<uint32_t>(num / count & 1)};
    };
    if constexpr (kIsE4m3) {
      return in(shared.codes, shared.codes.there, shared.codes.free, shared.codes.kStages);
    } else {
      return in(shared, shared.keys_there, shared.keys_free, S::kStages);
    }
  }

  // Lane i copies run i of a block's keys, lane kRuns + i run i of its values. Runs that no token
  // sees are skipped.
  __device__ __forceinline__ void bring_keys(const WorkItem& work) {
    constexpr int kRuns = kKeys / kRun, kNone = -1, kRunBytes = kRun * kDim * (kIsE4m3 ? 1 : 2);
    constexpr int kHeld = 32 / kRuns;  // blocks whose pages are looked up together
    static_assert(kHeld >= 2);
    const int32_t* pages = p.page_table + static_cast<int64_t>(work.tile.seq) * p.table_stride;
    const int32_t last_key = last_key_of(work.tile);
    const int run = lane % kRuns;
    const bool is_value = lane >= kRuns;
    int32_t row = 0, is_missing = 0;  // for run `lane` of the runs looked up
    for (int32_t block = 0; block < work.num_blocks; ++block, ++num_filled) {
      const int32_t held = block % kHeld * kRuns;
      if (held == 0) {
        const int32_t key = work.first_key + block * kKeys + lane * kRun;
        const int32_t page_idx = key / p.page_tokens;
        const bool is_seen = key <= last_key && (!kInOrder || key + kRun > work.seen_from);
        const int32_t page = is_seen ? __ldcg(pages + page_idx) : 0;
        is_missing = page < 0;
        row = page < 0 || !is_seen ? kNone
                                   : page * p.page_rows + work.kv_head * p.page_tokens + key -
                                         page_idx * p.page_tokens;
      }
      const Stage to = stage_of(num_filled);
      wait_barrier(to.free, to.phase ^ 1);
      const uint32_t missing = __ballot_sync(~0u, is_missing != 0) >> held;
      const int32_t from = __shfl_sync(~0u, row, held + run);
      const bool is_mine = lane < 2 * kRuns && from != kNone;
      const auto num_copies = static_cast<uint32_t>(__popc(__ballot_sync(~0u, is_mine)));
      if (lane == 0) {
        *to.page_missing = (missing & ((1u << kRuns) - 1)) != 0;
        expect_bytes(to.there, num_copies * kRunBytes);
      }
      __syncwarp();
      if (is_mine) {
        copy_box((is_value ? to.v : to.k) + run * kRunBytes, is_value ? &p.v_runs : &p.k_runs, 0,
                 from, to.there);
      }
    }
  }
};

// ---- The converters -----------------------------------------------------------------------------
// Warps that turn what was copied into the tiles that the products read: queries into BF16, scaled
// as the logits, each warp those of a warpgroup (which would wait for the stores of its last item);
// keys and values in E4M3 into BF16, all warps those of a block.
template <int kKeys, bool kIsE4m3>
struct Converter {
  using S = Shared<kKeys, kIsE4m3>;
  const PrefillParams& p;
  S& shared;
  int idx, lane;
  int32_t num_widened = 0;  // blocks of keys, over all items

  __device__ __forceinline__ void run() {
    if (!kIsE4m3 && p.is_q_staged) return;
    for (uint32_t turn = 0;; ++turn) {
      const uint32_t slot = turn % kItems;
      if (p.is_q_staged) {
        wait_barrier(&shared.item_there[slot], turn / kItems & 1);
      } else {
        wait_barrier(&shared.raw_there, turn & 1);
      }
      const bool is_end = shared.items[slot].num_blocks == 0;
      if (!p.is_q_staged) convert_queries(slot, is_end);
      if (is_end) return;
      if constexpr (kIsE4m3) widen_keys(shared.items[slot]);
    }
  }

 private:
  __device__ __forceinline__ void convert_queries(uint32_t slot, bool is_end) {
    const float* from = shared.q_raw + idx * kRows * kDim;
    uint16_t* to = shared.q[slot][idx];
    if (!is_end) {
#pragma unroll 2
      for (int at = lane; at < kRows * kDim / 8; at += 32) {
        const int row = at / 8, chunk = at % 8;
        const float4 x = *reinterpret_cast<const float4*>(from + at * 8);
        const float4 y = *reinterpret_cast<const float4*>(from + at * 8 + 4);
        uint4 packed;
        packed.x = pack_bf16(x.x * p.scale_log2, x.y * p.scale_log2);
        packed.y = pack_bf16(x.z * p.scale_log2, x.w * p.scale_log2);
        packed.z = pack_bf16(y.x * p.scale_log2, y.y * p.scale_log2);
        packed.w = pack_bf16(y.z * p.scale_log2, y.w * p.scale_log2);
        *reinterpret_cast<uint4*>(to + row * kDim + (chunk ^ row % 8) * 8) = packed;
      }
      fence_bulk_copies();
    }
    __syncwarp();
    if (lane == 0) {
      arrive_barrier(&shared.raw_free);
      arrive_barrier(&shared.item_there[slot]);
    }
  }

  // Values of keys that no token sees become zeros: their weights are zero, and they may be NaN.
  __device__ __forceinline__ void widen_keys(const WorkItem& item) {
    constexpr int kParts = 4, kTileParts = kKeys * kParts;  // of 16 codes; of a row, of a tile
    const int32_t num_blocks = item.num_blocks;
    int32_t first_seen = item.seen_from - item.first_key;  // rows of the block
    int32_t last_seen = last_key_of(item.tile) - item.first_key;
    for (int32_t block = 0; block < num_blocks; ++block, ++num_widened) {
      auto& codes = shared.codes;
      const int from = num_widened % codes.kStages, to = num_widened % S::kStages;
      wait_barrier(&codes.there[from], static_cast<uint32_t>(num_widened / codes.kStages & 1));
      wait_barrier(&shared.keys_free[to], static_cast<uint32_t>(num_widened / S::kStages & 1) ^ 1);
      for (int at = 32 * idx + lane; at < 2 * kTileParts; at += 32 * kConverters) {
        const bool is_value = at >= kTileParts;
        const int part = is_value ? at - kTileParts : at, row = part / kParts;
        uint4 read =
            *reinterpret_cast<const uint4*>((is_value ? codes.v[from] : codes.k[from]) + 16 * part);
        if (is_value && (row < first_seen || row > last_seen)) read = {};
        uint16_t* tile_row = (is_value ? shared.v[to] : shared.k[to]) + row * kDim;
        const int chunk = part % kParts * 2;
        store_widened(tile_row + (chunk ^ row % 8) * 8, read.x, read.y);
        store_widened(tile_row + (chunk + 1 ^ row % 8) * 8, read.z, read.w);
      }
      fence_bulk_copies();
      __syncwarp();
      if (lane == 0) {
        if (idx == 0) shared.page_missing[to] = codes.page_missing[from];
        arrive_barrier(&codes.free[from]);
        arrive_barrier(&shared.keys_there[to]);
      }
      first_seen -= kKeys, last_seen -= kKeys;
    }
  }
  static __device__ __forceinline__ void store_widened(uint16_t* to, uint32_t x, uint32_t y) {
    uint32_t pairs[4];  // FP16
    widen_e4m3(x, pairs[0], pairs[1]);
    widen_e4m3(y, pairs[2], pairs[3]);
    uint4 packed;
    packed.x = half_to_bf16(pairs[0]), packed.y = half_to_bf16(pairs[1]);
    packed.z = half_to_bf16(pairs[2]), packed.w = half_to_bf16(pairs[3]);
    *reinterpret_cast<uint4*>(to) = packed;
  }
  static __device__ __forceinline__ uint32_t half_to_bf16(uint32_t pair) {
    float low, high;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
        : "=f"(low), "=f"(high)
        : "r"(pair));
    return pack_bf16(low, high);
  }
};

// ---- A warpgroup's rows -------------------------------------------------------------------------
// The two rows that a lane shares with three others: r = 0 is row lane / 4 of the warp's 16, r = 1
// row lane / 4 + 8. Element i of a product's fragment has row (i / 2) % 2 and column
// 8 * (i / 4) + 2 * (lane % 4) + i % 2.
//
// kInOrder: a row's weights and sums depend on its own logits alone, and a block of which the row
// sees nothing leaves them as they are, to the bit: the maximum begins as the sink, rises only
// where this row's own logits require it, and is never left out.
template <int kKeys, bool kInOrder>
struct Softmax {
  float m[2];      // weights are relative to it
  float l[2];      // sum of this lane's weights
  float scale[2];  // factor for the sums so far, if must_scale
  bool must_scale;
  bool is_plain;  // m is 0 in all of the warp's rows

  // Hides the keys after the positions of the two tokens. If the first token is the tile's last,
  // the second sees the same keys as the first: a key that was not copied would change the weights
  // of both, and so their rounding.
  static __device__ __forceinline__ void hide_after(float (&s)[kKeys / 2], int32_t first_key,
                                                    int32_t position, int32_t last_position,
                                                    int lane) {
    const int32_t of_lane = first_key + lane % 4 * 2;
    const int32_t last[2] = {position - of_lane, min(position + 1, last_position) - of_lane};
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      if (i / 4 * 8 + i % 2 > last[i / 2 % 2]) s[i] = -INFINITY;
    }
  }
  // Hides the keys before the token's window. Unless kInOrder, they are in the first block alone:
  // the first keys of its run, and as many keys as the token is behind the tile's first token.
  static __device__ __forceinline__ void hide_before(float (&s)[kKeys / 2], int32_t first_key,
                                                     int32_t position, int32_t window, int lane) {
    constexpr int kBefore = kInOrder ? kKeys : (kTileTokens + kRun + 7) / 8 * 8;
    static_assert(kBefore <= kKeys);
    const int32_t last = position - window - first_key - lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kBefore / 2; ++i) {
      if (i / 4 * 8 + i % 2 - i / 2 % 2 <= last) s[i] = -INFINITY;
    }
  }

  // Adds the first block. The sink counts as a key that the row begins with; -INFINITY: no sink.
  __device__ __forceinline__ void begin(float (&s)[kKeys / 2], float sink, int lane) {
    if constexpr (kInOrder) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        m[r] = fmaxf(sink, kLowest);
        l[r] = lane % 4 == 0 ? power_of_two(sink - m[r]) : 0.0f;
      }
      add(s);
      must_scale = false;  // there are no sums to scale yet
      return;
    }
    float most[2];
    find_most(s, most);
#pragma unroll
    for (int r = 0; r < 2; ++r) most[r] = fmaxf(fmaxf(most[r], sink), kLowest);
    is_plain = __all_sync(
        ~0u, fminf(most[0], most[1]) >= kPlainLeast && fmaxf(most[0], most[1]) <= kPlainMost);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      m[r] = is_plain ? 0.0f : most[r];
      l[r] = lane % 4 == 0 ? power_of_two(sink - m[r]) : 0.0f;
    }
    must_scale = false;
    weigh<false>(s);
  }

  // Adds another block without a maximum. False: its logits are out of range, and nothing was
  // added.
  __device__ __forceinline__ bool add_plain(float (&s)[kKeys / 2]) {
    const float before[2] = {l[0], l[1]};
    weigh<true>(s);
    if (!__any_sync(~0u, fmaxf(l[0], l[1]) > kPlainSum)) return true;
    l[0] = before[0], l[1] = before[1];
    return false;
  }

  // Adds another block, with a maximum.
  __device__ __forceinline__ void add(float (&s)[kKeys / 2]) {
    is_plain = false;
    float most[2];
    find_most(s, most);
    must_scale = __any_sync(~0u, most[0] > m[0] + kSlack || most[1] > m[1] + kSlack);
    if (must_scale) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const bool keeps = kInOrder && most[r] <= m[r] + kSlack;
        const float raised = keeps ? m[r] : fmaxf(m[r], most[r]);
        scale[r] = power_of_two(m[r] - raised);
        m[r] = raised;
        l[r] *= scale[r];
      }
    }
    weigh<false>(s);
  }

  __device__ __forceinline__ void scale_sums(float (&o)[kDim / 2]) const {
    if (!must_scale) return;
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) o[i] *= scale[i / 2 % 2];
  }

 private:
  static __device__ __forceinline__ void find_most(const float (&s)[kKeys / 2], float (&most)[2]) {
    most[0] = s[0], most[1] = s[2];
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) most[i / 2 % 2] = fmaxf(most[i / 2 % 2], s[i]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 1));
      most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 2));
    }
  }
  // Turns logits into weights.
  template <bool kPlain>
  __device__ __forceinline__ void weigh(float (&s)[kKeys / 2]) {
    float more[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      const int r = i / 2 % 2;
      s[i] = power_of_two(kPlain ? s[i] : s[i] - m[r]);
      if (i % 2 == 0) {
        l[r] += s[i];
      } else {
        more[r] += s[i];
      }
    }
    l[0] += more[0];
    l[1] += more[1];
  }
};

}  // namespace moxie::attend_wgmma
