// route on CUDA for thousands of tokens: a kernel that multiplies 32 tokens at a time by the whole
// router and chooses. With so many tokens, blocks need not share a token, nor send sums to each
// other as in the row for fewer tokens. The operand is x times the norm's weight; the norm's factor
// is applied to the logits. A separate kernel writes t, if a row reads it.
//
// At 8,192 tokens of 2,880: 94 MB of single x read, 21 us of an H200's memory; 12 GFLOP. For these
// each of 256 blocks reads the router from L2, 189 MB in all.
#include "core/cuda_launch.cuh"
#include "kernels/gemv/slice_gemv.cuh"
#include "kernels/norm/norm_cuda.h"
#include "kernels/residual.cuh"
#include "kernels/route/route_choose.cuh"
#include "kernels/route/route_rows.h"

namespace moxie {
namespace {

using namespace fragment;

constexpr int kTokens = 32, kWarps = 8, kThreads = 32 * kWarps;
constexpr int kColumnGroups = kTokens / 8;  // of mma.m16n8k16
constexpr int kUnitOfBF16 = kUnitBytes<DType::kBF16>;
constexpr int kBlockBytesOfTokens = 128 * kTokens;          // of 32 columns: [token][part][32]
constexpr int kStageBytes = 2 * kBlockBytesOfTokens;        // of a unit
constexpr int kFoursAThread = kTokens * 64 / 4 / kThreads;  // of a unit's columns

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

/// Neighbouring columns of a token in a unit: what a thread loads.
template <bool kIsSingle>
struct TokenPart {
  ResidualFour<kIsSingle> fours[kFoursAThread];

  __device__ __forceinline__ void load(const WideRoute& p, int token, int column) {
    const int64_t at = static_cast<int64_t>(token) * p.hidden + column;
#pragma unroll
    for (int i = 0; i < kFoursAThread; ++i) {
      fours[i] = {};
      if (token < p.num_tokens && column + 4 * i < p.hidden) fours[i].load(p.x, at + 4 * i);
    }
  }
  /// Multiplies by the norm's weights of these columns and stores two BF16 parts; odd tokens have
  /// them swapped, to avoid bank conflicts. Returns the sum of squares of x.
  __device__ __forceinline__ float store(std::byte* stage, int token, int column,
                                         const float4* weights) const {
    uint32_t high[2 * kFoursAThread], low[2 * kFoursAThread];
    float square = 0;
#pragma unroll
    for (int i = 0; i < kFoursAThread; ++i) {
      const float4 v = fours[i].values(), w = weights[i];
      square += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float x = half == 0 ? v.x * w.x : v.z * w.z, y = half == 0 ? v.y * w.y : v.w * w.w;
        const uint32_t both = pack_bf16(x, y);
        high[2 * i + half] = both;
        low[2 * i + half] =
            pack_bf16(x - __uint_as_float(both << 16), y - __uint_as_float(both & 0xFFFF0000u));
      }
    }
    std::byte* at = stage + column / 32 * kBlockBytesOfTokens + 128 * token + 2 * (column % 32);
    auto* to_high = reinterpret_cast<uint4*>(at + 64 * (token % 2));
    auto* to_low = reinterpret_cast<uint4*>(at + 64 * (1 - token % 2));
#pragma unroll
    for (int i = 0; i < kFoursAThread / 2; ++i) {
      to_high[i] = {high[4 * i], high[4 * i + 1], high[4 * i + 2], high[4 * i + 3]};
      to_low[i] = {low[4 * i], low[4 * i + 1], low[4 * i + 2], low[4 * i + 3]};
    }
    return square;
  }
};

/// Shared memory: the norm's weights, padded to whole units, and behind them two stages, where the
/// logits are stored at the end.
struct WideMemory {
  int hidden, num_experts;
  __host__ __device__ int norm_bytes() const { return (hidden + 63) / 64 * 256; }
  /// Floats from a token's logits to the next one's.
  __host__ __device__ int pitch() const { return (num_experts + 15) / 16 * 16 + 4; }
  uint64_t bytes() const {
    return static_cast<uint64_t>(norm_bytes()) +
           std::max<uint64_t>(2 * kStageBytes, sizeof(float) * kTokens * pitch());
  }
};

/// kTiles: tiles of 16 experts of a warp.
template <int kTiles, bool kIsSingle>
__global__ void __launch_bounds__(kThreads, kTiles == 1 ? 2 : 1)
    route_wide(const __grid_constant__ WideRoute p) {
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ float factors[kTokens];
  const WideMemory memory{p.hidden, p.weight.rows};
  auto* norm = reinterpret_cast<float*>(shared);
  std::byte* stages = shared + memory.norm_bytes();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const int num_units = (p.hidden + 63) / 64, num_tiles = (p.weight.rows + 15) / 16;
  const int first_token = kTokens * static_cast<int>(blockIdx.x);
  const int token = threadIdx.x / 8, column = 8 * (threadIdx.x % 8);

  const std::byte* weights[kTiles];
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    // A tile past the end repeats the last one; its sums are not used.
    const int tile = min(warp + kWarps * m, num_tiles - 1);
    weights[m] = p.weight.data + static_cast<int64_t>(tile) * num_units * kUnitOfBF16 + 16 * lane;
  }
  // Both blocks of 32 columns of a unit: rows g, then rows g + 8.
  uint4 a[kTiles][2][2], next_a[kTiles][2][2];
  const auto load_weights = [&](int unit) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        next_a[m][i / 2][i % 2] =
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
  constexpr int kAhead = kIsSingle && kTiles == 1 ? 3 : 1;
  TokenPart<kIsSingle> next[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) next[i].load(p, first_token + token, 64 * i + column);
  __syncthreads();
  float sums[kTiles][kColumnGroups][4] = {}, square = 0;
  const auto add_unit = [&](int u, TokenPart<kIsSingle>& part) {
    std::byte* stage = stages + u % 2 * kStageBytes;
    square +=
        part.store(stage, token, column, reinterpret_cast<const float4*>(norm + 64 * u + column));
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i)
      a[i / 4][i / 2 % 2][i % 2] = next_a[i / 4][i / 2 % 2][i % 2];
    part.load(p, first_token + token, 64 * (u + kAhead) + column);
    if (u + 1 < num_units) load_weights(u + 1);
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      const std::byte* of_lane = stage + block * kBlockBytesOfTokens + 128 * g + 16 * q;
#pragma unroll
      for (int n = 0; n < kColumnGroups; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint4 b =
              *reinterpret_cast<const uint4*>(of_lane + 1024 * n + 64 * (half ^ (g % 2)));
#pragma unroll
          for (int m = 0; m < kTiles; ++m) {
            const uint4 &top = a[m][block][0], &bottom = a[m][block][1];
            mma_m16n8k16(sums[m][n], top.x, bottom.x, top.y, bottom.y, b.x, b.y);
            mma_m16n8k16(sums[m][n], top.z, bottom.z, top.w, bottom.w, b.z, b.w);
          }
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
  // Eight threads share a token.
#pragma unroll
  for (int other = 1; other < 8; other *= 2) square += __shfl_xor_sync(~0u, square, other);
  if (threadIdx.x % 8 == 0)
    factors[token] = 1.0f / sqrtf(square / static_cast<float>(p.hidden) + p.rms_eps);
  __syncthreads();
  auto* logits = reinterpret_cast<float*>(stages);
  const int pitch = memory.pitch();
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    const int tile = warp + kWarps * m;
    if (tile >= num_tiles) continue;
#pragma unroll
    for (int n = 0; n < kColumnGroups; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        logits[(8 * n + 2 * q + i % 2) * pitch + 16 * tile + g + 8 * (i / 2)] = sums[m][n][i];
    }
  }
  __syncthreads();
  for (int i = warp; i < kTokens; i += kWarps) {
    const int64_t to = first_token + i;
    if (to >= p.num_tokens) break;
    const float* of_token = logits + i * pitch;
    const Choice choice = choose_experts<4 * kTiles>(p.weight.rows, p.top_k, [&](int expert, int) {
      return of_token[expert] * factors[i] + p.bias[expert];
    });
    const float weight = choice_weight(choice, p.top_k);
    if (lane < p.top_k) {
      p.expert_ids[to * p.top_k + lane] = choice.id;
      p.expert_weights[to * p.top_k + lane] = weight;
    }
  }
}
static_assert(32 * 4 == 16 * kWarps, "what a warp chooses from is what kTiles tiles a warp make");
static_assert(kMaxExperts == 2 * 16 * kWarps);

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
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(ceil_div(p.num_tokens, kTokens))),
                          .num_threads = kThreads,
                          .shared_bytes = WideMemory{p.hidden, p.weight.rows}.bytes(),
                          .programmatic = true};
  const auto launch = [&]<bool kIsSingle>() {
    const bool is_few = p.weight.rows <= 16 * kWarps;
    launch_kernel("route_bf16_bf16x2_wide_cuda",
                  is_few ? route_wide<1, kIsSingle> : route_wide<2, kIsSingle>, step, shape,
                  launch_stream(p.launch.stream));
  };
  if (p.forms.x == XForm::kF32) {
    launch.template operator()<true>();
  } else {
    launch.template operator()<false>();
  }
}

}  // namespace moxie
