// What the kernels for many tokens of a sequence share: the list of tiles, which a kernel of one
// block makes on the device, and the answers' way to memory. A token's 8 query heads of a KV head
// go together.
#pragma once

#include <algorithm>

#include "core/cuda_launch.cuh"
#include "core/cuda_part.h"
#include "kernels/attend/attend.h"
#include "kernels/gemm/staged.cuh"
#include "kernels/ptx.cuh"
#include "kernels/scratch.h"

namespace moxie::attend_tiles {

constexpr int kDim = 64;
constexpr int kGroup = 8;            // query heads of a KV head
constexpr int kRun = 16;             // keys that are contiguous: pages hold a multiple of kRun
constexpr float kLowest = -3.0e38f;  // the maximum of no keys: finite, so that no difference is NaN
// A row's weights are 2^(logit - m), where m may be this much below the greatest logit: sums keep
// their precision, and are scaled far less often.
constexpr float kSlack = 8.0f;

__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Tokens of one sequence.
struct TokenTile {
  int32_t first_token, num_tokens, seq, first_position;
};
// The head of the workspace; the tiles follow.
struct Plan {
  int32_t num_tiles;
  int32_t next_item;  // first item that no block has taken, less the number of blocks
};
struct TileParams {
  const int32_t* positions;
  const int32_t* row_offsets;
  Plan* plan;
  TokenTile* tiles;
  int32_t num_seqs, window;

  __device__ __forceinline__ TokenTile tile(int32_t i) const {
    const int4 read = __ldcg(reinterpret_cast<const int4*>(tiles + i));
    return {read.x, read.y, read.z, read.w};
  }
  __device__ __forceinline__ int32_t first_seen(int32_t position) const {
    return window > 0 ? max(0, position - window + 1) : 0;
  }
};

__device__ __forceinline__ int32_t last_key_of(const TokenTile& tile) {
  return tile.first_position + tile.num_tokens - 1;
}

constexpr int kPlanThreads = 1024;
constexpr int kBuckets = kPlanThreads;  // of tiles that see about the same number of keys

// Calls visit(tile) for the tiles of all sequences, each on one lane.
template <int kTileTokens, typename Visit>
__device__ __forceinline__ void for_each_tile(const TileParams& p, int warp, int lane,
                                              const Visit& visit) {
  for (int32_t base = warp * 32; base < p.num_seqs; base += kPlanThreads) {
    const int32_t seq = base + lane;
    const int32_t begin = seq < p.num_seqs ? __ldcg(p.row_offsets + seq) : 0;
    const int32_t count = seq < p.num_seqs ? __ldcg(p.row_offsets + seq + 1) - begin : 0;
    const int32_t position = count > 0 ? __ldcg(p.positions + begin) : 0;
    for (uint32_t left = __ballot_sync(~0u, count > 0); left != 0; left &= left - 1) {
      const int from = __ffs(static_cast<int>(left)) - 1;
      const int32_t tokens = __shfl_sync(~0u, count, from);
      const int32_t first = __shfl_sync(~0u, begin, from);
      const int32_t start = __shfl_sync(~0u, position, from);
      for (int32_t t = lane * kTileTokens; t < tokens; t += 32 * kTileTokens)
        visit(TokenTile{first + t, min(kTileTokens, tokens - t), base + from, start + t});
    }
  }
}

// Lists the tiles of up to kTileTokens tokens, those with the most keys first.
template <int kTileTokens>
__global__ void __launch_bounds__(kPlanThreads)
    attend_tiles_plan(const __grid_constant__ TileParams p) {
  __shared__ int32_t counts[kBuckets], warp_sums[kPlanThreads / 32], most_keys;
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32, warp = thread / 32;
  counts[thread] = 0;
  if (thread == 0) most_keys = 1;
  __syncthreads();
  const auto keys_of = [&](const TokenTile& tile) {
    return last_key_of(tile) + 1 - p.first_seen(tile.first_position);
  };
  for_each_tile<kTileTokens>(p, warp, lane,
                             [&](const TokenTile& tile) { atomicMax(&most_keys, keys_of(tile)); });
  __syncthreads();
  const float buckets_per_key = static_cast<float>(kBuckets - 1) / static_cast<float>(most_keys);
  const auto bucket_of = [&](const TokenTile& tile) {
    const auto keys = static_cast<float>(keys_of(tile));
    return kBuckets - 1 - min(kBuckets - 1, static_cast<int>(keys * buckets_per_key));
  };
  for_each_tile<kTileTokens>(
      p, warp, lane, [&](const TokenTile& tile) { atomicAdd(&counts[bucket_of(tile)], 1); });
  __syncthreads();

  // The beginning of each bucket.
  const int32_t count = counts[thread];
  int32_t sum = warp_sum_up_to(count);
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  for (int w = 0; w < warp; ++w) sum += warp_sums[w];
  counts[thread] = sum - count;
  __syncthreads();
  wait_for_previous();
  launch_next();
  if (thread == kPlanThreads - 1) *p.plan = {.num_tiles = sum, .next_item = 0};
  for_each_tile<kTileTokens>(p, warp, lane, [&](const TokenTile& tile) {
    p.tiles[atomicAdd(&counts[bucket_of(tile)], 1)] = tile;
  });
}

// Where the answers go. `staged_tokens`: capacity of `a` in rows of staged BF16; 0: F32.
struct AnswerPlace {
  float* a;
  int32_t num_heads, staged_tokens;
};
// Writes a head's values of a token, times `factor`. Of the head's 64 values a lane has those that
// a product leaves in the row `r` of its two: element 4 j + 2 r + e is column 8 j + 2 (lane % 4) +
// e.
__device__ __forceinline__ void write_answer(const AnswerPlace& to, int32_t token, int32_t head,
                                             const float* o, int r, float factor, int lane) {
  if (to.staged_tokens == 0) {
    const int64_t row = static_cast<int64_t>(token) * to.num_heads + head;
    float* at = to.a + row * kDim + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
      *reinterpret_cast<float2*>(at + 8 * j) =
          make_float2(o[4 * j + 2 * r] * factor, o[4 * j + 2 * r + 1] * factor);
    }
    return;
  }
  // A head is a unit of a token's staged row; in each 32 dimensions this lane has the values of one
  // chunk (gemm/staged.cuh).
  std::byte* unit = reinterpret_cast<std::byte*>(to.a) +
                    (static_cast<int64_t>(head) * to.staged_tokens + token) * gemm::kStagedRowBytes;
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* pair = o + 4 * (4 * block + i) + 2 * r;
      words[i] = pack_bf16(pair[0] * factor, pair[1] * factor);
    }
    const int first_pair = 16 * block + lane % 4;
    *reinterpret_cast<uint4*>(unit + gemm::staged_pair_offset(static_cast<uint32_t>(token),
                                                              static_cast<uint32_t>(first_pair))) =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// ---- The host's side ----------------------------------------------------------------------------
/// The list's place in the workspace.
inline TileParams place_tiles(const AttendParams& params, Scratch& scratch) {
  TileParams tiles{.positions = params.batch.positions,
                   .row_offsets = params.batch.row_offsets,
                   .plan = scratch.take<Plan>(1),
                   .tiles = nullptr,
                   .num_seqs = params.batch.num_seqs,
                   .window = params.window};
  tiles.tiles = scratch.take<TokenTile>(params.batch.num_tokens);  // of at least one token each
  return tiles;
}
inline AnswerPlace place_answers(const AttendParams& params) {
  const bool is_staged = params.forms.a == AForm::kBf16Staged;
  return {.a = params.a,
          .num_heads = params.num_heads,
          .staged_tokens = is_staged ? round_up(params.batch.num_tokens, gemm::kStagedRows) : 0};
}

inline void check_aligned(const AttendParams& params) {
  const auto aligned = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  CHECK(aligned(params.q) && aligned(params.a) && aligned(params.kv.k) && aligned(params.kv.v),
        "attend wants q, a and the pages aligned to 16 bytes");
}

/// Launches the kernel that lists tiles. Returns the blocks for the kernel that takes items, of
/// which an SM holds `blocks_of_sm`.
template <int kTileTokens>
unsigned launch_plan(const char* row, const AttendParams& params, const TileParams& tiles,
                     int blocks_of_sm) {
  launch_kernel(row, attend_tiles_plan<kTileTokens>, tiles,
                {.grid = dim3(1), .num_threads = kPlanThreads, .programmatic = true},
                launch_stream(params.launch.stream));
  const int num_sms = num_multiprocessors();
  // A sequence may end anywhere in a tile: whatever the lengths, there are at most this many tiles.
  const Ragged& batch = params.batch;
  const int64_t most_tiles =
      (int64_t{batch.num_tokens} + int64_t{batch.num_seqs} * (kTileTokens - 1)) / kTileTokens;
  return static_cast<unsigned>(
      std::min<int64_t>(int64_t{num_sms} * blocks_of_sm, most_tiles * params.num_kv_heads));
}

}  // namespace moxie::attend_tiles
