// attend on Hopper for many tokens of a sequence: flash attention with wgmma.
//
// A block takes items, heaviest first. An item is 24 tokens of a sequence and a KV head: three
// warpgroups of 64 rows, each row a token's query head. One warp copies keys and values by the copy
// engine, page by page, in stages of 128 or 96 keys; each warpgroup makes logits (S = Q K^T),
// weights and sums (O += P V), with the sums of one block of keys beside the softmax of the next.
// Q, K, V and weights are BF16, sums F32. Before it, a kernel of one block lists the tiles in
// order. The ordered row takes keys in blocks that begin at fixed positions and weighs each row of
// logits alone, so that a token's result does not depend on the tile that holds it.
// docs/decisions/2026-11-21-prefill-attention.md has the measurements.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>

#include "core/cuda_launch.cuh"
#include "kernels/attend/attend_prefill_sm90.cuh"
#include "kernels/attend/attend_rows.h"

namespace moxie {
namespace {

using namespace attend_wgmma;

// ---- The warpgroups -----------------------------------------------------------------------------
// Each has 64 rows: a lane has rows lane / 4 and lane / 4 + 8 of its warp's 16. These are one query
// head of two neighbouring tokens.
template <int kKeys, bool kInOrder, bool kIsE4m3>
struct Warpgroup {
  using S = Shared<kKeys, kIsE4m3>;
  const PrefillParams& p;
  S& shared;
  int idx, warp, lane;   // warp: of the warpgroup
  int32_t num_read = 0;  // stages, over all items
  float s[kKeys / 2];    // logits, then weights
  float o[kDim / 2];     // weighted sums
  uint32_t weights[kKeys / 4];
  using Soft = Softmax<kKeys, kInOrder>;
  Soft softmax;
  bool page_missing;

  __device__ __forceinline__ void run() {
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) s[i] = 0.0f;
    for (uint32_t turn = 0;; ++turn) {
      const uint32_t slot = turn % kItems;
      wait_barrier(&shared.item_there[slot], turn / kItems & 1);
      const WorkItem work = shared.items[slot];
      if (work.num_blocks == 0) return;
      if (work.tile.num_tokens > idx * kTokens) {
        attend(work, shared.q[slot][idx]);
      } else {
        look_on(work);
      }
      release(&shared.item_free[slot]);
      if (work.tile.num_tokens > idx * kTokens) write(work);
    }
  }

 private:
  __device__ __forceinline__ void release(uint64_t* barrier) const {
    __syncwarp();
    if (lane == 0) arrive_barrier(barrier);
  }

  __device__ __forceinline__ int wait_for_keys() {
    const int stage = num_read % S::kStages;
    wait_barrier(&shared.keys_there[stage], static_cast<uint32_t>(num_read / S::kStages & 1));
    ++num_read;
    page_missing |= shared.page_missing[stage] != 0;
    return stage;
  }
  // Sets values of keys that no token sees to zero, in runs that also hold other keys. The other
  // warpgroups may write the same zeros at any time.
  __device__ __forceinline__ void clear_unseen(const WorkItem& work, int32_t block,
                                               int stage) const {
    if (kIsE4m3) return;  // the converters wrote zeros
    const int32_t unseen = block == 0 ? work.seen_from - work.first_key : 0;
    // Runs of which no key is seen were not copied.
    const int32_t run_begin = kInOrder ? unseen / kRun * kRun : 0, before = unseen - run_begin;
    const int32_t seen = last_key_of(work.tile) + 1 - work.first_key - block * kKeys;
    const int32_t behind = seen < kKeys ? (kRun - seen % kRun) % kRun : 0;
    if (before == 0 && behind == 0) return;
    static_assert(kRun * 8 <= kOwnThreads, "a chunk of 16 bytes for each thread");
    const int32_t thread = warp * 32 + lane, row = thread / 8;
    uint16_t* v = shared.v[stage] + thread % 8 * 8;
    if (row < before) *reinterpret_cast<uint4*>(v + (run_begin + row) * kDim) = {};
    if (row < behind) *reinterpret_cast<uint4*>(v + (seen + row) * kDim) = {};
    fence_bulk_copies();
    barrier_wait(kOwnBarrier + idx, kOwnThreads);
  }
  __device__ __forceinline__ void multiply_keys(const uint16_t* queries, int stage) {
    const uint64_t q = tile_descriptor(queries), k = tile_descriptor(shared.k[stage]);
    wgmma_fence();
    wgmma_rows<false>(s, q, k);
#pragma unroll
    for (int i = 1; i < kDim / 16; ++i) wgmma_rows<true>(s, q + 2 * i, k + 2 * i);
    wgmma_commit();
  }
  __device__ __forceinline__ void multiply_values(int stage) {
    const uint64_t v = tile_descriptor(shared.v[stage]);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i)
      wgmma_m64n64k16(o, weights + 4 * i, v + i * (16 * kRowBytes / 16));
    wgmma_commit();
  }
  // Recomputes the logits of this warp alone; the warpgroup's other warps continue.
  __device__ __forceinline__ void multiply_keys_again(const uint16_t* q, int stage) {
    const auto pair = [&](const uint16_t* tile, int row, int chunk) {
      return *reinterpret_cast<const uint32_t*>(tile + row * kDim + (chunk ^ row % 8) * 8 +
                                                lane % 4 * 2);
    };
    const uint16_t* k = shared.k[stage];
    const int row = 16 * warp + lane / 4;
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
      float sum[4] = {};
#pragma unroll 1
      for (int i = 0; i < kDim / 8; i += 2) {
        mma_m16n8k16(sum, pair(q, row, i), pair(q, row + 8, i), pair(q, row, i + 1),
                     pair(q, row + 8, i + 1), pair(k, 8 * j + lane / 4, i),
                     pair(k, 8 * j + lane / 4, i + 1));
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) s[4 * j + e] = sum[e];
    }
  }
  __device__ __forceinline__ void hide(const WorkItem& work, int32_t block) {
    const int32_t first_key = work.first_key + block * kKeys;
    const int32_t first = work.tile.first_position + idx * kTokens;
    if (first_key + kKeys - 1 > first)
      Soft::hide_after(s, first_key, first + 2 * warp, last_key_of(work.tile), lane);
    const bool is_partly_before =
        kInOrder ? first_key <= first + kTokens - 1 - p.tiles.window : block == 0;
    if (p.tiles.window > 0 && is_partly_before)
      Soft::hide_before(s, first_key, first + 2 * warp, p.tiles.window, lane);
  }
  __device__ __forceinline__ void soften(const WorkItem& work, int32_t block, const uint16_t* q,
                                         int stage) {
    hide(work, block);
    if (softmax.is_plain) {
      if (softmax.add_plain(s)) return;
      multiply_keys_again(q, stage);
      hide(work, block);
    }
    softmax.add(s);
  }
  __device__ __forceinline__ void pack_weights() {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) weights[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
  }

  __device__ __forceinline__ void attend(const WorkItem& work, const uint16_t* q) {
    // Not read before the first logits are ready: the load may wait behind the last item's stores.
    const float sink = p.sinks == nullptr ? -INFINITY : __ldg(p.sinks + head_of(work));
    page_missing = false;
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) o[i] = 0.0f;

    int stage = wait_for_keys();
    clear_unseen(work, 0, stage);
    multiply_keys(q, stage);
    wgmma_wait<0>();
    settle(s);
    hide(work, 0);
    softmax.begin(s, sink * kLog2E, lane);
    pack_weights();
#pragma unroll 1
    for (int32_t block = 1; block < work.num_blocks; ++block) {
      const int next = wait_for_keys();
      clear_unseen(work, block, next);
      multiply_keys(q, next);
      multiply_values(stage);
      wgmma_wait<1>();
      settle(s);
      soften(work, block, q, next);
      wgmma_wait<0>();
      settle(o);
      settle(s);
      release(&shared.keys_free[stage]);
      softmax.scale_sums(o);
      pack_weights();
      stage = next;
    }
    multiply_values(stage);
    wgmma_wait<0>();
    settle(o);
    release(&shared.keys_free[stage]);
  }

  // For a warpgroup that has none of the tile's tokens.
  __device__ __forceinline__ void look_on(const WorkItem& work) {
    for (int32_t block = 0; block < work.num_blocks; ++block)
      release(&shared.keys_free[wait_for_keys()]);
  }

  __device__ __forceinline__ int32_t head_of(const WorkItem& work) const {
    return work.kv_head * kGroup + lane / 4;
  }
  __device__ __forceinline__ void write(const WorkItem& work) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float l = softmax.l[r];
      l += __shfl_xor_sync(~0u, l, 1);
      l += __shfl_xor_sync(~0u, l, 2);
      const float factor = page_missing ? __int_as_float(0x7FC00000) : __fdividef(1.0f, l);
      const int32_t token = idx * kTokens + 2 * warp + r;
      if (token >= work.tile.num_tokens) continue;
      write_answer(p.to, work.tile.first_token + token, head_of(work), o, r, factor, lane);
    }
  }
};

constexpr int kProducerRegisters = 32, kWarpgroupRegisters = 160;
static_assert(128 * (kProducerRegisters + kWarpgroups * kWarpgroupRegisters) <= 65536,
              "an SM has this many registers");

template <int kKeys, bool kInOrder, bool kIsE4m3>
__global__ void __launch_bounds__(kThreads, 1)
    attend_prefill(const __grid_constant__ PrefillParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared<kKeys, kIsE4m3>*>(memory);
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = __shfl_sync(~0u, thread / 32, 0), lane = thread % 32;
  if (thread == 0) shared.init_barriers(p.is_q_staged);
  // Values of keys that no token sees are multiplied by zeros, so that they must be numbers.
  auto* values = reinterpret_cast<uint4*>(shared.v);
  for (int i = thread; i < static_cast<int>(sizeof(shared.v) / sizeof(uint4)); i += kThreads)
    values[i] = uint4{};
  fence_bulk_copies();
  __syncthreads();
  wait_for_previous();
  launch_next();
  if (warp < 4) {
    give_registers<kProducerRegisters>();
    if (warp == 0) {
      Producer<kKeys, kInOrder, kIsE4m3>{.p = p, .shared = shared, .lane = lane}.run();
    } else {
      Converter<kKeys, kIsE4m3>{.p = p, .shared = shared, .idx = warp - 1, .lane = lane}.run();
    }
  } else {
    take_registers<kWarpgroupRegisters>();
    Warpgroup<kKeys, kInOrder, kIsE4m3> warpgroup{
        .p = p, .shared = shared, .idx = warp / 4 - 1, .warp = warp % 4, .lane = lane};
    warpgroup.run();
  }
#endif
}

// ---- The launch ---------------------------------------------------------------------------------
constexpr const char* kPrefill = "attend_prefill";  // in error messages
template <bool kIsE4m3>
constexpr int64_t kKeyBytes = kDim*(kIsE4m3 ? 1 : 2);  // of a head's key in the cache

// The rows of all pages from `base` on, in boxes of a run. The number of pages is not known here:
// the map ends where row numbers end.
template <bool kIsE4m3>
CUtensorMap map_runs(const std::byte* base) {
  return tensor_map<2>(kPrefill, base,
                       kIsE4m3 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                       {kDim, int64_t{1} << 31}, {kKeyBytes<kIsE4m3>}, {kDim, kRun},
                       kIsE4m3 ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B,
                       CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

// Staged queries in boxes of a tile and a KV head.
CUtensorMap map_staged_queries(const AttendParams& params) {
  const int64_t num_heads = params.num_heads;
  return tensor_map<3>(kPrefill, params.q, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                       {kDim, num_heads, params.batch.num_tokens},
                       {kRowBytes, num_heads * kRowBytes}, {kDim, kGroup, kTileTokens},
                       CU_TENSOR_MAP_SWIZZLE_128B);
}
// F32 queries in the same boxes. A token's floats of a KV head make two rows, since a box row holds
// at most 256.
CUtensorMap map_queries(const AttendParams& params) {
  constexpr int kHalf = kGroup * kDim / 2, kFloat = sizeof(float);
  static_assert(kHalf <= 256);
  const int64_t width = int64_t{params.num_heads} * kDim;
  return tensor_map<3>(kPrefill, params.q, CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                       {kHalf, width / kHalf, params.batch.num_tokens},
                       {kHalf * kFloat, width * kFloat}, {kHalf, 2, kTileTokens},
                       CU_TENSOR_MAP_SWIZZLE_NONE);
}

template <bool kInOrder, bool kIsE4m3>
void run_prefill(const AttendParams& params, const char* row) {
  const KvLayer& kv = params.kv;
  if (params.batch.num_tokens == 0) return;
  check_aligned(params);
  Scratch scratch(params.launch.workspace);
  const PrefillParams prefill{
      .k_runs = map_runs<kIsE4m3>(kv.k),
      .v_runs = map_runs<kIsE4m3>(kv.v),
      .q_tokens =
          params.forms.q == QForm::kBf16Staged ? map_staged_queries(params) : map_queries(params),
      .sinks = params.sinks,
      .page_table = kv.page_table,
      .tiles = place_tiles(params, scratch),
      .to = place_answers(params),
      .scale_log2 = params.q_factor(),
      .page_rows = static_cast<int32_t>(kv.page_stride_bytes / kKeyBytes<kIsE4m3>),
      .table_stride = kv.table_stride,
      .page_tokens = kv.page_tokens,
      .num_kv_heads = params.num_kv_heads,
      .is_q_staged = params.forms.q == QForm::kBf16Staged};
  const unsigned num_blocks = launch_plan<kTileTokens>(row, params, prefill.tiles, 1);
  // If two of the smaller blocks hold all keys of a window that a tile sees.
  const bool few_keys = params.window > 0 && params.window + kTileTokens + kRun <= 2 * 96;
  const LaunchShape shape{
      .grid = dim3(num_blocks),
      .num_threads = kThreads,
      .shared_bytes = few_keys ? sizeof(Shared<96, kIsE4m3>) : sizeof(Shared<128, kIsE4m3>),
      .programmatic = true};
  launch_kernel(
      row,
      few_keys ? attend_prefill<96, kInOrder, kIsE4m3> : attend_prefill<128, kInOrder, kIsE4m3>,
      prefill, shape, launch_stream(params.launch.stream));
}

}  // namespace

// In units of the time of the row that splits the keys, as measured at depths of 4,096 and 30,720:
// that row takes as long for 95 tokens of 8 KV heads as a wave of items (one an SM) takes here.
double attend_prefill_sm90_cost(const AttendParams& params) {
  constexpr double kSms = 132, kTokensOfWave = 95 * 8;
  const double tokens = std::max(1, params.batch.num_tokens);
  const int32_t seqs = std::max(1, params.batch.num_seqs);
  const double tiles =
      static_cast<double>(seqs) * ceil_div(ceil_div(params.batch.num_tokens, seqs), kTileTokens);
  const double waves = std::max(1.0, tiles * params.num_kv_heads / kSms);
  // Blocks of 96 keys for windows: 8,192 tokens take 100 us of that row's 785, 934 of 4,488 in a
  // full layer.
  const double of_window = params.window > 0 ? 0.6 : 1.0;
  return of_window * waves * kTokensOfWave / (tokens * params.num_kv_heads);
}

void attend_bf16_prefill_wgmma_sm90(const AttendParams& params) {
  run_prefill<false, false>(params, "attend_bf16_prefill_wgmma_sm90");
}

void attend_bf16_ordered_wgmma_sm90(const AttendParams& params) {
  run_prefill<true, false>(params, "attend_bf16_ordered_wgmma_sm90");
}

void attend_e4m3_prefill_wgmma_sm90(const AttendParams& params) {
  run_prefill<false, true>(params, "attend_e4m3_prefill_wgmma_sm90");
}

void attend_e4m3_ordered_wgmma_sm90(const AttendParams& params) {
  run_prefill<true, true>(params, "attend_e4m3_ordered_wgmma_sm90");
}

}  // namespace moxie
