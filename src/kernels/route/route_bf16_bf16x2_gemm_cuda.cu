// route on CUDA for many tokens: norm, router, top-k and softmax in one kernel that reads x once.
//
// Clusters of blocks take tiles of 16 tokens. Each block has a share of the columns, each warp two
// tokens. (An H200 runs 15 such clusters at a time. Tiles of 24 tokens, of which a cluster has one,
// are taken where there are too few clusters for tiles of 16.) A warp multiplies its tokens by the
// norm's weights, without the norm's factor, and stores them in shared memory as floats and as two
// BF16 parts. These are multiplied by the router (mma.m16n8k16), whose fragments each warp holds in
// registers for all tiles. Sums of squares and partial logits are sent to the blocks that need
// them. One tile later, when all have arrived, `t` is written, and one warp a token chooses.
// Meanwhile the next tile's x is loaded.
//
// At 8,192 tokens of 2,880: x 189 MB in and t 94 MB out, 62 us of an H200's memory; 12 GFLOP.
#include "core/cuda_launch.cuh"
#include "kernels/cluster.cuh"
#include "kernels/gemv/slice_gemv.cuh"
#include "kernels/route/route_choose.cuh"
#include "kernels/route/route_rows.h"

namespace moxie {
namespace {

using namespace fragment;

constexpr int kWarps = 8;
constexpr int kTileTokens = 16, kWideTileTokens = 24;
constexpr int kMaxRouteBlocks = 8;     // of a cluster, on every device
constexpr int kMostUnits = 6;          // of 64 columns, a block
constexpr int kHeld = 2 * kMostUnits;  // blocks of 32 columns of the router
// Dynamic shared memory that a block has on every device.
constexpr uint64_t kMaxShared = 97 * 1024;
constexpr int kUnitOfBF16 = kUnitBytes<DType::kBF16>;
static_assert(kMaxExperts <= 2 * 16 * kWarps, "a warp has 16 experts, and 16 more");

struct RouteTiles {
  PackedMatrix weight;
  const float2* x;
  const float* norm_weight;
  const float* bias;
  float* t;
  int32_t* expert_ids;
  float* expert_weights;
  float rms_eps;
  int32_t num_tokens, hidden, top_k, num_tiles;
};

/// Shared memory of a block: offsets in floats. The launch takes its size from here.
struct RouteMemory {
  int num_experts, num_blocks, max_units;
  int tile_tokens, num_tiles;  // num_tiles: that a block has at a time, 1 or 2
  /// Between two tokens' logits: those of tokens 0, 2, 4, 6 start in different banks.
  __host__ __device__ int pitch() const { return (num_experts + 31) / 32 * 32 + 4; }
  __host__ __device__ int tokens_a_block() const {
    return (tile_tokens + num_blocks - 1) / num_blocks;
  }
  __host__ __device__ int tile() const { return 64 * max_units * tile_tokens; }
  __host__ __device__ int parts() const { return 0; }  // of each tile
  __host__ __device__ int values() const { return num_tiles * tile(); }
  __host__ __device__ int norm() const { return values() + tile(); }
  __host__ __device__ int bias() const { return norm() + 64 * max_units; }
  __host__ __device__ int logits() const { return bias() + pitch(); }  // of each tile
  __host__ __device__ int logits_of_tile() const { return num_blocks * tokens_a_block() * pitch(); }
  uint64_t bytes() const {
    return sizeof(float) * static_cast<uint64_t>(logits() + num_tiles * logits_of_tile());
  }
};

/// x of a warp's tokens in a block's columns: lane l has columns 2l, 2l + 1 of each unit.
template <int kTokensAWarp>
struct TokenColumns {
  float4 x[kTokensAWarp][kMostUnits];

  __device__ __forceinline__ void load(const RouteTiles& p, int first_token, int first_unit,
                                       int num_units) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int j = 0; j < kTokensAWarp; ++j) {
      const int token = first_token + warp + kWarps * j;
      const float2* row = p.x + static_cast<int64_t>(token) * p.hidden;
#pragma unroll
      for (int u = 0; u < kMostUnits; ++u) {
        const int column = 64 * (first_unit + u) + 2 * lane;
        const bool inside = token < p.num_tokens && u < num_units && column < p.hidden;
        x[j][u] = inside ? *reinterpret_cast<const float4*>(row + column) : float4{};
      }
    }
  }
};

/// A tile of 16 experts times a tile of tokens, over the block's columns.
struct RouterTile {
  const std::byte* weights;  // the lane's
  int num_blocks;            // of 32 columns

  __device__ __forceinline__ RouterTile(const RouteTiles& p, int tile, int first_unit,
                                        int num_units)
      : num_blocks(16 * tile < p.weight.rows ? 2 * num_units : 0) {
    const int all_units = (p.hidden + 63) / 64;
    weights = p.weight.data + (static_cast<int64_t>(tile) * all_units + first_unit) * kUnitOfBF16 +
              16 * (threadIdx.x % 32);
  }
  __device__ __forceinline__ void load(int block, uint4 (&a)[2]) const {
    a[0] = __ldg(reinterpret_cast<const uint4*>(weights + 1024 * block));
    a[1] = __ldg(reinterpret_cast<const uint4*>(weights + 1024 * block + 512));
  }
  /// Adds one block's product with tokens 8n..8n + 7: of the high parts, and of the low parts.
  template <int kTokens>
  static __device__ __forceinline__ void multiply(const uint4 (&a)[2], const std::byte* parts,
                                                  float (&sums)[2][kTokens / 8][4]) {
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    const std::byte* of_lane = parts + 128 * g + 16 * q;
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const uint4 b = *reinterpret_cast<const uint4*>(of_lane + 1024 * n + 64 * (part ^ (g % 2)));
        mma_m16n8k16(sums[part][n], a[0].x, a[1].x, a[0].y, a[1].y, b.x, b.y);
        mma_m16n8k16(sums[part][n], a[0].z, a[1].z, a[0].w, a[1].w, b.z, b.w);
      }
    }
  }
};

/// Writes a unit's pair of values of one token as two BF16 parts, [block of 32 columns][token]
/// [part][32]. Odd tokens have the two parts swapped to avoid bank conflicts, and the two halves of
/// a warp store them in opposite order for the same reason.
template <int kTokens>
__device__ __forceinline__ void store_parts(std::byte* unit, int token, float2 v) {
  const int lane = threadIdx.x % 32, half = lane / 16;
  const uint32_t high = pack_bf16(v.x, v.y);
  const uint32_t low =
      pack_bf16(v.x - __uint_as_float(high << 16), v.y - __uint_as_float(high & 0xFFFF0000u));
  std::byte* at = unit + 128 * (kTokens * half + token) + 4 * (lane % 16);
  const int first = half ^ (token % 2);
  *reinterpret_cast<uint32_t*>(at + 64 * first) = half == 0 ? high : low;
  *reinterpret_cast<uint32_t*>(at + 64 * (first ^ 1)) = half == 0 ? low : high;
}

/// Writes to shared memory of block `rank`, whose barrier counts the bytes; a single block stores
/// directly.
__device__ __forceinline__ void send_float(float* at, const uint64_t* barrier, int rank,
                                           bool is_alone, float value) {
  if (is_alone) {
    *at = value;
  } else {
    send(at, barrier, rank, __float_as_uint(value));
  }
}

/// kTokens of a tile. kIsOneTile: a cluster has one tile.
template <int kTokens, bool kIsOneTile>
__global__ void __launch_bounds__(32 * kWarps, 1)
    route_tiles(const __grid_constant__ RouteTiles p) {
  constexpr int kTokensAWarp = kTokens / kWarps;  // tokens w, w + 8, ... in warp w
  constexpr int kPartsOfBlock = 128 * kTokens;    // bytes of 32 columns of the tile
  touch_params(p);
  extern __shared__ __align__(128) float shared[];
  __shared__ float squares[2][kMaxRouteBlocks][kTokens];  // by block, for two tiles
  __shared__ uint64_t arrived[2];
  const int all_units = (p.hidden + 63) / 64, num_blocks = min(kMaxRouteBlocks, all_units);
  const int rank = static_cast<int>(blockIdx.x) % num_blocks;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const int first_unit = part_begin(all_units, num_blocks, rank);
  const int num_units = part_begin(all_units, num_blocks, rank + 1) - first_unit;
  const int num_row_tiles = (p.weight.rows + 15) / 16;
  const RouteMemory memory{p.weight.rows, num_blocks, (all_units + num_blocks - 1) / num_blocks,
                           kTokens, kIsOneTile ? 1 : 2};
  const int pitch = memory.pitch(), block_logits = memory.tokens_a_block() * pitch;
  const bool is_alone = num_blocks == 1;
  const int blocks_inverse = 255 / num_blocks + 1;  // token / num_blocks = token * this / 256
  float *norm = shared + memory.norm(), *bias = shared + memory.bias();
  const uint32_t bytes_of_tile =
      4 * num_blocks *
      (kTokens + (kTokens - rank + num_blocks - 1) / num_blocks * 16 * num_row_tiles);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      init_barrier(&arrived[i]);
      expect_bytes(&arrived[i], bytes_of_tile);
    }
  }
  cluster_arrive();  // this block is ready to receive

  const RouterTile router(p, warp, first_unit, num_units);
  const RouterTile second(p, warp + kWarps, first_unit, num_units);  // with more than 128 experts
  uint4 held[kHeld][2];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (i < router.num_blocks) router.load(i, held[i]);
  }
  for (int i = threadIdx.x; i < 64 * num_units; i += 32 * kWarps)
    norm[i] = 64 * first_unit + i < p.hidden ? p.norm_weight[64 * first_unit + i] : 0.0f;
  for (int i = threadIdx.x; i < p.weight.rows; i += 32 * kWarps) bias[i] = p.bias[i];
  __syncthreads();
  cluster_wait();
  wait_for_previous();
  launch_next();

  const int stride = static_cast<int>(gridDim.x) / num_blocks;
  const int first_tile = static_cast<int>(blockIdx.x) / num_blocks;
  auto* parts = reinterpret_cast<std::byte*>(shared + memory.parts());
  auto* values = reinterpret_cast<float2*>(shared + memory.values()) +
                 memory.max_units * kTokensAWarp * 32 * warp + lane;
  TokenColumns<kTokensAWarp> next;
  next.load(p, kTokens * first_tile, first_unit, num_units);

  // Waits until all blocks' shares of the i-th tile have arrived; then does what remains for it.
  const auto wait_for_tile = [&](int i) {
    if (is_alone) {
      __syncthreads();
    } else {
      wait_cluster_barrier(&arrived[i % 2], i / 2 % 2);
      if (threadIdx.x == 0) expect_bytes(&arrived[i % 2], bytes_of_tile);
    }
  };
  const auto finish = [&](int i) {
    const int buffer = i % 2, first_token = kTokens * (first_tile + i * stride);
    const auto factor_of = [&](int token) {
      float square = 0;
#pragma unroll
      for (int b = 0; b < kMaxRouteBlocks; ++b)
        square += b < num_blocks ? squares[buffer][b][token] : 0.0f;
      return rsqrtf(square / static_cast<float>(p.hidden) + p.rms_eps);
    };
#pragma unroll
    for (int j = 0; j < kTokensAWarp; ++j) {
      const int token = warp + kWarps * j;
      const float factor = factor_of(token);
      if (first_token + token >= p.num_tokens) continue;
      float* t = p.t + static_cast<int64_t>(first_token + token) * p.hidden;
#pragma unroll
      for (int u = 0; u < kMostUnits; ++u) {
        const int column = 64 * (first_unit + u) + 2 * lane;
        if (u < num_units && column < p.hidden) {
          const float2 v = values[32 * (kTokensAWarp * u + j)];
          *reinterpret_cast<float2*>(t + column) = make_float2(v.x * factor, v.y * factor);
        }
      }
    }
    for (int own = warp; own < memory.tokens_a_block(); own += kWarps) {
      const int token = rank + num_blocks * own;
      if (token >= kTokens || first_token + token >= p.num_tokens) break;
      const float factor = factor_of(token);
      float* logits = shared + memory.logits() + buffer * memory.logits_of_tile() + own * pitch;
#pragma unroll 4
      for (int expert = lane; expert < p.weight.rows; expert += 32) {
        float sum = 0;
#pragma unroll
        for (int b = 0; b < kMaxRouteBlocks; ++b)
          sum += b < num_blocks ? logits[b * block_logits + expert] : 0.0f;
        logits[expert] = sum * factor + bias[expert];
      }
      __syncwarp();
      const auto logit_of = [&](int expert, int) { return logits[expert]; };
      const Choice choice = p.weight.rows <= 128
                                ? choose_experts<4>(p.weight.rows, p.top_k, logit_of)
                                : choose_experts<8>(p.weight.rows, p.top_k, logit_of);
      const float weight = choice_weight(choice, p.top_k);
      if (lane < p.top_k) {
        const int64_t at = static_cast<int64_t>(first_token + token) * p.top_k + lane;
        p.expert_ids[at] = choice.id;
        p.expert_weights[at] = weight;
      }
    }
  };
  // Sends this block's share of 16 experts' logits to each token's block.
  const auto send_logits = [&](int buffer, int row_tile, const float(&sums)[2][kTokens / 8][4]) {
    float* to = shared + memory.logits() + buffer * memory.logits_of_tile() + rank * block_logits +
                16 * row_tile + g;
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = 8 * n + 2 * q + i % 2, own = token * blocks_inverse >> 8;
        send_float(to + own * pitch + 8 * (i / 2), &arrived[buffer], token - own * num_blocks,
                   is_alone, sums[0][n][i] + sums[1][n][i]);
      }
    }
  };

  for (int i = 0, tile = first_tile;; ++i, tile += stride) {
    const bool is_tile = tile < p.num_tiles;
    const int buffer = i % 2;
    std::byte* my_parts = parts + buffer * (4 * memory.tile());
    float2 made[kTokensAWarp][kMostUnits];
    float square[kTokensAWarp] = {};
    if (is_tile) {
#pragma unroll
      for (int u = 0; u < kMostUnits; ++u) {
        if (u >= num_units) break;
        const float2 w = *reinterpret_cast<const float2*>(norm + 64 * u + 2 * lane);
#pragma unroll
        for (int j = 0; j < kTokensAWarp; ++j) {
          const float4& x = next.x[j][u];
          const float2 v = {x.x + x.y, x.z + x.w};
          square[j] += v.x * v.x + v.y * v.y;
          made[j][u] = {v.x * w.x, v.y * w.y};
          store_parts<kTokens>(my_parts + 2 * u * kPartsOfBlock, warp + kWarps * j, made[j][u]);
          if (kIsOneTile) values[32 * (kTokensAWarp * u + j)] = made[j][u];
        }
      }
      if (!kIsOneTile && tile + stride < p.num_tiles)
        next.load(p, kTokens * (tile + stride), first_unit, num_units);
      __syncthreads();
      float sums[2][kTokens / 8][4] = {};
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        if (k < router.num_blocks)
          RouterTile::multiply<kTokens>(held[k], my_parts + k * kPartsOfBlock, sums);
      }
      // When all blocks have sent the previous tile, they no longer use the tile before it, whose
      // memory this tile takes.
      if (i > 0) wait_for_tile(i - 1);
      if (router.num_blocks > 0) send_logits(buffer, warp, sums);
      if (second.num_blocks > 0) {
        float more[2][kTokens / 8][4] = {};
#pragma unroll 1
        for (int k = 0; k < second.num_blocks; ++k) {
          uint4 a[2];
          second.load(k, a);
          RouterTile::multiply<kTokens>(a, my_parts + k * kPartsOfBlock, more);
        }
        send_logits(buffer, warp + kWarps, more);
      }
    } else {
      wait_for_tile(i - 1);
    }
    if (i > 0) finish(i - 1);
    if (!is_tile) break;
#pragma unroll
    for (int j = 0; j < kTokensAWarp; ++j) {
      square[j] = warp_sum(square[j]);
#pragma unroll
      for (int u = 0; u < kMostUnits; ++u) {
        if (!kIsOneTile && u < num_units) values[32 * (kTokensAWarp * u + j)] = made[j][u];
      }
    }
    // Sent after finish(), since it also reports that finish() is done.
    if (lane < kTokensAWarp * num_blocks) {
      const int block = lane % num_blocks, of_lane = lane / num_blocks;
      float mine = square[0];
#pragma unroll
      for (int j = 1; j < kTokensAWarp; ++j) mine = of_lane == j ? square[j] : mine;
      send_float(&squares[buffer][rank][warp + kWarps * of_lane], &arrived[buffer], block, is_alone,
                 mine);
    }
  }
}

int tiles_at_once(void (*kernel)(RouteTiles), const LaunchShape& shape) {
  return shape.cluster == 1 ? num_sms()
                            : clusters_at_once("route_bf16_bf16x2_gemm_cuda",
                                               reinterpret_cast<const void*>(kernel), shape);
}

RouteMemory memory_of(const PackedMatrix& weight, int tile_tokens, int num_tiles) {
  const int blocks = std::min(kMaxRouteBlocks, weight.num_units());
  return {weight.rows, blocks, ceil_div(weight.num_units(), blocks), tile_tokens, num_tiles};
}

LaunchShape shape_of(const RouteMemory& memory, int num_tiles) {
  return {.grid = dim3(static_cast<unsigned>(num_tiles * memory.num_blocks)),
          .num_threads = 32 * kWarps,
          .shared_bytes = memory.bytes(),
          .cluster = memory.num_blocks,
          .programmatic = true};
}

}  // namespace

const char* route_bf16_bf16x2_gemm_cuda_refuses(const RouteParams& p) {
  if (p.weight.format != DType::kBF16) return "the router is not BF16";
  if (p.weight.rows > kMaxExperts) return "more than 256 experts";
  const RouteMemory memory = memory_of(p.weight, kTileTokens, 2);
  if (memory.max_units > kMostUnits) return "more than 3072 columns";
  if (memory.bytes() > kMaxShared) return "so many experts and columns do not fit shared memory";
  return refuses_matrix(p.weight);
}

void route_bf16_bf16x2_gemm_cuda(const RouteParams& p) {
  if (p.num_tokens == 0) return;
  RouteTiles step{.weight = p.weight,
                  .x = reinterpret_cast<const float2*>(p.x),
                  .norm_weight = p.norm_weight,
                  .bias = p.bias,
                  .t = p.t,
                  .expert_ids = p.expert_ids,
                  .expert_weights = p.expert_weights,
                  .rms_eps = p.rms_eps,
                  .num_tokens = p.num_tokens,
                  .hidden = p.hidden,
                  .top_k = p.top_k,
                  .num_tiles = ceil_div(p.num_tokens, kTileTokens)};
  const auto launch = [&](void (*kernel)(RouteTiles), const LaunchShape& shape) {
    launch_kernel("route_bf16_bf16x2_gemm_cuda", kernel, step, shape,
                  launch_stream(p.launch.stream));
  };
  auto* const kernel = route_tiles<kTileTokens, false>;
  LaunchShape shape = shape_of(memory_of(p.weight, kTileTokens, 2), step.num_tiles);
  const int at_once = tiles_at_once(kernel, shape), rounds = ceil_div(step.num_tiles, at_once);
  const RouteMemory wide = memory_of(p.weight, kWideTileTokens, 1);
  if (rounds > 1 && wide.bytes() <= kMaxShared) {
    auto* const one_tile = route_tiles<kWideTileTokens, true>;
    const int num_tiles = ceil_div(p.num_tokens, kWideTileTokens);
    const LaunchShape of_wide = shape_of(wide, num_tiles);
    if (num_tiles <= tiles_at_once(one_tile, of_wide)) {
      step.num_tiles = num_tiles;
      return launch(one_tile, of_wide);
    }
  }
  shape.grid.x = static_cast<unsigned>(ceil_div(step.num_tiles, rounds) * shape.cluster);
  launch(kernel, shape);
}

}  // namespace moxie
