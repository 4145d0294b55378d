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

#include "kernels/attend/attend_ordered_mma.cuh"
#include "kernels/attend/attend_rows.h"
#include "kernels/matrices.cuh"

namespace moxie {
namespace {

using namespace attend_ordered;

// The sums of weights with which a row may be relative to 0. Weights that underflow are below 2^-80
// of the sum.
constexpr float kPlainLeast = 0x1p-40f, kPlainMost = 0x1p64f;

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
