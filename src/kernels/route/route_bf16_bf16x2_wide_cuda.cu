// route on CUDA for many tokens: a kernel that multiplies 16 tokens at a time by the whole router
// and chooses. With so many tokens, blocks need not share a token, nor send sums to each other as
// in the row for fewer tokens. The operand is x times the norm's weight; the norm's factor is
// applied to the logits. A separate kernel writes t, if a row reads it.
//
// Four warps multiply the first 32 columns of a unit, four the others, each a quarter of the
// experts: what a warp reads of the tokens serves several tiles of experts.
//
// At 8,192 tokens of 2,880: 94 MB of single x read, 21 us of an H200's memory; 12 GFLOP. For these
// each of 512 blocks reads the router from L2, 377 MB in all.
#include "core/cuda_launch.cuh"
#include "kernels/gemv/slice_gemv.cuh"
#include "kernels/norm/norm_cuda.h"
#include "kernels/residual.cuh"
#include "kernels/route/route_choose.cuh"
#include "kernels/route/route_rows.h"

namespace moxie {
namespace {

using namespace fragment;

constexpr int kWarps = 8, kThreads = 32 * kWarps, kGroups = 4;  // groups of experts
constexpr int kUnitOfBF16 = kUnitBytes<DType::kBF16>;

constexpr int kTokens = 16, kColumnGroups = kTokens / 8;  // groups of mma.m16n8k16
constexpr int kBlockBytesOfTokens = 128 * kTokens;        // of 32 columns: [token][part][32]
constexpr int kStageBytes = 2 * kBlockBytesOfTokens;      // of a unit
constexpr int kThreadsAToken = kThreads / kTokens;
static_assert(4 * kThreadsAToken == 64, "a thread loads four columns of a unit");

struct WideRoute {
  PackedMatrix weight;
  const float* x;
  const float* norm_weight;
  float rms_eps;
  const float* bias;
  int32_t* expert_ids;
  float* expert_weights;
  int32_t num_tokens, hidden, top_k;
};

/// Four columns of a token in a unit: what a thread loads.
template <bool kIsSingle>
struct TokenPart {
  ResidualFour<kIsSingle> four;

  __device__ __forceinline__ void load(const WideRoute& p, int token, int column) {
    four = {};
    if (token < p.num_tokens && column < p.hidden)
      four.load(p.x, static_cast<int64_t>(token) * p.hidden + column);
  }
  /// Multiplies by the norm's weights of these columns and stores two BF16 parts; odd tokens have
  /// them swapped, to avoid bank conflicts. Returns the sum of squares of x.
  __device__ __forceinline__ float store(std::byte* stage, int token, int column,
                                         const float4& w) const {
    const float4 v = four.values();
    uint32_t high[2], low[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float x = half == 0 ? v.x * w.x : v.z * w.z, y = half == 0 ? v.y * w.y : v.w * w.w;
      const uint32_t both = pack_bf16(x, y);
      high[half] = both;
      low[half] =
          pack_bf16(x - __uint_as_float(both << 16), y - __uint_as_float(both & 0xFFFF0000u));
    }
    std::byte* at = stage + column / 32 * kBlockBytesOfTokens + 128 * token + 2 * (column % 32);
    *reinterpret_cast<uint2*>(at + 64 * (token % 2)) = {high[0], high[1]};
    *reinterpret_cast<uint2*>(at + 64 * (1 - token % 2)) = {low[0], low[1]};
    return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
};

/// Shared memory: the norm's weights, padded to whole units, and behind them two stages, where the
/// logits of both halves of the columns are stored at the end.
struct WideMemory {
  int hidden, num_experts;
  __host__ __device__ int norm_bytes() const { return (hidden + 63) / 64 * 256; }
  /// Floats from a token's logits to the next one's.
  __host__ __device__ int pitch() const { return (num_experts + 15) / 16 * 16 + 4; }
  uint64_t bytes() const {
    return static_cast<uint64_t>(norm_bytes()) +
           std::max<uint64_t>(2 * kStageBytes, 2 * sizeof(float) * kTokens * pitch());
  }
};

/// kTiles: tiles of 16 experts of a warp.
template <int kTiles, bool kIsSingle>
__global__ void __launch_bounds__(kThreads, kTiles <= 2 ? 2 : 1)
    route_wide(const __grid_constant__ WideRoute p) {
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ float factors[kTokens];
  const WideMemory memory{p.hidden, p.weight.rows};
  auto* norm = reinterpret_cast<float*>(shared);
  std::byte* stages = shared + memory.norm_bytes();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const int block = warp / kGroups, first_tile = warp % kGroups * kTiles;  // 32 columns of a unit
  const int num_units = (p.hidden + 63) / 64, num_tiles = (p.weight.rows + 15) / 16;
  const int first_token = kTokens * static_cast<int>(blockIdx.x);
  const int token = threadIdx.x / kThreadsAToken, column = 4 * (threadIdx.x % kThreadsAToken);

  const std::byte* weights[kTiles];
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    // A tile past the end repeats the last one; its sums are not used.
    const int tile = min(first_tile + m, num_tiles - 1);
    weights[m] = p.weight.data + static_cast<int64_t>(tile) * num_units * kUnitOfBF16 +
                 1024 * block + 16 * lane;
  }
  // Rows g, then rows g + 8.
  uint4 a[kTiles][2], next_a[kTiles][2];
  const auto load_weights = [&](int unit) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        next_a[m][i] =
            __ldg(reinterpret_cast<const uint4*>(weights[m] + unit * kUnitOfBF16 + 512 * i));
      }
    }
  };
  load_weights(0);
  for (int i = threadIdx.x; i < 64 * num_units; i += kThreads)
    norm[i] = i < p.hidden ? p.norm_weight[i] : 0.0f;
  wait_for_previous();
  launch_next();
  // Units being loaded.
  constexpr int kAhead = kIsSingle && kTiles <= 2 ? 3 : 1;
  TokenPart<kIsSingle> next[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) next[i].load(p, first_token + token, 64 * i + column);
  __syncthreads();
  float sums[kTiles][kColumnGroups][4] = {}, square = 0;
  const auto add_unit = [&](int u, TokenPart<kIsSingle>& part) {
    std::byte* stage = stages + u % 2 * kStageBytes;
    square +=
        part.store(stage, token, column, *reinterpret_cast<const float4*>(norm + 64 * u + column));
    __syncthreads();
#pragma unroll
    for (int m = 0; m < kTiles; ++m) a[m][0] = next_a[m][0], a[m][1] = next_a[m][1];
    part.load(p, first_token + token, 64 * (u + kAhead) + column);
    if (u + 1 < num_units) load_weights(u + 1);
    const std::byte* of_lane = stage + block * kBlockBytesOfTokens + 128 * g + 16 * q;
#pragma unroll
    for (int n = 0; n < kColumnGroups; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 b = *reinterpret_cast<const uint4*>(of_lane + 1024 * n + 64 * (half ^ (g % 2)));
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          const uint4 &top = a[m][0], &bottom = a[m][1];
          mma_m16n8k16(sums[m][n], top.x, bottom.x, top.y, bottom.y, b.x, b.y);
          mma_m16n8k16(sums[m][n], top.z, bottom.z, top.w, bottom.w, b.z, b.w);
        }
      }
    }
  };
#pragma unroll 1
  for (int u = 0; u < num_units; u += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (u + i < num_units) add_unit(u + i, next[i]);
    }
  }
#pragma unroll
  for (int other = 1; other < kThreadsAToken; other *= 2)
    square += __shfl_xor_sync(~0u, square, other);
  if (threadIdx.x % kThreadsAToken == 0)
    factors[token] = 1.0f / sqrtf(square / static_cast<float>(p.hidden) + p.rms_eps);
  __syncthreads();
  auto* logits = reinterpret_cast<float*>(stages);
  const int pitch = memory.pitch(), of_block = kTokens * pitch;
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    const int tile = first_tile + m;
    if (tile >= num_tiles) continue;
#pragma unroll
    for (int n = 0; n < kColumnGroups; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = (8 * n + 2 * q + i % 2) * pitch + 16 * tile + g + 8 * (i / 2);
        logits[block * of_block + at] = sums[m][n][i];
      }
    }
  }
  __syncthreads();
  for (int i = warp; i < kTokens; i += kWarps) {
    const int64_t to = first_token + i;
    if (to >= p.num_tokens) break;
    const float* of_token = logits + i * pitch;
    const Choice choice = choose_experts<2 * kTiles>(p.weight.rows, p.top_k, [&](int expert, int) {
      return (of_token[expert] + of_token[of_block + expert]) * factors[i] + p.bias[expert];
    });
    const float weight = choice_weight(choice, p.top_k);
    if (lane < p.top_k) {
      p.expert_ids[to * p.top_k + lane] = choice.id;
      p.expert_weights[to * p.top_k + lane] = weight;
    }
  }
}
static_assert(kMaxExperts == 4 * 16 * kGroups, "what four tiles of each group are");

}  // namespace

const char* route_bf16_bf16x2_wide_cuda_refuses(const RouteParams& p) {
  if (p.weight.format != DType::kBF16) return "the router is not BF16";
  if (p.weight.rows > kMaxExperts) return "more than 256 experts";
  if (p.hidden > kMaxNormedWidth) return "more than 4096 columns";
  return refuses_matrix(p.weight);
}

void write_route_input(const RouteParams& p) {
  if (p.forms.t != TForm::kF32) return;
  rms_norm_f32_cuda({.num_tokens = p.num_tokens,
                     .width = p.hidden,
                     .eps = p.rms_eps,
                     .x = p.x,
                     .weight = p.norm_weight,
                     .y = p.t,
                     .x_stride = p.hidden,
                     .y_stride = p.hidden,
                     .x_form = p.forms.x},
                    p.launch);
}

void route_bf16_bf16x2_wide_cuda(const RouteParams& p) {
  if (p.num_tokens == 0) return;
  write_route_input(p);
  const WideRoute step{.weight = p.weight,
                       .x = p.x,
                       .norm_weight = p.norm_weight,
                       .rms_eps = p.rms_eps,
                       .bias = p.bias,
                       .expert_ids = p.expert_ids,
                       .expert_weights = p.expert_weights,
                       .num_tokens = p.num_tokens,
                       .hidden = p.hidden,
                       .top_k = p.top_k};
  const auto launch = [&]<int kTiles, bool kIsSingle>() {
    launch_kernel("route_bf16_bf16x2_wide_cuda", route_wide<kTiles, kIsSingle>, step,
                  {.grid = dim3(static_cast<unsigned>(ceil_div(p.num_tokens, kTokens))),
                   .num_threads = kThreads,
                   .shared_bytes = WideMemory{p.hidden, p.weight.rows}.bytes(),
                   .programmatic = true},
                  launch_stream(p.launch.stream));
  };
  const auto launch_form = [&]<bool kIsSingle>() {
    if (p.weight.rows <= 16 * kGroups) return launch.template operator()<1, kIsSingle>();
    if (p.weight.rows <= 32 * kGroups) return launch.template operator()<2, kIsSingle>();
    launch.template operator()<4, kIsSingle>();
  };
  if (p.forms.x == XForm::kF32) {
    launch_form.template operator()<true>();
  } else {
    launch_form.template operator()<false>();
  }
}

}  // namespace moxie
