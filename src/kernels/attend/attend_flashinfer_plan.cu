// The kernel before FlashInfer's: its first block lists the tiles; the others round the queries
// and, if requested, list the keys' rows.
#include <cuda_runtime.h>

#include <algorithm>

#include "core/cuda_launch.cuh"
#include "kernels/attend/attend_flashinfer_plan.h"
#include "kernels/attend/attend_rows.h"
#include "kernels/ptx.cuh"
#include "kernels/scratch.h"

namespace moxie {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;
constexpr int kPerThread = 8;  // values of queries

struct PlanParams {
  FlashinferPlan plan;
  const float* q;
  const int32_t *positions, *seq_idx, *row_offsets, *page_table;
  int64_t num_values;  // of the queries
  int32_t num_tokens, num_seqs, table_stride, page_tokens, window, tile_tokens;
  int32_t page_rows;  // keys of a head from a page to the next
  bool lists_keys;
};

__device__ __forceinline__ int32_t first_seen(const PlanParams& p, int32_t position) {
  return p.window > 0 ? max(0, position - p.window + 1) : 0;
}

struct SequenceTokens {
  int32_t first_token, num_tokens, first_position;
};
__device__ __forceinline__ SequenceTokens tokens_of(const PlanParams& p, int32_t seq) {
  if (seq >= p.num_seqs) return {};
  const int32_t begin = p.row_offsets[seq], end = p.row_offsets[seq + 1];
  return {begin, end - begin, end > begin ? p.positions[begin] : 0};
}
// Where a sequence's share of key_rows begins: it has room for the sequence's tokens and for the
// other keys that its first token sees.
__device__ __forceinline__ int32_t first_key_row(const PlanParams& p, int32_t seq, int32_t token) {
  return token + seq * (p.window - 1);
}

// ---- The first block ----------------------------------------------------------------------------
// Sets is_missing[i] for the sequences from `first` on that lack a page.
__device__ __forceinline__ void find_missing(const PlanParams& p, int32_t first, int32_t count,
                                             int32_t* is_missing, int warp, int lane) {
  const int32_t parts = max(1, kWarps / count);  // warps that share a sequence
  for (int32_t i = warp / parts; i < count; i += max(1, kWarps / parts)) {
    const SequenceTokens tokens = tokens_of(p, first + i);
    if (tokens.num_tokens == 0) continue;
    const int32_t* pages = p.page_table + static_cast<int64_t>(first + i) * p.table_stride;
    const int32_t last = (tokens.first_position + tokens.num_tokens - 1) / p.page_tokens;
    bool is_any = false;
    for (int32_t page =
             first_seen(p, tokens.first_position) / p.page_tokens + warp % parts * 32 + lane;
         page <= last; page += 32 * parts)
      is_any |= pages[page] < 0;
    if (is_any) is_missing[i] = 1;
  }
}

__device__ __forceinline__ void put_tile(const PlanParams& p, int32_t idx, int32_t seq,
                                         const SequenceTokens& tokens, int32_t first,
                                         bool is_missing) {
  const int32_t count = min(p.tile_tokens, tokens.num_tokens - first);
  const int32_t position = tokens.first_position + first;
  FlashinferTile tile{.first_token = tokens.first_token + first,
                      .num_tokens = count,
                      .first_key = seq * p.table_stride,
                      .num_keys = position + count};
  if (p.lists_keys) {
    const int32_t begin = first_seen(p, position);
    tile.first_key =
        first_key_row(p, seq, tokens.first_token) + begin - first_seen(p, tokens.first_position);
    tile.num_keys -= begin;
  }
  if (is_missing) tile.num_keys = 0;
  p.plan.tiles[idx] = tile;
  p.plan.first_token[idx] = tile.first_token;
  p.plan.first_key[idx] = tile.first_key;
}

__device__ __forceinline__ void list_tiles(const PlanParams& p, int thread) {
  __shared__ int32_t num_tiles[kThreads], num_keys[kThreads], first_tile[kThreads],
      is_missing[kThreads];
  const int lane = thread % 32, warp = thread / 32;
  int32_t total = 0;
  for (int32_t first = 0; first < p.num_seqs; first += kThreads) {
    const int32_t count = min(kThreads, p.num_seqs - first), seq = first + thread;
    is_missing[thread] = 0;
    const SequenceTokens own = tokens_of(p, seq);
    const int32_t own_keys = own.first_position + own.num_tokens;
    // Tiles of the sequences that come before this one in the order by keys.
    int32_t before = 0;
    total = 0;
    for (int32_t base = 0; base < p.num_seqs; base += kThreads) {
      __syncthreads();
      const SequenceTokens tokens = tokens_of(p, base + thread);
      num_tiles[thread] = (tokens.num_tokens + p.tile_tokens - 1) / p.tile_tokens;
      num_keys[thread] = tokens.first_position + tokens.num_tokens;
      __syncthreads();
      for (int32_t i = 0; i < min(kThreads, p.num_seqs - base); ++i) {
        const bool is_before =
            num_keys[i] > own_keys || (num_keys[i] == own_keys && base + i < seq);
        before += is_before ? num_tiles[i] : 0;
        total += num_tiles[i];
      }
    }
    first_tile[thread] = before;
    find_missing(p, first, count, is_missing, warp, lane);
    __syncthreads();
    for (int32_t i = warp; i < count; i += kWarps) {
      const SequenceTokens tokens = tokens_of(p, first + i);
      const int32_t tiles = (tokens.num_tokens + p.tile_tokens - 1) / p.tile_tokens;
      for (int32_t tile = lane; tile < tiles; tile += 32)
        put_tile(p, first_tile[i] + tiles - 1 - tile, first + i, tokens, tile * p.tile_tokens,
                 is_missing[i] != 0);
    }
    __syncthreads();
  }
  for (int32_t i = thread; i < p.plan.most_tiles; i += kThreads) {
    p.plan.tile_idx[i] = i;
    p.plan.zeros[i] = 0;
    p.plan.is_used[i] = i < total;
  }
  if (thread == 0) {
    *p.plan.num_tiles = total;
    p.plan.first_key[p.plan.most_tiles] = p.num_seqs * p.table_stride;
  }
}

// ---- The others ---------------------------------------------------------------------------------
__device__ __forceinline__ void put_key_row(const PlanParams& p, int32_t seq,
                                            const SequenceTokens& tokens, int32_t key) {
  const int32_t page =
      p.page_table[static_cast<int64_t>(seq) * p.table_stride + key / p.page_tokens];
  const int32_t at =
      first_key_row(p, seq, tokens.first_token) + key - first_seen(p, tokens.first_position);
  p.plan.key_rows[at] = max(page, 0) * p.page_rows + key % p.page_tokens;
}

__device__ __forceinline__ void list_key_rows(const PlanParams& p, int64_t thread,
                                              int64_t num_threads) {
  const int32_t behind = p.window - 1;  // keys before a first token that it sees
  for (int64_t i = thread; i < p.num_tokens + int64_t{p.num_seqs} * behind; i += num_threads) {
    const auto token = static_cast<int32_t>(i), other = static_cast<int32_t>(i - p.num_tokens);
    const int32_t seq = other < 0 ? p.seq_idx[token] : other / behind;
    const SequenceTokens tokens = tokens_of(p, seq);
    if (tokens.num_tokens == 0) continue;
    const int32_t key =
        other < 0 ? p.positions[token] : first_seen(p, tokens.first_position) + other % behind;
    if (other >= 0 && key >= tokens.first_position) continue;
    put_key_row(p, seq, tokens, key);
  }
}

__device__ __forceinline__ void round_queries(const PlanParams& p, int64_t thread,
                                              int64_t num_threads) {
  for (int64_t i = thread * kPerThread; i < p.num_values; i += num_threads * kPerThread) {
    const float4 x = *reinterpret_cast<const float4*>(p.q + i);
    const float4 y = *reinterpret_cast<const float4*>(p.q + i + 4);
    *reinterpret_cast<uint4*>(p.plan.q + i) = make_uint4(pack_bf16(x.x, x.y), pack_bf16(x.z, x.w),
                                                         pack_bf16(y.x, y.y), pack_bf16(y.z, y.w));
  }
}

__global__ void __launch_bounds__(kThreads)
    attend_flashinfer_plan(const __grid_constant__ PlanParams p) {
  wait_for_previous();
  launch_next();
  if (blockIdx.x == 0) {
    list_tiles(p, static_cast<int>(threadIdx.x));
    return;
  }
  const int64_t thread = int64_t{blockIdx.x - 1} * kThreads + threadIdx.x;
  const int64_t num_threads = int64_t{gridDim.x - 1} * kThreads;
  if (p.lists_keys) list_key_rows(p, thread, num_threads);
  round_queries(p, thread, num_threads);
}

// Sized by the number of tokens only, for any number of sequences.
FlashinferPlan lay_out(const AttendParams& params, const FlashinferPlanOptions& options,
                       Scratch& scratch) {
  const int64_t tokens = params.batch.num_tokens, seqs = params.batch.num_seqs;
  FlashinferPlan plan;
  // A sequence may end anywhere in a tile.
  plan.most_tiles = static_cast<int32_t>(
      std::min(tokens, (tokens + seqs * (options.tile_tokens - 1)) / options.tile_tokens));
  plan.q = scratch.take<uint16_t>(tokens * params.num_heads * kFlashinferDim);
  plan.tiles = scratch.take<FlashinferTile>(tokens);
  plan.num_tiles = scratch.take<int32_t>(1);
  for (int32_t** part : {&plan.tile_idx, &plan.zeros, &plan.first_token})
    *part = scratch.take<int32_t>(tokens);
  plan.first_key = scratch.take<int32_t>(tokens + 1);
  plan.is_used = scratch.take<bool>(tokens);
  if (options.lists_keys) plan.key_rows = scratch.take<int32_t>(tokens * params.window);
  return plan;
}

bool aligned(const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; }

}  // namespace

const char* flashinfer_refuses(const AttendParams& params) {
  if (params.is_block) return "the tokens are a block";
  const KvLayer& kv = params.kv;
  if (params.head_dim != kFlashinferDim) return "head size is not 64";
  if (params.num_heads != kFlashinferGroup * params.num_kv_heads)
    return "not 8 query heads for a KV head";
  if (kv.dtype != DType::kBF16) return "the cache is not BF16";
  if (kv.page_stride_bytes % (2 * kFlashinferDim) != 0)
    return "pages are not a multiple of 128 bytes apart";
  return nullptr;
}

double flashinfer_cost(const AttendParams& params, int32_t tile_tokens,
                       const FlashinferTimes& times) {
  const int32_t tokens = std::max(1, params.batch.num_tokens);
  const int32_t seqs = std::max(1, params.batch.num_seqs);
  const double tiles = static_cast<double>(seqs) * ceil_div(ceil_div(tokens, seqs), tile_tokens);
  return std::max(times.wave, tiles * times.heads * times.item) /
         (static_cast<double>(tokens) * params.num_kv_heads);
}

double behind_prefill_sm90(const AttendParams& params, double cost) {
  if (attend_prefill_refuses(params) != nullptr) return cost;
  return std::max(cost, 1.01 * attend_prefill_sm90_cost(params));
}

uint64_t flashinfer_workspace(const AttendParams& params, const FlashinferPlanOptions& options) {
  Scratch scratch(nullptr);
  lay_out(params, options, scratch);
  return scratch.bytes();
}

FlashinferPlan plan_flashinfer(const char* row, const AttendParams& params,
                               const FlashinferPlanOptions& options) {
  const Ragged& batch = params.batch;
  const KvLayer& kv = params.kv;
  CHECK(batch.num_seqs <= batch.num_tokens, "attend wants a token of each sequence at least");
  CHECK(aligned(params.q) && aligned(params.a) && aligned(kv.k) && aligned(kv.v),
        "attend wants q, a and the pages aligned to 16 bytes");
  Scratch scratch(params.launch.workspace);
  const PlanParams plan{
      .plan = lay_out(params, options, scratch),
      .q = params.q,
      .positions = batch.positions,
      .seq_idx = batch.seq_idx,
      .row_offsets = batch.row_offsets,
      .page_table = kv.page_table,
      .num_values = int64_t{batch.num_tokens} * params.num_heads * kFlashinferDim,
      .num_tokens = batch.num_tokens,
      .num_seqs = batch.num_seqs,
      .table_stride = kv.table_stride,
      .page_tokens = kv.page_tokens,
      .window = params.window,
      .tile_tokens = options.tile_tokens,
      .page_rows = static_cast<int32_t>(kv.page_stride_bytes / (2 * kFlashinferDim)),
      .lists_keys = options.lists_keys};
  const int64_t num_blocks = ceil_div<int64_t>(plan.num_values, kThreads * kPerThread);
  launch_kernel(row, attend_flashinfer_plan, plan,
                {.grid = dim3(static_cast<unsigned>(1 + std::min<int64_t>(num_blocks, 4096))),
                 .num_threads = kThreads,
                 .programmatic = true},
                launch_stream(params.launch.stream));
  return plan.plan;
}

}  // namespace moxie
