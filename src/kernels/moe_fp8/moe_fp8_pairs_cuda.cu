// Grouped sigmoid routing on the device, a warp a token, and the sort of its pairs by expert.
//
// The choices are those of moe_fp8_routing.cpp; expf() differs from the host's exp() by an ulp or
// two, so that experts whose scores are as near as that may change places. 1 KB of logits a token:
// limited by latency, so that tokens are spread over many warps.
#include "core/cuda_launch.cuh"
#include "kernels/cluster.cuh"
#include "kernels/moe_fp8/moe_fp8_pairs_cuda.h"
#include "kernels/moe_fp8/moe_fp8_rows.h"
#include "kernels/ptx.cuh"

namespace moxie::moe_fp8 {
namespace {

constexpr int kFewThreads = 512, kTokensOfBlock = kFewThreads / 32;
constexpr int kRouteThreads = 1024, kPlaceThreads = 256, kSortThreads = 1024, kAddThreads = 256;
constexpr int kMaxWords = kMostFewTokens / 32;
static_assert(kMostFewTokens / kTokensOfBlock <= 8, "blocks of a cluster");

/// Orders floats as numbers above 0: NaN above all, both zeros alike.
__device__ __forceinline__ uint32_t key_of(float value) {
  if (value != value) return ~0u;
  if (value == 0.0f) return 0x80000000u;
  const uint32_t bits = __float_as_uint(value);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float value_of(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key);
}
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float from_bf16(uint32_t bits) { return __uint_as_float(bits << 16); }

/// Choice number k is in lane k; `sum` of all in every lane.
struct Choices {
  int32_t expert = 0;
  float score = 0, sum = 0;
};

/// The sizes that choose_of_256() is written for.
__host__ __device__ inline bool is_usual(const MoeFp8Params& p) {
  return p.num_experts == 256 && p.num_groups == 8;
}

/// 256 experts in 8 groups: lane l has experts 8 l to 8 l + 7, a group is four lanes.
__device__ __forceinline__ Choices choose_of_256(const MoeFp8Params& p, int32_t token) {
  const int lane = threadIdx.x % 32;
  const auto* logits =
      reinterpret_cast<const float4*>(p.routing_logits + int64_t{token} * 256 + lane * 8);
  const float4 a = logits[0], b = logits[1];
  const uint4 bias = *reinterpret_cast<const uint4*>(p.routing_bias + lane * 8);
  const float x[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  const uint32_t biases[4] = {bias.x, bias.y, bias.z, bias.w};
  float score[8];
  uint32_t key[8], first = 0, second = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    score[j] = sigmoid(x[j]);
    key[j] =
        key_of(score[j] + from_bf16(j % 2 == 0 ? biases[j / 2] & 0xFFFF : biases[j / 2] >> 16));
    second = max(second, min(first, key[j]));
    first = max(first, key[j]);
  }
#pragma unroll
  for (int offset = 1; offset < 4; offset *= 2) {
    const uint32_t f = __shfl_xor_sync(~0u, first, offset);
    const uint32_t s = __shfl_xor_sync(~0u, second, offset);
    second = max(min(first, f), max(second, s));
    first = max(first, f);
  }
  const uint32_t of_group = key_of(value_of(first) + value_of(second));
  int num_better = 0;
#pragma unroll
  for (int g = 0; g < 8; ++g) {
    const uint32_t other = __shfl_sync(~0u, of_group, 4 * g);
    num_better += other > of_group || (other == of_group && g < lane / 4);
  }
  if (num_better >= p.kept_groups) {
#pragma unroll
    for (uint32_t& k : key) k = 0;
  }
  Choices choices;
#pragma unroll 1
  for (int k = 0; k < p.top_k; ++k) {
    uint32_t best = key[0];
#pragma unroll
    for (int j = 1; j < 8; ++j) best = max(best, key[j]);
    const uint32_t top = __reduce_max_sync(~0u, best);
    const int owner = __ffs(static_cast<int>(__ballot_sync(~0u, best == top))) - 1;
    int at = 0;
    float of_best = 0;
#pragma unroll
    for (int j = 7; j >= 0; --j) {
      if (key[j] == top) at = j, of_best = score[j];
    }
    if (lane == owner) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (j == at) key[j] = 0;
      }
    }
    const float found = __shfl_sync(~0u, of_best, owner);
    const int32_t expert = 8 * owner + __shfl_sync(~0u, at, owner);
    choices.sum += found;
    if (lane == k) choices.expert = expert, choices.score = found;
  }
  return choices;
}

/// Words of shared memory that choose_of_any() needs for a warp.
__host__ __device__ inline int32_t num_keys(const MoeFp8Params& p) {
  return is_usual(p) ? 0 : p.num_experts + p.num_groups;
}

/// Any numbers of experts and groups, with the keys in shared memory.
__device__ __noinline__ Choices choose_of_any(const MoeFp8Params& p, int32_t token,
                                              uint32_t* keys) {
  const int lane = threadIdx.x % 32;
  const int32_t group_size = p.num_experts / p.num_groups;
  uint32_t* of_group = keys + p.num_experts;
  const float* logits = p.routing_logits + int64_t{token} * p.num_experts;
  for (int32_t e = lane; e < p.num_experts; e += 32)
    keys[e] = key_of(sigmoid(logits[e]) + from_bf16(p.routing_bias[e]));
  __syncwarp();
  for (int32_t g = lane; g < p.num_groups; g += 32) {
    uint32_t first = 0, second = 0;
    for (int32_t e = g * group_size; e < (g + 1) * group_size; ++e) {
      second = max(second, min(first, keys[e]));
      first = max(first, keys[e]);
    }
    of_group[g] = group_size == 1 ? first : key_of(value_of(first) + value_of(second));
  }
  __syncwarp();
  for (int32_t g = lane; g < p.num_groups; g += 32) {
    int32_t num_better = 0;
    for (int32_t h = 0; h < p.num_groups; ++h)
      num_better += of_group[h] > of_group[g] || (of_group[h] == of_group[g] && h < g);
    if (num_better < p.kept_groups) continue;
    for (int32_t e = g * group_size; e < (g + 1) * group_size; ++e) keys[e] = 0;
  }
  __syncwarp();
  Choices choices;
  for (int k = 0; k < p.top_k; ++k) {
    uint32_t best = 0;
    int32_t at = 0;
    for (int32_t e = lane; e < p.num_experts; e += 32) {
      if (keys[e] > best) best = keys[e], at = e;
    }
    const uint32_t top = __reduce_max_sync(~0u, best);
    const int32_t expert = __reduce_min_sync(~0u, best == top ? at : kMostExperts);
    if (lane == expert % 32) keys[expert] = 0;
    const float found = sigmoid(logits[expert]);
    choices.sum += found;
    if (lane == k) choices.expert = expert, choices.score = found;
  }
  return choices;
}

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
  int32_t* chosen = piece.chosen + int64_t{token} * p.top_k;
  if (is_local) {
    chosen[rank] = local;
    piece.chosen_weights[int64_t{token} * p.top_k + rank] = weight;
  }
  if (lane < p.top_k && lane >= num_local) chosen[lane] = -1;
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

/// A block routes 32 tokens, one a warp, to one word of bits an expert.
__global__ void __launch_bounds__(kRouteThreads) route_tokens(const __grid_constant__ Piece piece) {
  static_assert(kRouteThreads == 32 * 32 && kRouteThreads >= kMostLocal, "threads of a block");
  __shared__ uint32_t bits[kMostLocal];
  extern __shared__ uint32_t keys[];
  const MoeFp8Params& p = piece.p;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x < kMostLocal) bits[threadIdx.x] = 0;
  wait_for_previous();
  launch_next();
  __syncthreads();
  const int32_t token = static_cast<int32_t>(blockIdx.x) * 32 + warp;
  if (token < p.num_tokens) {
    route_token(piece, token, keys + warp * num_keys(p));
    __syncwarp();
    const int32_t e = lane < p.top_k ? piece.chosen[int64_t{token} * p.top_k + lane] : -1;
    if (e >= 0) atomicOr(&bits[e], 1u << warp);
  }
  __syncthreads();
  const auto e = static_cast<int32_t>(threadIdx.x);
  if (e < p.num_local_experts) piece.bits[int64_t{e} * piece.words + blockIdx.x] = bits[e];
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

/// Finds each choice's pair among its expert's, which rise by token.
__global__ void __launch_bounds__(kPlaceThreads)
    place_choices(const __grid_constant__ Piece piece) {
  wait_for_previous();
  launch_next();
  const int32_t i = static_cast<int32_t>(blockIdx.x) * kPlaceThreads + threadIdx.x;
  if (i >= piece.p.num_tokens * piece.p.top_k) return;
  const int32_t e = piece.chosen[i], token = i / piece.p.top_k;
  int32_t pair = -1;
  if (e >= 0) {
    pair = piece.begin[e];
    int32_t end = piece.begin[e + 1];
    while (end - pair > 1) {
      const int32_t middle = (pair + end) / 2;
      (piece.pair_token[middle] <= token ? pair : end) = middle;
    }
  }
  piece.pair_of_choice[i] = pair;
}

__device__ __forceinline__ float4 four_of(const float* at) {
  return __ldcs(reinterpret_cast<const float4*>(at));
}
__device__ __forceinline__ float4 four_of(const uint16_t* at) {
  const uint2 v = __ldcs(reinterpret_cast<const uint2*>(at));
  return {from_bf16(v.x & 0xFFFF), from_bf16(v.x >> 16), from_bf16(v.y & 0xFFFF),
          from_bf16(v.y >> 16)};
}

/// A block has a token, a thread four columns of every 4 * kAddThreads; by rising expert, so that
/// the order is always the same. T: float, or uint16_t for BF16.
template <typename T>
__global__ void __launch_bounds__(kAddThreads) add_weighted(const __grid_constant__ Piece piece) {
  constexpr int kAtOnce = 7, kStep = 4 * kAddThreads;
  wait_for_previous();
  launch_next();
  const MoeFp8Params& p = piece.p;
  const auto token = static_cast<int32_t>(blockIdx.x);
  const int32_t* pairs = piece.pair_of_choice + int64_t{token} * p.top_k;
  const float* weights = piece.chosen_weights + int64_t{token} * p.top_k;
  for (auto first = static_cast<int32_t>(threadIdx.x) * 4; first < p.hidden;
       first += kAtOnce * kStep) {
    float4 sums[kAtOnce] = {};
    for (int32_t k = 0; k < p.top_k; ++k) {
      const int32_t pair = pairs[k];
      if (pair < 0) break;
      const float weight = weights[k];
      const T* from = static_cast<const T*>(piece.sums) + int64_t{pair} * p.hidden + first;
      float4 values[kAtOnce] = {};
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (first + i * kStep < p.hidden) values[i] = four_of(from + i * kStep);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        sums[i].x += weight * values[i].x;
        sums[i].y += weight * values[i].y;
        sums[i].z += weight * values[i].z;
        sums[i].w += weight * values[i].w;
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i * kStep < p.hidden)
        *reinterpret_cast<uint2*>(p.output + int64_t{token} * p.hidden + first + i * kStep) = {
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

Piece take_piece(const MoeFp8Params& p, int32_t num_tokens, int32_t tile_pairs, bool has_bf16_sums,
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
  piece.has_bf16_sums = has_bf16_sums;
  piece.sums = scratch.take<std::byte>(pairs * p.hidden * (has_bf16_sums ? 2 : 4));
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
  launch(route_tokens, piece.words, kRouteThreads,
         uint64_t{4} * (kRouteThreads / 32) * num_keys(piece.p));
  launch(sort_tokens, 1, kSortThreads, 0);
  launch(place_choices, ceil_div(piece.p.num_tokens * piece.p.top_k, kPlaceThreads), kPlaceThreads,
         0);
}

void add_pairs(const char* row, const Piece& piece, Stream* stream) {
  launch_kernel(row, piece.has_bf16_sums ? add_weighted<uint16_t> : add_weighted<float>, piece,
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
