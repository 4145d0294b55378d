// What the kernel of attention by split keys is made of: the parameters, a block's tile of tokens,
// a warp's ring of keys and values, its queries and its sums.
#pragma once

#include "kernels/attend/attend_split_formats.cuh"
#include "kernels/gemm/staged.cuh"
#include "kernels/step.h"

namespace moxie::attend_split {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kMaxSplits = 16;       // clusters above 8 blocks are tried if the device takes them
constexpr int32_t kFewKeys = 512;    // the most keys of a small window
constexpr int32_t kFewTokens = 8;    // the most tokens of a sequence that count as few
constexpr int kRun = 16;             // keys that are contiguous if pages hold a multiple of kRun
constexpr int kKeysOfWarp = 32;      // keys of a warp before another block joins
constexpr int32_t kNoKey = -2;       // in place of a page
constexpr float kLowest = -3.0e38f;  // the maximum of no keys: finite, so that no difference is NaN
constexpr float kLog2E = 1.4426950408889634f;

struct SplitParams {
  const float* q;
  const std::byte* k;
  const std::byte* v;
  const float* sinks;
  float* a;
  const int32_t* positions;
  const int32_t* seq_idx;
  const int32_t* row_offsets;
  const int32_t* page_table;
  float scale_log2;  // logits in powers of two
  uint32_t page_stride_bytes;
  uint32_t page_magic, page_mask;  // key / page_tokens: see page_of
  int32_t num_tokens, num_seqs;
  int32_t num_tiles;  // of tokens; at most, if there are several sequences
  int32_t in_block;   // AttendParams::is_block: the launch's tokens; else 0
  int32_t table_stride, page_tokens;
  int32_t num_heads, num_kv_heads, group, window;
  uint32_t group_magic;   // row / group = row * group_magic >> 16, for rows below 32
  int32_t tile_tokens;    // tokens of a block, of one sequence
  int32_t num_splits;     // blocks of a cluster
  int32_t num_slots;      // slots in use of a warp's ring: a warp with one tile needs one
  bool by_row;            // keys are looked up one by one: tiles begin anywhere in a page
  int32_t staged_tokens;  // capacity of `a` in rows of staged BF16; 0: F32
};

// ---- Tiles of tokens ----------------------------------------------------------------------------
struct TokenTile {
  int32_t seq, first_token, num_tokens;  // num_tokens 0: past the end
  int32_t in_launch;  // at most: tokens of the sequence before the tile in this launch
};

// Tile `tile_idx` of the batch: every sequence is cut into tiles of p.tile_tokens.
__device__ __forceinline__ TokenTile find_tile(const SplitParams& p, int32_t tile_idx, int lane) {
  const int32_t size = p.tile_tokens;
  if (size == 1) {
    return {p.num_seqs == 1 ? 0 : __ldcg(p.seq_idx + tile_idx), tile_idx, 1, tile_idx};
  }
  if (p.num_seqs == 1) {
    const int32_t first = tile_idx * size;
    return {0, first, max(0, min(size, p.num_tokens - first)), first};
  }
  int32_t num_before = 0;
  for (int32_t base = 0; base < p.num_seqs; base += 32) {
    const int32_t seq = base + lane;
    const int32_t begin = seq < p.num_seqs ? __ldcg(p.row_offsets + seq) : 0;
    const int32_t end = seq < p.num_seqs ? __ldcg(p.row_offsets + seq + 1) : 0;
    const int32_t num_tiles = (end - begin + size - 1) / size;
    int32_t sum = num_tiles;  // of lanes 0 to this one
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int32_t left = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += left;
    }
    const uint32_t reaching = __ballot_sync(~0u, num_before + sum > tile_idx);
    if (reaching != 0) {
      const int found = __ffs(static_cast<int>(reaching)) - 1;
      const int32_t in_seq = tile_idx - __shfl_sync(~0u, num_before + sum - num_tiles, found);
      const int32_t first = __shfl_sync(~0u, begin, found) + in_seq * size;
      const int32_t num_left = __shfl_sync(~0u, end, found) - first;
      return {base + found, first, min(size, num_left), in_seq * size};
    }
    num_before += __shfl_sync(~0u, sum, 31);
  }
  return {0, 0, 0, 0};
}

// The keys that a tile's tokens see.
struct SeenKeys {
  int32_t first_position = 0, last_key = -1;  // of the first token, of the last
  int32_t seen_from = 0;

  __device__ __forceinline__ int32_t num_keys() const { return last_key + 1 - seen_from; }
  // Whether all tokens see all of the `count` keys from first_key on.
  __device__ __forceinline__ bool by_all(const SplitParams& p, int32_t first_key, int count) const {
    return first_key + count - 1 <= first_position &&
           (p.window == 0 || first_key > last_key - p.window);
  }
};
__device__ __forceinline__ SeenKeys seen_keys(const SplitParams& p, const TokenTile& tile) {
  SeenKeys seen;
  if (tile.num_tokens > 0) {
    seen.first_position = __ldcg(p.positions + tile.first_token);
    seen.last_key = tile.num_tokens == 1
                        ? seen.first_position
                        : __ldcg(p.positions + tile.first_token + tile.num_tokens - 1);
  }
  if (p.window > 0) seen.seen_from = max(0, seen.first_position - p.window + 1);
  return seen;
}

// ---- A warp's keys ------------------------------------------------------------------------------
// The logical page that holds `key`. Exact while keys * page_tokens stay below 2^32.
__device__ __forceinline__ int32_t page_of(const SplitParams& p, int32_t key) {
  const auto bits = static_cast<uint32_t>(key);
  return static_cast<int32_t>(__umulhi(bits, p.page_magic) + (bits & p.page_mask));
}

// The tiles of one warp: tile i begins at key first_key + i * key_step. Copies the tiles one after
// another into the warp's ring of kSlots slots.
template <typename F, int kSlots>
struct Keys {
  static constexpr int kRuns = F::kKeys / kRun, kKeysLog = F::kKeys == 16 ? 4 : 5;
  static_assert(kRuns <= 2 && 1 << kKeysLog == F::kKeys);
  static constexpr int kChunks = F::kRowBytes / 16, kRowsAtOnce = 32 / kChunks;
  const int32_t* pages;    // of the sequence
  const std::byte *k, *v;  // of the KV head, page 0, the chunk that this lane copies
  int32_t first_key, key_step, num_tiles;
  int32_t last_key;  // the last that the block's tokens see
  int lane;
  uint32_t ring, fetch_slot, read_slot;
  int32_t num_fetched = 0;
  // Pages are looked up for as many tiles as the lanes hold, long before they are needed: a load
  // queued behind copies of keys takes as long as the copies.
  int32_t page, next_page;
  bool page_missing = false;

  __device__ __forceinline__ uint32_t after(uint32_t slot) const {
    return slot == ring + (kSlots - 1) * F::kStageBytes ? ring : slot + F::kStageBytes;
  }
  // Log2 of the lanes for each tile: a lane for each run, or for each key.
  static __device__ __forceinline__ int lanes_log(const SplitParams& p) {
    return p.by_row ? kKeysLog : kRuns - 1;
  }
  // The page for this lane. The lanes hold the pages of several tiles, from tile i on.
  __device__ __forceinline__ int32_t look_up(const SplitParams& p, int32_t i) const {
    const int log = lanes_log(p);
    const int32_t tile = i + (lane >> log), in_tile = lane & ((1 << log) - 1);
    const int32_t key = first_key + tile * key_step + (p.by_row ? in_tile : in_tile * kRun);
    return tile < num_tiles && key <= last_key ? __ldcg(pages + page_of(p, key)) : kNoKey;
  }
  __device__ __forceinline__ void start(const SplitParams& p) {
    page = look_up(p, 0);
    next_page = look_up(p, 32 >> lanes_log(p));
  }
  // Keys of earlier launches may be read before the kernel that writes this launch's keys ends. The
  // positions of a sequence are consecutive, so that at most `in_launch` keys before the tile are
  // new; of a block all tokens' are. The warp's tiles are start, start + stride, ...
  __device__ __forceinline__ int32_t num_old(const SplitParams& p, const TokenTile& tile,
                                             const SeenKeys& seen, int32_t start,
                                             int32_t stride) const {
    const int32_t old_tiles =
        max(0, seen.first_position - max(tile.in_launch, p.in_block) - seen.seen_from) / F::kKeys;
    return start < old_tiles ? min(num_tiles, (old_tiles - start - 1) / stride + 1) : 0;
  }
  // Starts the copy of the next tile; keys past the last one become zeros.
  __device__ __forceinline__ void fetch(const SplitParams& p) {
    if (num_fetched < num_tiles) {
      const int32_t tile = first_key + num_fetched * key_step;
      const int row = lane / kChunks, chunk = lane % kChunks;
      const int log = lanes_log(p), num_held = 32 >> log;  // tiles that the lanes hold
      const int32_t held = num_fetched & (num_held - 1);
      if (held == 0 && num_fetched > 0) {
        page = next_page;
        next_page = look_up(p, num_fetched + num_held);
      }
      if (p.by_row) {
        const int32_t found = __shfl_sync(~0u, page, (held << log) + lane % F::kKeys);
        const bool is_there = found >= 0;
        page_missing |= found == -1;
        const uint32_t wanted = __ballot_sync(~0u, is_there);
        const int64_t at = is_there ? offset_of(p, tile + lane % F::kKeys, found) : 0;
#pragma unroll
        for (int n = 0; n < F::kKeys / kRowsAtOnce; ++n) {
          const int from = n * kRowsAtOnce + row;
          copy(from, chunk, __shfl_sync(~0u, at, from), (wanted >> from & 1) != 0);
        }
      } else {
#pragma unroll
        for (int r = 0; r < kRuns; ++r) {
          const int32_t found = __shfl_sync(~0u, page, held * kRuns + r);
          page_missing |= found == -1;
          const int32_t key = tile + r * kRun;
          const int64_t at = offset_of(p, key, max(0, found)) + row * F::kRowBytes;
#pragma unroll
          for (int n = 0; n < kRun / kRowsAtOnce; ++n) {
            const int in_run = n * kRowsAtOnce + row;
            copy(r * kRun + in_run, chunk, at + n * 512, found >= 0 && key + in_run <= last_key);
          }
        }
      }
      ++num_fetched;
      fetch_slot = after(fetch_slot);
    }
    commit_copies();
  }

 private:
  static __device__ __forceinline__ int64_t offset_of(const SplitParams& p, int32_t key,
                                                      int32_t page) {
    const int32_t in_page = key - page_of(p, key) * p.page_tokens;
    return static_cast<int64_t>(static_cast<uint64_t>(static_cast<uint32_t>(page)) *
                                    p.page_stride_bytes +
                                static_cast<uint32_t>(in_page * F::kRowBytes));
  }
  __device__ __forceinline__ void copy(int row, int chunk, int64_t at, bool wanted) const {
    copy_16(fetch_slot + F::k_at(row, chunk), k + at, wanted);
    copy_16(fetch_slot + F::kStageBytes / 2 + F::v_at(row, chunk), v + at, wanted);
  }
};

// The keys of a warp whose tiles are start, start + stride, ...
template <typename F, int kSlots>
__device__ __forceinline__ Keys<F, kSlots> keys_of_warp(const SplitParams& p, const TokenTile& tile,
                                                        const SeenKeys& seen, int32_t kv_head,
                                                        int32_t start, int32_t stride,
                                                        uint32_t ring, int lane) {
  const int64_t head_offset = static_cast<int64_t>(kv_head) * p.page_tokens * F::kRowBytes +
                              lane % (F::kRowBytes / 16) * 16;
  const int32_t num_tiles = (seen.num_keys() + F::kKeys - 1) / F::kKeys;
  return {.pages = p.page_table + static_cast<int64_t>(tile.seq) * p.table_stride,
          .k = p.k + head_offset,
          .v = p.v + head_offset,
          .first_key = seen.seen_from + start * F::kKeys,
          .key_step = stride * F::kKeys,
          .num_tiles = start < num_tiles ? (num_tiles - start - 1) / stride + 1 : 0,
          .last_key = seen.last_key,
          .lane = lane,
          .ring = ring,
          .fetch_slot = ring,
          .read_slot = ring};
}

// ---- A block's rows -----------------------------------------------------------------------------
// A block's kRows rows, each a token's query head. 8 rows: the high and low parts of queries and
// weights are stacked in one fragment of 16 rows. 16 or 32 rows: a product for each part.
template <int kRows>
struct BlockShape {
  static constexpr bool kStacked = kRows == 8;
  static constexpr int kTiles = kStacked ? 1 : kRows / 16;  // fragments of 16 rows
  static constexpr int kParts = kStacked ? 1 : 2;           // products
  static constexpr int kLaneRows = kStacked ? 1 : 2 * kTiles;
  static constexpr int kPairs = kRows * kDim / 2 / kThreads;  // of columns, of a thread
};

template <int kRows>
struct Shared {
  using S = BlockShape<kRows>;
  alignas(16) uint32_t q[S::kTiles][S::kParts][4][32][4];           // fragments
  alignas(8) float from_splits[2 * kRows * kDim + 2 * kMaxSplits];  // [splits, elements here + 2]
  float2 ml_from_splits[2 * kRows];                                 // [splits, rows here]
  float m[kWarps][kRows], l[kWarps][kRows];                         // maximum and sum of weights
  float sinks[kRows];                                               // in powers of two
  uint64_t barrier;                                                 // counts what other blocks send
  float units[kRows];  // of a row's logits, where kNarrow
};

// The place of columns 4 * chunk .. 4 * chunk + 3 of a row in a warp's sums [rows, 64].
__device__ __forceinline__ int sum_at(int row, int chunk) {
  return row * kDim + 4 * (chunk ^ (((chunk >> 3) & 1) | ((row & 1) << 1)));
}
__device__ __forceinline__ int32_t token_of(const SplitParams& p, int32_t row) {
  return static_cast<int32_t>(static_cast<uint32_t>(row) * p.group_magic >> 16);
}

// Keeps the compiler from moving the computation of x behind the wait for the previous kernel.
template <typename T>
__device__ __forceinline__ void compute_now(T& x) {
  if constexpr (sizeof(T) == 8) {
    asm volatile("" : "+l"(x));
  } else {
    asm volatile("" : "+r"(x));
  }
}

// The unit of a row's queries in a narrow format: 2^e with most / 2^e below 2^15, an exponent field
// of 141 at most.
struct NarrowUnit {
  float unit, inverse;

  __device__ __forceinline__ explicit NarrowUnit(float most) {
    const int32_t excess = max(0, static_cast<int32_t>(f32_to_bits(most) >> 23) - 141);
    unit = bits_to_f32(static_cast<uint32_t>(127 + excess) << 23);
    inverse = bits_to_f32(static_cast<uint32_t>(127 - excess) << 23);
  }
};

// The block's queries: loaded as pairs of columns, a warp one row at a time, and made fragments.
template <typename F, int kRows>
struct Queries {
  static constexpr int kTurns = kRows / kWarps;
  const float* from[kTurns];  // null: past the last row
  uint32_t to[kTurns];        // of the high part
  float2 pair[kTurns];

  // `q` points to the first token's first head of the KV head.
  __device__ __forceinline__ void locate(const SplitParams& p, const Shared<kRows>& shared,
                                         const float* q, int32_t num_rows, int warp, int lane) {
    const int3 place = F::q_place(2 * lane);
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int32_t row = i * kWarps + warp, token = token_of(p, row);
      from[i] =
          row >= num_rows ? nullptr : q + (token * (p.num_heads - p.group) + row) * kDim + 2 * lane;
      compute_now(from[i]);
      const int at = 4 * (row % 8) + place.y;
      to[i] = shared_address(kRows == 8
                                 ? &shared.q[0][0][place.x][at][2 * place.z]
                                 : &shared.q[row / 16][0][place.x][at][row / 8 % 2 + 2 * place.z]);
      compute_now(to[i]);
    }
  }
  __device__ __forceinline__ void load() {
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      pair[i] = from[i] == nullptr ? make_float2(0.0f, 0.0f)
                                   : __ldcg(reinterpret_cast<const float2*>(from[i]));
    }
  }
  __device__ __forceinline__ void store(const SplitParams& p, Shared<kRows>& shared, int warp,
                                        int lane) const {
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      float x = pair[i].x * p.scale_log2, y = pair[i].y * p.scale_log2;
      if constexpr (F::kNarrow) {
        float most = fmaxf(fabsf(x), fabsf(y));
#pragma unroll
        for (int step = 16; step > 0; step /= 2)
          most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
        const NarrowUnit unit(most);
        x *= unit.inverse, y *= unit.inverse;
        if (lane == 0) shared.units[i * kWarps + warp] = unit.unit;
      }
      uint32_t high, low;
      split<F>(x, y, high, low);
      // The low part is in the next register of the same fragment, or in a separate fragment.
      constexpr uint32_t kToLow = kRows == 8 ? 4 : sizeof(shared.q[0][0]);
      store_shared_4(to[i], high);
      store_shared_4(to[i] + kToLow, low);
    }
  }
};

// A warp's sums over its keys.
template <typename F, int kRows>
struct Sums {
  using S = BlockShape<kRows>;
  static constexpr int kGroups = F::kKeys / 8;

  int g, c;  // this lane's row of eight and column of four in a fragment
  LaneOffsets at;
  uint32_t q[S::kTiles][S::kParts][4][4];
  float o[S::kTiles][8][4];
  float m[S::kLaneRows], l[S::kLaneRows];  // m: of the row; l: sum over this lane's keys
  float unit[S::kLaneRows];
  int32_t last_seen[S::kLaneRows];

  static __device__ __forceinline__ int row_of(int lane_row, int g) {
    return S::kStacked ? g : 16 * (lane_row / 2) + 8 * (lane_row % 2) + g;
  }

  __device__ __forceinline__ void clear(int lane) {
    g = lane / 4, c = lane % 4;
    at = F::offsets(g, c);
    compute_now(at.k0);
    compute_now(at.k1);
    compute_now(at.v0);
    compute_now(at.v1);
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
      for (int j = 0; j < 8; ++j) o[t][j][0] = o[t][j][1] = o[t][j][2] = o[t][j][3] = 0.0f;
    }
#pragma unroll
    for (int r = 0; r < S::kLaneRows; ++r) m[r] = kLowest, l[r] = 0.0f;
  }
  __device__ __forceinline__ void load_q(const Shared<kRows>& shared, int lane) {
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
      for (int part = 0; part < S::kParts; ++part) {
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          const uint4 x = load_shared_16(shared_address(shared.q[t][part][step][lane]));
          q[t][part][step][0] = x.x, q[t][part][step][1] = x.y;
          q[t][part][step][2] = x.z, q[t][part][step][3] = x.w;
        }
      }
    }
    if constexpr (F::kNarrow) {
#pragma unroll
      for (int r = 0; r < S::kLaneRows; ++r) unit[r] = shared.units[row_of(r, g)];
    }
  }

  // Takes 8 rows' queries: of this lane's row the columns from F::q_column(step, c) on.
  __device__ __forceinline__ void take_q(float4 (&x)[4], float scale) {
    static_assert(S::kStacked, "a fragment holds the high and low parts of 8 rows");
    float most = 0.0f;
#pragma unroll
    for (float4& of : x) {
      of.x *= scale, of.y *= scale, of.z *= scale, of.w *= scale;
      most = fmaxf(fmaxf(fmaxf(most, fabsf(of.x)), fmaxf(fabsf(of.y), fabsf(of.z))), fabsf(of.w));
    }
    if constexpr (F::kNarrow) {
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      const NarrowUnit narrow(most);
      unit[0] = narrow.unit;
#pragma unroll
      for (float4& of : x) {
        of.x *= narrow.inverse, of.y *= narrow.inverse;
        of.z *= narrow.inverse, of.w *= narrow.inverse;
      }
    }
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      split<F>(x[step].x, x[step].y, q[0][0][step][0], q[0][0][step][1]);
      split<F>(x[step].z, x[step].w, q[0][0][step][2], q[0][0][step][3]);
    }
  }
  // Columns 16 c .. 16 c + 15 of the sums of lane row r, times a factor. Fragment j, column n is
  // column 8 n + j of V; this lane has n = 2 c and 2 c + 1.
  __device__ __forceinline__ void columns(int r, float factor, float (&x)[16]) const {
    const int t = r / 2, upper = r % 2 * 2;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        x[8 * i + j] = factor * (S::kStacked ? o[0][j][i] + o[0][j][2 + i] : o[t][j][upper + i]);
    }
  }

  // Adds the tile at `stage`, from key first_key on. `all_seen`: every row sees all of its keys.
  __device__ __forceinline__ void add_tile(uint32_t stage, int32_t first_key, int32_t window,
                                           bool all_seen) {
    float s[S::kTiles][kGroups][4];
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      uint32_t b[4][2];
      F::load_k(stage, at, n, b);
#pragma unroll
      for (int t = 0; t < S::kTiles; ++t) {
        s[t][n][0] = s[t][n][1] = s[t][n][2] = s[t][n][3] = 0.0f;
#pragma unroll
        for (int part = S::kParts - 1; part >= 0; --part) {
#pragma unroll
          for (int step = 0; step < 4; ++step)
            F::multiply(s[t][n], q[t][part][step], b[step][0], b[step][1]);
        }
      }
    }
    // Logits of this lane's rows, in place of the products: x(r, n, i).
    const auto x = [&](int r, int n, int i) -> float& {
      return S::kStacked ? s[0][n][i] : s[r / 2][n][r % 2 * 2 + i];
    };
#pragma unroll
    for (int r = 0; r < S::kLaneRows; ++r) {
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if constexpr (S::kStacked) s[0][n][i] += s[0][n][2 + i];
          if constexpr (F::kNarrow) x(r, n, i) *= unit[r];
        }
      }
    }
    if (!all_seen) {
#pragma unroll
      for (int r = 0; r < S::kLaneRows; ++r) {
#pragma unroll
        for (int n = 0; n < kGroups; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int32_t key = first_key + 8 * n + 2 * c + i;
            if (key > last_seen[r] || (window > 0 && key <= last_seen[r] - window))
              x(r, n, i) = -INFINITY;
          }
        }
      }
    }
    uint32_t weights[S::kTiles][kGroups][2 * S::kParts];
    bool grew = false;
    float shrink[S::kLaneRows];
#pragma unroll
    for (int r = 0; r < S::kLaneRows; ++r) {
      float most = m[r];
#pragma unroll
      for (int n = 0; n < kGroups; ++n) most = fmaxf(most, fmaxf(x(r, n, 0), x(r, n, 1)));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      grew |= most > m[r];
      shrink[r] = power_of_two(m[r] - most);
      m[r] = most;
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
        const float first = power_of_two(x(r, n, 0) - most);
        const float second = power_of_two(x(r, n, 1) - most);
        sum += first + second;
        uint32_t high, low;
        split<F>(first, second, high, low);
        if constexpr (S::kStacked) {
          weights[0][n][0] = high, weights[0][n][1] = low;
        } else {
          weights[r / 2][n][r % 2] = high, weights[r / 2][n][2 + r % 2] = low;
        }
      }
      l[r] = l[r] * shrink[r] + sum;
    }
    if (__any_sync(~0u, grew)) {
#pragma unroll
      for (int t = 0; t < S::kTiles; ++t) {
        const float upper = shrink[S::kStacked ? 0 : 2 * t];
        const float lower = shrink[S::kStacked ? 0 : 2 * t + 1];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          o[t][j][0] *= upper, o[t][j][1] *= upper;
          o[t][j][2] *= lower, o[t][j][3] *= lower;
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kGroups / 2; ++n) {
      uint32_t b[8][2];
      F::load_v(stage + F::kStageBytes / 2, at, n, b);
#pragma unroll
      for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
        for (int part = S::kParts - 1; part >= 0; --part) {
          const uint32_t a[4] = {weights[t][2 * n][2 * part], weights[t][2 * n][2 * part + 1],
                                 weights[t][2 * n + 1][2 * part],
                                 weights[t][2 * n + 1][2 * part + 1]};
#pragma unroll
          for (int j = 0; j < 8; ++j) F::multiply(o[t][j], a, b[j][0], b[j][1]);
        }
      }
    }
  }

  // Adds all tiles of the warp's keys, of which the first kSlots - 1 are on their way.
  template <int kSlots>
  __device__ __forceinline__ void add_tiles(const SplitParams& p, const SeenKeys& seen,
                                            Keys<F, kSlots>& keys) {
    for (int32_t i = 0; i < keys.num_tiles; ++i) {
      wait_for_copies<kSlots - 2>();
      __syncwarp();  // the copies of all lanes have arrived, and the previous slot is free
      keys.fetch(p);
      const int32_t first_key = keys.first_key + i * keys.key_step;
      add_tile(keys.read_slot, first_key, p.window, seen.by_all(p, first_key, F::kKeys));
      keys.read_slot = keys.after(keys.read_slot);
    }
  }

  // Stores the sums [rows, 64] at `to` and the sums of weights at `weights`, both divided by two to
  // the power of the greatest maximum of all warps. All warps have stored their maxima in shared.m.
  __device__ __forceinline__ void store(const Shared<kRows>& shared, float* to, float* weights) {
#pragma unroll
    for (int r = 0; r < S::kLaneRows; ++r) {
      const int row = row_of(r, g);
      float most = shared.m[0][row];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) most = fmaxf(most, shared.m[w][row]);
      const float factor = power_of_two(m[r] - most);
      float x[16];
      columns(r, factor, x);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        *reinterpret_cast<float4*>(to + sum_at(row, 4 * c + i)) =
            make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
      }
      float sum = l[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      if (c == 0) weights[row] = factor * sum;
    }
  }
};

// What sums over all keys are multiplied by: m and l are their maximum and the sum of weights. The
// sink is added here.
__device__ __forceinline__ float part_of_sums(float m, float l, float sink) {
  const float most = fmaxf(m, sink), factor = power_of_two(m - most);
  return __fdividef(factor, l * factor + power_of_two(sink - most));
}
// Writes two columns of a token's head as staged BF16: a head is a unit of a staged row.
__device__ __forceinline__ void write_staged(const SplitParams& p, int32_t token, int32_t head,
                                             int32_t column, float x, float y) {
  const int64_t at = gemm::staged_offset(p.staged_tokens, token, head * kDim + column);
  *reinterpret_cast<uint32_t*>(reinterpret_cast<std::byte*>(p.a) + at) = pack_bf16(x, y);
}
// Writes two columns of the answer, of which (x, y) are the sums.
__device__ __forceinline__ void write_answer(const SplitParams& p, const TokenTile& tile,
                                             int32_t kv_head, int32_t row, int32_t column,
                                             float sink, float m, float l, float x, float y) {
  const int32_t token = token_of(p, row);
  if (token >= tile.num_tokens) return;
  const float part = part_of_sums(m, l, sink);
  const int32_t head = kv_head * p.group + row - token * p.group;
  if (p.staged_tokens > 0)
    return write_staged(p, tile.first_token + token, head, column, x * part, y * part);
  const int64_t at = static_cast<int64_t>(tile.first_token + token) * p.num_heads + head;
  *reinterpret_cast<float2*>(p.a + at * kDim + column) = make_float2(x * part, y * part);
}

}  // namespace moxie::attend_split
