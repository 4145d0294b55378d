// attend on CUDA for few tokens: split over keys, the query heads of a KV head together.
//
// A block of eight warps works for one tile of tokens and one KV head on its share of the keys.
// Each warp runs by itself: cp.async brings the keys and values of its next tiles into its own
// shared memory, mma.sync makes logits and weighted sums, softmax is F32 with a running maximum.
// Queries and weights go into the products as two halves (high and low part), 16 bits or more.
// The warps' sums are merged in shared memory, those of a cluster's blocks through distributed
// shared memory, where the sink joins. Nothing but the answer is written to memory.
#include <algorithm>

#include "core/cuda_launch.cuh"
#include "core/formats.h"
#include "kernels/attend/attend_rows.h"

namespace moxie {
namespace {

constexpr int kDim = 64;
constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kMaxSplits = 16;       // clusters above 8 are tried where the device takes them
constexpr int32_t kFewKeys = 512;    // of a window
constexpr int32_t kFewTokens = 8;    // of a sequence in a launch
constexpr int kRun = 16;             // keys that lie together if pages hold a multiple of it
constexpr int kKeysOfWarp = 32;      // before another block joins
constexpr int32_t kNoKey = -2;       // in place of a page
constexpr float kLowest = -3.0e38f;  // a maximum of nothing: finite, so that no difference is NaN
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
  int32_t table_stride, page_tokens;
  int32_t num_heads, num_kv_heads, group, window;
  uint32_t group_magic;  // row / group = row * group_magic >> 16, for rows below 32
  int32_t tile_tokens;   // tokens of a block, of one sequence
  int32_t num_splits;    // blocks of a cluster
  int32_t num_slots;     // of a warp's ring that are there: a warp with one tile needs one
  bool by_row;           // keys are looked up one by one: tiles start anywhere in a page
};

// ---- PTX ----------------------------------------------------------------------------------------
__device__ __forceinline__ uint32_t shared_address(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}
// 16 bytes to shared memory past L1; zeros, and nothing is read, if not `wanted`.
__device__ __forceinline__ void copy_16(uint32_t to, const std::byte* from, bool wanted) {
  asm volatile(
      "{.reg .pred ignore; setp.eq.b32 ignore, %2, 0; "
      "cp.async.cg.shared.global [%0], [%1], 16, ignore;}" ::"r"(to),
      "l"(from), "r"(static_cast<int>(wanted))
      : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
__device__ __forceinline__ uint4 load_shared_16(uint32_t at) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(at)
               : "memory");
  return x;
}
__device__ __forceinline__ uint2 load_shared_8(uint32_t at) {
  uint2 x;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(at) : "memory");
  return x;
}
__device__ __forceinline__ void store_shared_4(uint32_t at, uint32_t x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}
__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Says that this block has started, and its barrier if there is one.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// A barrier in shared memory that completes its first phase when `bytes` have come from the
// cluster.
__device__ __forceinline__ void start_barrier(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
__device__ __forceinline__ void wait_barrier(uint64_t* barrier) {
  asm volatile(
      "{.reg .pred done; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, "
      "[%0], 0; @!done bra again;}" ::"r"(shared_address(barrier))
      : "memory");
}
// Two floats into the shared memory of block `rank` of the cluster, at this block's address `at`;
// its `barrier` counts them.
__device__ __forceinline__ void send(const void* at, const uint64_t* barrier, int rank, float x,
                                     float y) {
  asm volatile(
      "{.reg .b32 to, signal; mapa.shared::cluster.u32 to, %0, %2; "
      "mapa.shared::cluster.u32 signal, %1, %2; "
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [to], {%3,%4}, [signal];}" ::
          "r"(shared_address(at)),
      "r"(shared_address(barrier)), "r"(rank), "f"(x), "f"(y)
      : "memory");
}

// ---- Formats ------------------------------------------------------------------------------------
// Where a lane finds its fragments in a tile: g is the lane's row of eight, c its column of four.
struct LaneOffsets {
  uint32_t k0, k1, v0, v1;
};

// A BF16 cache is multiplied in BF16; E4M3 is exact in FP16 and has an instruction to get there.
// K fragments: b[step] for 16 columns of q each, of the 8 keys from 8 * n on. V fragments: b[j] for
// columns 8 i + j, i = 0..7, of the 16 keys from 16 * n on.
template <DType kFormat>
struct Format;

template <>
struct Format<DType::kBF16> {
  static constexpr int kRowBytes = 2 * kDim;
  static constexpr int kKeys = 16;                           // of a tile
  static constexpr int kStageBytes = 2 * kKeys * kRowBytes;  // of a tile: K, then V
  static constexpr bool kNarrow = false;

  static __device__ __forceinline__ uint32_t pack(float low, float high) {
    uint32_t x;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
  }
  static __device__ __forceinline__ float2 unpack(uint32_t x) {
    return make_float2(bits_to_f32(x << 16), bits_to_f32(x & 0xFFFF0000u));
  }
  static __device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4],
                                                  uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  // Where 16-byte chunk `chunk` of row `row` lies, so that the loads below meet no bank twice.
  static __device__ __forceinline__ uint32_t k_at(int row, int chunk) {
    return static_cast<uint32_t>(row * 128 + (chunk ^ ((row & 1) * 4)) * 16);
  }
  static __device__ __forceinline__ uint32_t v_at(int row, int chunk) {
    return static_cast<uint32_t>(row * 128 + (chunk ^ (row & 6)) * 16);
  }
  static __device__ __forceinline__ LaneOffsets offsets(int g, int c) {
    return {k_at(g, c), k_at(g, c + 4), v_at(2 * c, g), v_at(2 * c + 1, g)};
  }
  // Which fragment of q holds column `column`: step, lane column and pair of registers.
  static __device__ __forceinline__ int3 q_place(int column) {
    return make_int3(column / 32 * 2 + column / 4 % 2, column % 32 / 8, column / 2 % 2);
  }
  static __device__ __forceinline__ void load_k(uint32_t k, const LaneOffsets& at, int n,
                                                uint32_t (&b)[4][2]) {
    const uint4 left = load_shared_16(k + at.k0 + static_cast<uint32_t>(n * 1024));
    const uint4 right = load_shared_16(k + at.k1 + static_cast<uint32_t>(n * 1024));
    b[0][0] = left.x, b[0][1] = left.y, b[1][0] = left.z, b[1][1] = left.w;
    b[2][0] = right.x, b[2][1] = right.y, b[3][0] = right.z, b[3][1] = right.w;
  }
  static __device__ __forceinline__ void load_v(uint32_t v, const LaneOffsets& at, int n,
                                                uint32_t (&b)[8][2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto row = static_cast<uint32_t>(n * 2048 + half * 1024);
      const uint4 x = load_shared_16(v + at.v0 + row), y = load_shared_16(v + at.v1 + row);
      const uint32_t xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        b[2 * i][half] = __byte_perm(xs[i], ys[i], 0x5410);
        b[2 * i + 1][half] = __byte_perm(xs[i], ys[i], 0x7632);
      }
    }
  }
};

template <>
struct Format<DType::kF8E4M3> {
  static constexpr int kRowBytes = kDim;
  static constexpr int kKeys = 32;
  static constexpr int kStageBytes = 2 * kKeys * kRowBytes;
  static constexpr bool kNarrow = true;  // FP16 ends at 65504: queries are scaled into it

  static __device__ __forceinline__ uint32_t pack(float low, float high) {
    uint32_t x;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
  }
  static __device__ __forceinline__ float2 unpack(uint32_t x) {
    float2 y;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
        : "=f"(y.x), "=f"(y.y)
        : "r"(x));
    return y;
  }
  static __device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4],
                                                  uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  static __device__ __forceinline__ uint32_t k_at(int row, int chunk) {
    return static_cast<uint32_t>(row * 64 + chunk * 16);
  }
  // Two rows share a line of 128 bytes.
  static __device__ __forceinline__ uint32_t v_at(int row, int chunk) {
    const int pair = row / 2;
    const int place = (((2 * (row & 1) + (chunk >> 1)) ^ (pair & 3)) << 1) | (chunk & 1);
    return static_cast<uint32_t>(pair * 128 + place * 16);
  }
  static __device__ __forceinline__ LaneOffsets offsets(int g, int c) {
    const uint32_t half = static_cast<uint32_t>(g & 1) * 8;
    return {k_at(g, c), 0, v_at(2 * c, g / 2) + half, v_at(2 * c + 1, g / 2) + half};
  }
  static __device__ __forceinline__ int3 q_place(int column) {
    return make_int3(column / 4 % 4, column / 16, column / 2 % 2);
  }
  // Bytes 0, 1 and bytes 2, 3 as two FP16 each.
  static __device__ __forceinline__ void widen(uint32_t x, uint32_t& low, uint32_t& high) {
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; "
        "cvt.rn.f16x2.e4m3x2 %1, h;}"
        : "=r"(low), "=r"(high)
        : "r"(x));
  }
  static __device__ __forceinline__ void load_k(uint32_t k, const LaneOffsets& at, int n,
                                                uint32_t (&b)[4][2]) {
    const uint4 x = load_shared_16(k + at.k0 + static_cast<uint32_t>(n * 512));
    widen(x.x, b[0][0], b[0][1]);
    widen(x.y, b[1][0], b[1][1]);
    widen(x.z, b[2][0], b[2][1]);
    widen(x.w, b[3][0], b[3][1]);
  }
  static __device__ __forceinline__ void load_v(uint32_t v, const LaneOffsets& at, int n,
                                                uint32_t (&b)[8][2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto row = static_cast<uint32_t>(n * 1024 + half * 512);
      const uint2 x = load_shared_8(v + at.v0 + row), y = load_shared_8(v + at.v1 + row);
      widen(__byte_perm(x.x, y.x, 0x5140), b[0][half], b[1][half]);
      widen(__byte_perm(x.x, y.x, 0x7362), b[2][half], b[3][half]);
      widen(__byte_perm(x.y, y.y, 0x5140), b[4][half], b[5][half]);
      widen(__byte_perm(x.y, y.y, 0x7362), b[6][half], b[7][half]);
    }
  }
};

// x and y as high parts and what is left, packed by twos.
template <typename F>
__device__ __forceinline__ void split(float x, float y, uint32_t& high, uint32_t& low) {
  high = F::pack(x, y);
  const float2 rounded = F::unpack(high);
  low = F::pack(x - rounded.x, y - rounded.y);
}

// ---- Tiles of tokens ----------------------------------------------------------------------------
struct TokenTile {
  int32_t seq, first_token, num_tokens;  // num_tokens 0: past the end
  int32_t in_launch;                     // tokens of the sequence before it in this launch, at most
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
    int32_t sum = num_tiles;  // of the lanes up to this one
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

// ---- A warp's keys ------------------------------------------------------------------------------
// The logical page that holds `key`. Exact while keys * page_tokens stay below 2^32.
__device__ __forceinline__ int32_t page_of(const SplitParams& p, int32_t key) {
  const auto bits = static_cast<uint32_t>(key);
  return static_cast<int32_t>(__umulhi(bits, p.page_magic) + (bits & p.page_mask));
}

// The tiles of one warp: tile i is keys first_key + i * key_step and on. Brings them, one after
// another, into the warp's ring of kSlots slots.
template <typename F, int kSlots>
struct Keys {
  static constexpr int kRuns = F::kKeys / kRun, kKeysLog = F::kKeys == 16 ? 4 : 5;
  static_assert(kRuns <= 2 && 1 << kKeysLog == F::kKeys);
  static constexpr int kChunks = F::kRowBytes / 16, kRowsAtOnce = 32 / kChunks;
  const int32_t* pages;    // of the sequence
  const std::byte *k, *v;  // of the KV head, page 0, the chunk that this lane copies
  int32_t first_key, key_step, num_tiles;
  int32_t last_key;  // that the block's tokens see
  int lane;
  uint32_t ring, fetch_slot, read_slot;
  int32_t num_fetched = 0;
  // Pages are looked up for as many tiles as the lanes hold, long before they are wanted: a load
  // that is behind keys in the memory's queue takes as long as they do.
  int32_t page, next_page;
  bool page_missing = false;

  __device__ __forceinline__ uint32_t after(uint32_t slot) const {
    return slot == ring + (kSlots - 1) * F::kStageBytes ? ring : slot + F::kStageBytes;
  }
  // Lanes for each tile: one for a run, or for a key.
  static __device__ __forceinline__ int lanes_log(const SplitParams& p) {
    return p.by_row ? kKeysLog : kRuns - 1;
  }
  // The page for this lane, of the lanes' share of tiles that starts with tile i.
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
  // Starts the copy of the next tile; what is behind the last key becomes zero.
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

// ---- A block's rows -----------------------------------------------------------------------------
// kRows rows (a token's query head each) of a block: 8 with the high and low parts of queries and
// weights stacked in one fragment of 16 rows, else 16 or 32 with a product for each part.
template <int kRows>
struct Shape {
  static constexpr bool kStacked = kRows == 8;
  static constexpr int kTiles = kStacked ? 1 : kRows / 16;  // fragments of 16 rows
  static constexpr int kParts = kStacked ? 1 : 2;           // products
  static constexpr int kLaneRows = kStacked ? 1 : 2 * kTiles;
  static constexpr int kPairs = kRows * kDim / 2 / kThreads;  // of columns, of a thread
};

template <int kRows>
struct Shared {
  using S = Shape<kRows>;
  alignas(16) uint32_t q[S::kTiles][S::kParts][4][32][4];           // fragments
  alignas(8) float from_splits[2 * kRows * kDim + 2 * kMaxSplits];  // [splits, elements here + 2]
  float2 ml_from_splits[2 * kRows];                                 // [splits, rows here]
  float m[kWarps][kRows], l[kWarps][kRows];                         // maximum and sum of weights
  float sinks[kRows];                                               // in powers of two
  uint64_t barrier;                                                 // counts what other blocks send
  float units[kRows];  // that a row's logits are in, where kNarrow
};

// In a warp's sums [rows, 64], the place of four columns from 4 * chunk on.
__device__ __forceinline__ int sum_at(int row, int chunk) {
  return row * kDim + 4 * (chunk ^ (((chunk >> 3) & 1) | ((row & 1) << 1)));
}
__device__ __forceinline__ int32_t token_of(const SplitParams& p, int32_t row) {
  return static_cast<int32_t>(static_cast<uint32_t>(row) * p.group_magic >> 16);
}

// Keeps the compiler from moving what leads to x behind the wait for the kernel before.
template <typename T>
__device__ __forceinline__ void compute_now(T& x) {
  if constexpr (sizeof(T) == 8) {
    asm volatile("" : "+l"(x));
  } else {
    asm volatile("" : "+r"(x));
  }
}

// The block's queries: loaded as pairs of columns, one row a warp at a time, and made fragments.
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
        // 2^e with most / 2^e below 2^15: an exponent field of 141 at most.
        const int32_t excess = max(0, static_cast<int32_t>(f32_to_bits(most) >> 23) - 141);
        x *= bits_to_f32(static_cast<uint32_t>(127 - excess) << 23);
        y *= bits_to_f32(static_cast<uint32_t>(127 - excess) << 23);
        if (lane == 0) {
          shared.units[i * kWarps + warp] = bits_to_f32(static_cast<uint32_t>(127 + excess) << 23);
        }
      }
      uint32_t high, low;
      split<F>(x, y, high, low);
      // The low part is the next register of the same fragment, or in the fragment of its own.
      constexpr uint32_t kToLow = kRows == 8 ? 4 : sizeof(shared.q[0][0]);
      store_shared_4(to[i], high);
      store_shared_4(to[i] + kToLow, low);
    }
  }
};

// What a warp has summed over its keys.
template <typename F, int kRows>
struct Sums {
  using S = Shape<kRows>;
  static constexpr int kGroups = F::kKeys / 8;

  int g, c;  // row of eight, column of four: this lane in a fragment
  LaneOffsets at;
  uint32_t q[S::kTiles][S::kParts][4][4];
  float o[S::kTiles][8][4];
  float m[S::kLaneRows], l[S::kLaneRows];  // m: of the row; l: of this lane's keys
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

  // Adds the keys from first_key on that lie at `stage`. `all_seen`: by every row.
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

  // Leaves the sums [rows, 64] at `to` and the sums of weights at `weights`, as multiples of two to
  // the power of the greatest maximum of all warps, which have left theirs in shared.m.
  __device__ __forceinline__ void store(const Shared<kRows>& shared, float* to, float* weights) {
#pragma unroll
    for (int r = 0; r < S::kLaneRows; ++r) {
      const int row = row_of(r, g), t = r / 2, upper = r % 2 * 2;
      float most = shared.m[0][row];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) most = fmaxf(most, shared.m[w][row]);
      const float factor = power_of_two(m[r] - most);
      // Fragment j, column n is column 8 n + j of V; this lane has n = 2 c and 2 c + 1.
      float x[16];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
          x[8 * i + j] = factor * (S::kStacked ? o[0][j][i] + o[0][j][2 + i] : o[t][j][upper + i]);
      }
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

// Two columns of the answer: sums (x, y), maximum m and weights l of all keys; the sink joins.
__device__ __forceinline__ void write_answer(const SplitParams& p, const TokenTile& tile,
                                             int32_t kv_head, int32_t row, int32_t column,
                                             float sink, float m, float l, float x, float y) {
  const int32_t token = token_of(p, row);
  if (token >= tile.num_tokens) return;
  const float most = fmaxf(m, sink);
  const float factor = power_of_two(m - most);
  const float part = __fdividef(factor, l * factor + power_of_two(sink - most));
  const int32_t head = kv_head * p.group + row - token * p.group;
  const int64_t at = static_cast<int64_t>(tile.first_token + token) * p.num_heads + head;
  *reinterpret_cast<float2*>(p.a + at * kDim + column) = make_float2(x * part, y * part);
}

template <DType kFormat, int kRows, int kSlots>
__global__ void __launch_bounds__(kThreads, kRows == 8 ? 2 : 1)
    attend_split(const __grid_constant__ SplitParams p) {
  using F = Format<kFormat>;
  using S = Shape<kRows>;
  static_assert(kSlots * F::kStageBytes >= kRows * kDim * 4, "the warp's sums go into its slots");
  constexpr int kElementsLog = kRows == 8 ? 9 : kRows == 16 ? 10 : 11;
  static_assert(1 << kElementsLog == kRows * kDim);
  __shared__ Shared<kRows> shared;
  extern __shared__ __align__(128) std::byte slots[];

  const auto thread = static_cast<int32_t>(threadIdx.x);
  __builtin_assume(thread >= 0 && thread < kThreads);
  const int lane = thread % 32, warp = thread / 32;
  const auto block = static_cast<int32_t>(blockIdx.x);
  const int32_t rank = block % p.num_splits;
  const int32_t kv_head = block / p.num_splits % p.num_kv_heads;
  const TokenTile tile = find_tile(p, block / p.num_splits / p.num_kv_heads, lane);

  // The keys that the tile sees, and how many blocks share them.
  int32_t first_position = 0, last_key = -1;
  if (tile.num_tokens > 0) {
    first_position = __ldcg(p.positions + tile.first_token);
    last_key = tile.num_tokens == 1 ? first_position
                                    : __ldcg(p.positions + tile.first_token + tile.num_tokens - 1);
  }
  const int32_t seen_from = p.window > 0 ? max(0, first_position - p.window + 1) : 0;
  const int32_t num_keys = last_key + 1 - seen_from;
  const int32_t num_tiles = (num_keys + F::kKeys - 1) / F::kKeys;
  constexpr int32_t kKeysOfBlock = kKeysOfWarp * kWarps;
  const int32_t num_active =
      max(1, min(p.num_splits, (num_keys + kKeysOfBlock - 1) / kKeysOfBlock));
  if (tile.num_tokens == 0 || rank >= num_active) {
    wait_for_previous();
    launch_next();
    return;
  }

  // The first blocks, eight at most, finish a slice of the rows' elements each.
  const int owners_log = min(3, 31 - __clz(num_active)), slice_log = kElementsLog - owners_log;
  const int32_t slice = 1 << slice_log, slice_rows = max(1, slice / kDim), padded = slice + 2;
  const bool is_owner = rank < 1 << owners_log;
  if (num_active > 1) {
    if (thread == 0 && is_owner) {
      start_barrier(&shared.barrier,
                    static_cast<uint32_t>(num_active * (slice * 4 + slice_rows * 8)));
    }
    cluster_arrive();
  }

  // This warp's tiles are start, start + stride, ...
  const int32_t start = warp * num_active + rank, stride = num_active * kWarps;
  const int64_t head_offset = static_cast<int64_t>(kv_head) * p.page_tokens * F::kRowBytes +
                              lane % (F::kRowBytes / 16) * 16;
  const uint32_t ring =
      shared_address(slots) + static_cast<uint32_t>(warp * p.num_slots * F::kStageBytes);
  Keys<F, kSlots> keys{.pages = p.page_table + static_cast<int64_t>(tile.seq) * p.table_stride,
                       .k = p.k + head_offset,
                       .v = p.v + head_offset,
                       .first_key = seen_from + start * F::kKeys,
                       .key_step = stride * F::kKeys,
                       .num_tiles = start < num_tiles ? (num_tiles - start - 1) / stride + 1 : 0,
                       .last_key = last_key,
                       .lane = lane,
                       .ring = ring,
                       .fetch_slot = ring,
                       .read_slot = ring};
  // Keys of earlier launches may be read before the launch that writes this one's is done.
  // Positions of a sequence are consecutive, so at most `in_launch` keys before the tile are new.
  const int32_t old_tiles = max(0, first_position - tile.in_launch - seen_from) / F::kKeys;
  const int32_t num_old =
      start < old_tiles ? min(keys.num_tiles, (old_tiles - start - 1) / stride + 1) : 0;

  keys.start(p);
  if (thread < kRows) {
    const int32_t head = thread - token_of(p, thread) * p.group;
    shared.sinks[thread] =
        p.sinks == nullptr ? -INFINITY : p.sinks[kv_head * p.group + head] * kLog2E;
  }
#pragma unroll 1
  for (int i = 0; i < kSlots - 1; ++i) {
    if (i < num_old) keys.fetch(p);
  }
  Queries<F, kRows> queries;
  const int64_t first_row =
      static_cast<int64_t>(tile.first_token) * p.num_heads + kv_head * p.group;
  queries.locate(p, shared, p.q + first_row * kDim, tile.num_tokens * p.group, warp, lane);
  Sums<F, kRows> sums;
  sums.clear(lane);
#pragma unroll
  for (int r = 0; r < S::kLaneRows; ++r) {
    const int32_t token = min(token_of(p, sums.row_of(r, sums.g)), tile.num_tokens - 1);
    sums.last_seen[r] =
        token == 0 ? first_position : __ldcg(p.positions + tile.first_token + token);
  }
  wait_for_previous();
  launch_next();

  queries.load();
#pragma unroll 1
  for (int i = 0; i < kSlots - 1; ++i) {
    if (i >= num_old) keys.fetch(p);
  }
  queries.store(p, shared, warp, lane);
  __syncthreads();
  sums.load_q(shared, lane);
  for (int32_t i = 0; i < keys.num_tiles; ++i) {
    wait_copies<kSlots - 2>();
    __syncwarp();  // the copies of all lanes are there, and the slot before is free
    keys.fetch(p);
    const int32_t first_key = keys.first_key + i * keys.key_step;
    const bool all_seen = first_key + F::kKeys - 1 <= first_position &&
                          (p.window == 0 || first_key > last_key - p.window);
    sums.add_tile(keys.read_slot, first_key, p.window, all_seen);
    keys.read_slot = keys.after(keys.read_slot);
  }

  // Merge the warps: every thread takes pairs of columns.
  if (sums.c == 0) {
#pragma unroll
    for (int r = 0; r < S::kLaneRows; ++r) shared.m[warp][sums.row_of(r, sums.g)] = sums.m[r];
  }
  wait_copies<0>();
  if (__any_sync(~0u, keys.page_missing)) {
#pragma unroll
    for (int r = 0; r < S::kLaneRows; ++r) sums.l[r] = __int_as_float(0x7FC00000);
  }
  __syncthreads();
  float* warp_sums = reinterpret_cast<float*>(slots);
  const int warp_size = p.num_slots * F::kStageBytes / 4;
  sums.store(shared, warp_sums + warp * warp_size, shared.l[warp]);
  if (num_active > 1) cluster_wait();  // every block has started its barrier
  __syncthreads();
#pragma unroll
  for (int i = 0; i < S::kPairs; ++i) {
    const int32_t element = 2 * (i * kThreads + thread);
    const int32_t row = element / kDim, column = element % kDim;
    float m = shared.m[0][row], l = 0.0f, x = 0.0f, y = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const auto pair = *reinterpret_cast<const float2*>(warp_sums + w * warp_size +
                                                         sum_at(row, column / 4) + column % 4);
      m = fmaxf(m, shared.m[w][row]);
      l += shared.l[w][row], x += pair.x, y += pair.y;
    }
    if (num_active == 1) {
      write_answer(p, tile, kv_head, row, column, shared.sinks[row], m, l, x, y);
      continue;
    }
    const int32_t owner = element >> slice_log, in_slice = element & (slice - 1);
    send(&shared.from_splits[rank * padded + in_slice], &shared.barrier, owner, x, y);
    // Once for each row, or for each part of a row that a block owns.
    if (in_slice % kDim == 0) {
      send(&shared.ml_from_splits[rank * slice_rows + in_slice / kDim], &shared.barrier, owner, m,
           l);
    }
  }
  if (num_active == 1 || !is_owner) return;
  wait_barrier(&shared.barrier);
  // Neighbouring lanes take the same pair of columns of one block each.
  static_assert(kMaxSplits <= 16, "four steps reach over 16 lanes");
  const int lanes_log = 32 - __clz(num_active - 1);
#pragma unroll 1
  for (int32_t idx = thread; idx < slice / 2 << lanes_log; idx += kThreads) {
    const int32_t from = idx & ((1 << lanes_log) - 1), in_slice = 2 * (idx >> lanes_log);
    float2 ml = make_float2(kLowest, 0.0f), pair = make_float2(0.0f, 0.0f);
    if (from < num_active) {
      ml = shared.ml_from_splits[from * slice_rows + in_slice / kDim];
      pair = *reinterpret_cast<const float2*>(&shared.from_splits[from * padded + in_slice]);
    }
    float m = ml.x;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      if (step < lanes_log) m = fmaxf(m, __shfl_xor_sync(~0u, m, 1 << step));
    }
    const float factor = power_of_two(ml.x - m);
    float l = factor * ml.y, x = factor * pair.x, y = factor * pair.y;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      if (step < lanes_log) {
        l += __shfl_xor_sync(~0u, l, 1 << step);
        x += __shfl_xor_sync(~0u, x, 1 << step);
        y += __shfl_xor_sync(~0u, y, 1 << step);
      }
    }
    const int32_t element = (rank << slice_log) + in_slice, row = element / kDim;
    if (from == 0) {
      write_answer(p, tile, kv_head, row, element % kDim, shared.sinks[row], m, l, x, y);
    }
  }
}

// ---- The launch ---------------------------------------------------------------------------------
constexpr const char* kRowName = "attend_any_f32_split_cuda";

struct DeviceLimits {
  int num_sms = 0, shared_of_sm = 0, shared_of_block = 0;
};
DeviceLimits device_limits() {
  int device = 0;
  DeviceLimits limits;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&limits.num_sms, cudaDevAttrMultiProcessorCount, device);
  cudaDeviceGetAttribute(&limits.shared_of_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
  cudaDeviceGetAttribute(&limits.shared_of_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return limits;
}

// Whether `num_clusters` clusters of `size` blocks fit the machine with an SM for each block. One
// SM takes in keys only so fast: two blocks on one would finish last.
bool fits_one_a_sm(void (*kernel)(SplitParams), int64_t num_clusters, int size,
                   const DeviceLimits& limits) {
  const int shared = limits.shared_of_sm / 2;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (size > 8) cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(size), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(num_clusters * size));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.attrs = &attribute;
  config.numAttrs = 1;
  int num_resident = 0;
  if (cudaOccupancyMaxActiveClusters(&num_resident, kernel, &config) != cudaSuccess) {
    cudaGetLastError();  // a size that this device does not take
    return false;
  }
  return num_resident >= num_clusters;
}

template <DType kFormat, int kRows, int kSlots>
void launch_split(const AttendParams& params, SplitParams split, int32_t num_tiles,
                  const DeviceLimits& limits, cudaStream_t stream) {
  using F = Format<kFormat>;
  constexpr int64_t kFewestSlots = ceil_div(kRows * kDim * 4, F::kStageBytes);
  auto* kernel = attend_split<kFormat, kRows, kSlots>;
  const KvLayer& kv = params.kv;
  int64_t most_keys = int64_t{kv.table_stride} * kv.page_tokens;
  if (split.window > 0)
    most_keys = std::min<int64_t>(most_keys, split.window + split.tile_tokens - 1);
  const int64_t num_clusters = int64_t{num_tiles} * split.num_kv_heads;

  // As many blocks as there are SMs, but none that no key is left for.
  int64_t splits = std::min({int64_t{kMaxSplits}, limits.num_sms / num_clusters,
                             ceil_div<int64_t>(most_keys, kKeysOfWarp * kWarps)});
  while (splits > 1 && !fits_one_a_sm(kernel, num_clusters, static_cast<int>(splits), limits))
    --splits;
  splits = std::max<int64_t>(splits, 1);
  split.num_splits = static_cast<int32_t>(splits);
  // Another block joins only when the warps of those before it have kKeysOfWarp keys.
  int64_t tiles_of_warp = ceil_div(most_keys, splits * kWarps * int64_t{F::kKeys});
  if (splits > 1) tiles_of_warp = std::max<int64_t>(tiles_of_warp, ceil_div(kKeysOfWarp, F::kKeys));
  split.num_slots = static_cast<int32_t>(std::clamp<int64_t>(tiles_of_warp, kFewestSlots, kSlots));
  int shared_bytes = kWarps * split.num_slots * F::kStageBytes;
  // Several clusters a KV head do crowd together where they can. One does not, and is better off
  // with room for the launches before and after it.
  if (splits > 1 && num_tiles > 1) shared_bytes = std::max(shared_bytes, limits.shared_of_sm / 2);
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(num_clusters * splits)),
                          .num_threads = kThreads,
                          .shared_bytes = static_cast<uint64_t>(shared_bytes),
                          .cluster = split.num_splits,
                          .programmatic = true};
  launch_kernel(kRowName, kernel, split, shape, stream);
}

bool aligned(const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; }

}  // namespace

const char* attend_split_cuda_refuses(const AttendParams& params) {
  const KvLayer& kv = params.kv;
  if (params.head_dim != kDim) return "head size is not 64";
  if (params.num_heads / params.num_kv_heads > 16) return "more than 16 query heads for a KV head";
  if (kv.dtype != DType::kBF16 && kv.dtype != DType::kF8E4M3)
    return "the cache is not BF16 or F8E4M3";
  if (kv.page_stride_bytes > INT64_C(0xFFFFFFFF)) return "pages are 4 GiB or more apart";
  if (int64_t{kv.table_stride} * kv.page_tokens * kv.page_tokens > INT64_C(0xFFFFFFFF))
    return "the sequences' greatest length times the tokens of a page is 2^32 or more";
  return nullptr;
}

void attend_any_f32_split_cuda(const AttendParams& params) {
  const Ragged& batch = params.batch;
  const KvLayer& kv = params.kv;
  if (batch.num_tokens == 0) return;
  CHECK(aligned(params.q) && aligned(params.a) && aligned(kv.k) && aligned(kv.v) &&
            kv.page_stride_bytes % 16 == 0,
        "attend wants q, a and the pages aligned to 16 bytes");
  const int32_t group = params.num_heads / params.num_kv_heads;
  // Tokens of one sequence share a block's keys, as far as its rows go. A window's keys are few:
  // there they do so only when there are more blocks than the machine runs at a time.
  const DeviceLimits limits = device_limits();
  const int32_t tokens_of_seq = ceil_div(batch.num_tokens, std::max(1, batch.num_seqs));
  const int64_t wanted_rows = int64_t{group} * tokens_of_seq;
  const bool few = params.window > 0 && params.window <= kFewKeys &&
                   batch.num_tokens * params.num_kv_heads <= 2 * limits.num_sms;
  int32_t num_rows = group <= 8 ? 8 : 16;
  if (!few && tokens_of_seq > 2 && wanted_rows > 8)
    num_rows = tokens_of_seq <= kFewTokens ? 16 : 32;
  const int32_t tile_tokens = num_rows / group;
  // Sequences end anywhere in a tile: the sum of their tiles is at most this, whatever they are.
  const auto num_tiles = static_cast<int32_t>(
      (int64_t{batch.num_tokens} + int64_t{batch.num_seqs} * (tile_tokens - 1)) / tile_tokens);
  const auto page_tokens = static_cast<uint32_t>(kv.page_tokens);
  const SplitParams split{
      .q = params.q,
      .k = kv.k,
      .v = kv.v,
      .sinks = params.sinks,
      .a = params.a,
      .positions = batch.positions,
      .seq_idx = batch.seq_idx,
      .row_offsets = batch.row_offsets,
      .page_table = kv.page_table,
      .scale_log2 = params.scale * kLog2E,
      .page_stride_bytes = static_cast<uint32_t>(kv.page_stride_bytes),
      // 2^32 / page_tokens, rounded up; where that is 2^32 the mask adds the key itself.
      .page_magic =
          page_tokens == 1 ? 0 : static_cast<uint32_t>(((uint64_t{1} << 32) - 1) / page_tokens + 1),
      .page_mask = page_tokens == 1 ? ~0u : 0,
      .num_tokens = batch.num_tokens,
      .num_seqs = batch.num_seqs,
      .table_stride = kv.table_stride,
      .page_tokens = kv.page_tokens,
      .num_heads = params.num_heads,
      .num_kv_heads = params.num_kv_heads,
      .group = group,
      .window = params.window,
      .group_magic = static_cast<uint32_t>(ceil_div(65536, group)),
      .tile_tokens = tile_tokens,
      .num_splits = 1,
      .num_slots = 1,
      .by_row = params.window > 0 || kv.page_tokens % kRun != 0};
  cudaStream_t stream = launch_stream(params.launch.stream);
  const bool bf16 = kv.dtype == DType::kBF16;
  constexpr DType kBF16 = DType::kBF16, kF8 = DType::kF8E4M3;
  auto* launch = bf16 ? launch_split<kBF16, 32, 2> : launch_split<kF8, 32, 2>;
  if (num_rows == 16) launch = bf16 ? launch_split<kBF16, 16, 2> : launch_split<kF8, 16, 2>;
  if (num_rows == 8) {
    constexpr int kThreeSlots = 96 * 1024 + static_cast<int>(sizeof(Shared<8>));
    launch = bf16 ? launch_split<kBF16, 8, 2> : launch_split<kF8, 8, 2>;
    if (!few && limits.shared_of_block >= kThreeSlots)
      launch = bf16 ? launch_split<kBF16, 8, 3> : launch_split<kF8, 8, 3>;
  }
  launch(params, split, num_tiles, limits, stream);
}

}  // namespace moxie
