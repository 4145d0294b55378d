// Grouped sigmoid routing on the device, a warp a token, and the sort of its pairs by expert.
//
// 1 KB of logits a token: limited by latency, so that tokens are spread over many warps.
#include <cuda_fp16.h>

#include "core/cuda_launch.cuh"
#include "kernels/cluster.cuh"
#include "kernels/moe_fp8/moe_fp8_choose_cuda.cuh"
#include "kernels/moe_fp8/moe_fp8_pairs_cuda.h"
#include "kernels/moe_fp8/moe_fp8_rows.h"
#include "kernels/ptx.cuh"

namespace moxie::moe_fp8 {
namespace {

constexpr int kFewThreads = 512, kTokensOfBlock = kFewThreads / 32;
constexpr int kRouteThreads = 256, kSortThreads = 1024, kAddThreads = 256;
constexpr int kMaxWords = kMostFewTokens / 32;
static_assert(kMostFewTokens / kTokensOfBlock <= 8, "blocks of a cluster");

/// One warp: writes the token's local experts by rising number, then -1.
__device__ __forceinline__ void route_token(const Piece& piece, int32_t token, uint32_t* keys) {
  const MoeFp8Params& p = piece.p;
  const int lane = threadIdx.x % 32;
  const Choices choices = is_usual(p) ? choose_of_256(p, token) : choose_of_any(p, token, keys);
  const float weight = choices.score / (choices.sum + 1e-20f) * p.routed_scaling_factor;
  const int32_t local = choices.expert - p.local_expert_offset;
  const bool is_local = lane < p.top_k && local >= 0 && local < p.num_local_experts;
  int32_t rank = 0;
  for (int k = 0; k < p.top_k; ++k)
    rank += __shfl_sync(~0u, is_local ? local : kMostExperts, k) < local;
  const int num_local = __popc(__ballot_sync(~0u, is_local));
  const int64_t first = int64_t{token} * p.top_k;
  if (is_local) {
    piece.chosen[first + rank] = local;
    piece.chosen_weights[first + rank] = weight;
  }
  if (lane < p.top_k && lane >= num_local)
    piece.chosen[first + lane] = piece.pair_of_choice[first + lane] = -1;
}

struct FewShared {
  uint32_t bits[kMostLocal][kMaxWords];
  int32_t begin[kMostLocal];
};

/// One warp: each expert's first pair, and its tiles.
__device__ __forceinline__ void cut_few(const Piece& piece, FewShared& shared) {
  const int lane = threadIdx.x % 32;
  const int32_t num_local = piece.p.num_local_experts;
  int32_t first_pair = 0, first_tile = 0;
  for (int32_t e0 = 0; e0 < num_local; e0 += 32) {
    const int32_t e = e0 + lane;
    int32_t n = 0;
    if (e < num_local) {
      for (const uint32_t word : shared.bits[e]) n += __popc(word);
    }
    const int32_t num_tiles = (n + kFewPairs - 1) / kFewPairs;
    const int32_t pairs_to = warp_sum_up_to(n), tiles_to = warp_sum_up_to(num_tiles);
    const int32_t begin = first_pair + pairs_to - n;
    if (e < num_local) shared.begin[e] = begin;
    for (int32_t i = 0; i < num_tiles; ++i)
      piece.tiles[first_tile + tiles_to - num_tiles + i] = {
          e, begin + i * kFewPairs, min(kFewPairs, n - i * kFewPairs), TileKind::kAlone};
    first_pair += __shfl_sync(~0u, pairs_to, 31);
    first_tile += __shfl_sync(~0u, tiles_to, 31);
  }
  if (lane == 0) *piece.num_tiles = first_tile;
}

/// A cluster routes; its first block sorts.
__global__ void __launch_bounds__(kFewThreads)
    route_few_tokens(const __grid_constant__ Piece piece) {
  __shared__ FewShared shared;
  extern __shared__ uint32_t keys[];
  const MoeFp8Params& p = piece.p;
  const int warp = threadIdx.x / 32;
  for (int32_t i = threadIdx.x; i < kMostLocal * kMaxWords; i += kFewThreads)
    shared.bits[i / kMaxWords][i % kMaxWords] = 0;
  wait_for_previous();
  launch_next();
  const int32_t token = static_cast<int32_t>(blockIdx.x) * kTokensOfBlock + warp;
  if (token < p.num_tokens) route_token(piece, token, keys + warp * num_keys(p));
  __threadfence();
  if (gridDim.x > 1)
    ClusterOfBlocks().sync();
  else
    __syncthreads();
  if (blockIdx.x != 0) return;
  const int32_t num_choices = p.num_tokens * p.top_k;
  for (int32_t i = threadIdx.x; i < num_choices; i += kFewThreads) {
    const int32_t e = __ldcg(piece.chosen + i), t = i / p.top_k;
    if (e >= 0) atomicOr(&shared.bits[e][t / 32], 1u << (t % 32));
  }
  __syncthreads();
  if (warp == 0) cut_few(piece, shared);
  __syncthreads();
  for (int32_t i = threadIdx.x; i < num_choices; i += kFewThreads) {
    const int32_t e = __ldcg(piece.chosen + i), t = i / p.top_k;
    int32_t pair = -1;
    if (e >= 0) {
      pair = shared.begin[e] + __popc(shared.bits[e][t / 32] & ((1u << (t % 32)) - 1));
      for (int32_t w = 0; w < t / 32; ++w) pair += __popc(shared.bits[e][w]);
      piece.pair_token[pair] = t;
    }
    piece.pair_of_choice[i] = pair;
  }
}

/// A block routes 8 tokens, one a warp, to a byte of a word of bits an expert.
__global__ void __launch_bounds__(kRouteThreads) route_tokens(const __grid_constant__ Piece piece) {
  static_assert(kRouteThreads == 8 * 32 && kRouteThreads >= kMostLocal, "threads of a block");
  __shared__ uint32_t bits[kMostLocal];
  extern __shared__ uint32_t keys[];
  const MoeFp8Params& p = piece.p;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  bits[threadIdx.x] = 0;
  wait_for_previous();
  launch_next();
  __syncthreads();
  const int32_t token = static_cast<int32_t>(blockIdx.x) * (kRouteThreads / 32) + warp;
  if (token < p.num_tokens) {
    route_token(piece, token, keys + warp * num_keys(p));
    __syncwarp();
    const int32_t e = lane < p.top_k ? piece.chosen[int64_t{token} * p.top_k + lane] : -1;
    if (e >= 0) atomicOr(&bits[e], 1u << warp);
  }
  __syncthreads();
  const auto e = static_cast<int32_t>(threadIdx.x);
  if (e < p.num_local_experts)
    reinterpret_cast<uint8_t*>(piece.bits + int64_t{e} * piece.words)[blockIdx.x] =
        static_cast<uint8_t>(bits[e]);
}

/// One block: the pairs of each expert in order, and its tiles.
__global__ void __launch_bounds__(kSortThreads) sort_tokens(const __grid_constant__ Piece piece) {
  __shared__ int32_t counts[kMostLocal], begins[kMostLocal], first_tiles[kMostLocal];
  constexpr int kWarps = kSortThreads / 32;
  const int32_t num_local = piece.p.num_local_experts, words = piece.words;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  wait_for_previous();
  launch_next();
  for (int32_t e = warp; e < num_local; e += kWarps) {
    int32_t n = 0;
    for (int32_t w = lane; w < words; w += 32) n += __popc(piece.bits[int64_t{e} * words + w]);
    n = __reduce_add_sync(~0u, n);
    if (lane == 0) counts[e] = n;
  }
  __syncthreads();
  const auto tiles_of = [](int32_t n) { return (n + kManyPairs - 1) / kManyPairs; };
  if (warp == 0) {
    int32_t first_pair = 0, first_tile = 0;
    for (int32_t e0 = 0; e0 < num_local; e0 += 32) {
      const int32_t e = e0 + lane, n = e < num_local ? counts[e] : 0;
      const int32_t pairs_to = warp_sum_up_to(n), tiles_to = warp_sum_up_to(tiles_of(n));
      if (e < num_local) {
        begins[e] = piece.begin[e] = first_pair + pairs_to - n;
        first_tiles[e] = first_tile + tiles_to - tiles_of(n);
      }
      first_pair += __shfl_sync(~0u, pairs_to, 31);
      first_tile += __shfl_sync(~0u, tiles_to, 31);
    }
    if (lane == 0) piece.begin[num_local] = first_pair, *piece.num_tiles = first_tile;
  }
  __syncthreads();
  for (int32_t e = threadIdx.x; e < num_local; e += kSortThreads) {
    const int32_t n = counts[e];
    const int32_t num_in_twos = (n + kManyPairs / 2 - 1) / kManyPairs / 2 * 2;
    for (int32_t i = 0; i < tiles_of(n); ++i) {
      const TileKind kind = i >= num_in_twos ? TileKind::kAlone
                            : i % 2 == 0     ? TileKind::kFirst
                                             : TileKind::kSecond;
      piece.tiles[first_tiles[e] + i] = {e, begins[e] + i * kManyPairs,
                                         min(kManyPairs, n - i * kManyPairs), kind};
    }
  }
  for (int32_t e = warp; e < num_local; e += kWarps) {
    int32_t first = begins[e];
    for (int32_t w0 = 0; w0 < words; w0 += 32) {
      const int32_t w = w0 + lane;
      uint32_t word = w < words ? piece.bits[int64_t{e} * words + w] : 0;
      const int32_t upto = warp_sum_up_to(__popc(word));
      int32_t pair = first + upto - __popc(word);
      first += __shfl_sync(~0u, upto, 31);
      for (; word != 0; word &= word - 1)
        piece.pair_token[pair++] = w * 32 + __ffs(static_cast<int>(word)) - 1;
    }
  }
}

/// Four neighbouring outputs of a pair; `at`: of the first.
template <DType kType>
struct FourSums {
  uint2 words;
  __device__ void load(const void* sums, int64_t at) {
    words = __ldcs(reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(sums) + at));
  }
  __device__ float4 values() const {
    if constexpr (kType == DType::kBF16)
      return {from_bf16(words.x & 0xFFFF), from_bf16(words.x >> 16), from_bf16(words.y & 0xFFFF),
              from_bf16(words.y >> 16)};
    const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&words.x));
    const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&words.y));
    return {low.x, low.y, high.x, high.y};
  }
};
template <>
struct FourSums<DType::kF32> {
  float4 of_pair;
  __device__ void load(const void* sums, int64_t at) {
    of_pair = __ldcs(reinterpret_cast<const float4*>(static_cast<const float*>(sums) + at));
  }
  __device__ float4 values() const { return of_pair; }
};

/// A block has a token, a warp 7 blocks of 128 columns at once; by rising expert, so that the order
/// is always the same.
template <DType kType>
__global__ void __launch_bounds__(kAddThreads) add_weighted(const __grid_constant__ Piece piece) {
  constexpr int kAtOnce = 7;
  wait_for_previous();
  launch_next();
  const MoeFp8Params& p = piece.p;
  const auto token = static_cast<int32_t>(blockIdx.x);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int32_t blocks = p.hidden / kFp8Block;
  const int32_t* pairs = piece.pair_of_choice + int64_t{token} * p.top_k;
  const float* weights = piece.chosen_weights + int64_t{token} * p.top_k;
  for (int32_t block = warp * kAtOnce; block < blocks; block += kAddThreads / 32 * kAtOnce) {
    const int32_t first = block * kFp8Block + lane * 4;
    float4 sums[kAtOnce] = {};
    for (int32_t k = 0; k < p.top_k; ++k) {
      const int32_t pair = pairs[k];
      if (pair < 0) break;
      const float weight = weights[k];
      float scale = 1;  // of block + lane
      if constexpr (kType == DType::kF16)
        scale = __ldg(piece.sum_scales + int64_t{pair} * blocks + min(block + lane, blocks - 1));
      FourSums<kType> values[kAtOnce] = {};
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (block + i < blocks)
          values[i].load(piece.sums, int64_t{pair} * p.hidden + first + i * kFp8Block);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        float4 v = values[i].values();
        if constexpr (kType == DType::kF16) {
          const float by = __shfl_sync(~0u, scale, i);
          v = {v.x * by, v.y * by, v.z * by, v.w * by};
        }
        sums[i].x += weight * v.x;
        sums[i].y += weight * v.y;
        sums[i].z += weight * v.z;
        sums[i].w += weight * v.w;
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (block + i < blocks)
        *reinterpret_cast<uint2*>(p.output + int64_t{token} * p.hidden + first + i * kFp8Block) = {
            pack_bf16(sums[i].x, sums[i].y), pack_bf16(sums[i].z, sums[i].w)};
    }
  }
}

}  // namespace

int64_t most_pairs(const MoeFp8Params& p, int32_t num_tokens) {
  return int64_t{num_tokens} * std::min(p.top_k, p.num_local_experts);
}

int64_t most_tiles(const MoeFp8Params& p, int32_t num_tokens, int32_t tile_pairs) {
  const int64_t pairs = most_pairs(p, num_tokens);
  return pairs / tile_pairs + std::min<int64_t>(p.num_local_experts, pairs);
}

Piece take_piece(const MoeFp8Params& p, int32_t num_tokens, int32_t tile_pairs, DType sums_type,
                 Scratch& scratch) {
  const int64_t choices = int64_t{num_tokens} * p.top_k, pairs = most_pairs(p, num_tokens);
  Piece piece{.p = p, .scale_stride = p.num_tokens, .words = ceil_div(num_tokens, 32)};
  piece.chosen = scratch.take<int32_t>(choices);
  piece.chosen_weights = scratch.take<float>(choices);
  piece.pair_of_choice = scratch.take<int32_t>(choices);
  piece.begin = scratch.take<int32_t>(p.num_local_experts + 1);
  piece.pair_token = scratch.take<int32_t>(pairs);
  piece.bits = scratch.take<uint32_t>(int64_t{p.num_local_experts} * piece.words);
  piece.tiles = scratch.take<PairTile>(most_tiles(p, num_tokens, tile_pairs));
  piece.num_tiles = scratch.take<int32_t>(1);
  piece.sums_type = sums_type;
  piece.sums = scratch.take<std::byte>(pairs * p.hidden * (sums_type == DType::kF32 ? 4 : 2));
  if (sums_type == DType::kF16)
    piece.sum_scales = scratch.take<float>(pairs * (p.hidden / kFp8Block));
  return piece;
}

void set_tokens(const MoeFp8Params& p, int32_t first, int32_t count, Piece& piece) {
  piece.p.num_tokens = count;
  piece.words = ceil_div(count, 32);
  piece.p.routing_logits = p.routing_logits + int64_t{first} * p.num_experts;
  piece.p.hidden_states = p.hidden_states + int64_t{first} * p.hidden;
  piece.p.hidden_states_scale = p.hidden_states_scale + first;
  piece.p.output = p.output + int64_t{first} * p.hidden;
}

void route_few(const char* row, const Piece& piece, Stream* stream) {
  const int num_blocks = ceil_div(piece.p.num_tokens, kTokensOfBlock);
  launch_kernel(row, route_few_tokens, piece,
                {.grid = dim3(static_cast<unsigned>(num_blocks)),
                 .num_threads = kFewThreads,
                 .shared_bytes = uint64_t{4} * kTokensOfBlock * num_keys(piece.p),
                 .cluster = num_blocks,
                 .programmatic = true},
                launch_stream(stream));
}

void route_many(const char* row, const Piece& piece, Stream* stream) {
  const auto launch = [&](auto kernel, int num_blocks, int num_threads, uint64_t shared_bytes) {
    launch_kernel(row, kernel, piece,
                  {.grid = dim3(static_cast<unsigned>(num_blocks)),
                   .num_threads = num_threads,
                   .shared_bytes = shared_bytes,
                   .programmatic = true},
                  launch_stream(stream));
  };
  launch(route_tokens, 4 * piece.words, kRouteThreads,
         uint64_t{4} * (kRouteThreads / 32) * num_keys(piece.p));
  launch(sort_tokens, 1, kSortThreads, 0);
}

void add_pairs(const char* row, const Piece& piece, Stream* stream) {
  const auto kernel = piece.sums_type == DType::kF32    ? add_weighted<DType::kF32>
                      : piece.sums_type == DType::kBF16 ? add_weighted<DType::kBF16>
                                                        : add_weighted<DType::kF16>;
  launch_kernel(row, kernel, piece,
                {.grid = dim3(static_cast<unsigned>(piece.p.num_tokens)),
                 .num_threads = kAddThreads,
                 .programmatic = true},
                launch_stream(stream));
}

}  // namespace moxie::moe_fp8

namespace moxie {

const char* moe_fp8_cuda_refuses(const MoeFp8Params& p) {
  if (const char* why = moe_fp8_shape_fault(p)) return why;
  if (p.num_experts > moe_fp8::kMostExperts) return "on CUDA: at most 512 experts";
  if (p.num_local_experts > moe_fp8::kMostLocal) return "on CUDA: at most 256 local experts";
  if (p.top_k > moe_fp8::kMostTopK) return "on CUDA: at most 32 choices a token";
  return nullptr;
}

}  // namespace moxie
