// route on CUDA for some tokens, without clusters: one kernel makes the logits, the next chooses. A
// block of the first kernel has a tile of 16 experts, whose fragments its warps hold in registers,
// and multiplies groups of 8 tokens by them. The warps share the columns; their sums are added in
// the warps' order. A lane loads the columns of x that it feeds to mma, so that x needs no shared
// memory. The operand is x times the norm's weight; the norm's factor is applied to the logits. A
// separate kernel writes t, if a row reads it.
//
// At 64 tokens of 2,880, 128 experts: 0.7 MB of router and 1.5 MB of x in two floats from memory;
// for 64 blocks 5.9 MB of router and 11.8 MB of x from L2; 0.1 GFLOP.
#include "core/cuda_launch.cuh"
#include "kernels/gemv/slice_gemv.cuh"
#include "kernels/residual.cuh"
#include "kernels/route/route_choose.cuh"
#include "kernels/route/route_rows.h"

namespace moxie {
namespace {

using namespace fragment;

constexpr int kGroup = 8;  // tokens, the columns of mma.m16n8k16
constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kMostUnits = 6;  // of 64 columns, a warp
constexpr int kAhead = 3;      // units of x being loaded
constexpr int kUnitOfBF16 = kUnitBytes<DType::kBF16>;
constexpr int kNormFours = 64 * kWarps * kMostUnits / 4 / kThreads;  // a thread
constexpr int kChoosers = 4;  // warps of a block that chooses

struct TiledRoute {
  PackedMatrix weight;
  const float* x;
  const float* norm_weight;
  float rms_eps;
  const float* bias;
  float* logits;  // [tokens, pitch]
  int32_t num_tokens, hidden, pitch;
};
struct RouteChoices {
  const float* logits;
  int32_t* expert_ids;
  float* expert_weights;
  int32_t num_tokens, num_experts, pitch, top_k;
};

/// A lane's share of a unit of a token: 8 neighbouring columns of each block of 32.
template <bool kIsSingle>
struct LaneColumns {
  ResidualFour<kIsSingle> fours[2][2];

  /// `column`: of the first block.
  __device__ __forceinline__ void load(const TiledRoute& p, int token, int column) {
    const int64_t at = static_cast<int64_t>(token) * p.hidden + column;
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      const bool inside = token < p.num_tokens && column + 32 * block < p.hidden;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        fours[block][i] = {};
        if (inside) fours[block][i].load(p.x, at + 32 * block + 4 * i);
      }
    }
  }
  /// Multiplies by the norm's weights of these columns and, as two BF16 parts, by a unit of the
  /// tile. Adds the parts' products to `sums` of their own. Returns the sum of squares of x.
  __device__ __forceinline__ float multiply(const float4* norm, const uint4 (&a)[2][2],
                                            float (&sums)[2][4]) const {
    float square = 0;
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      uint32_t b[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float4 v = fours[block][i].values(), w = norm[8 * block + i];
        square += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float x = half == 0 ? v.x * w.x : v.z * w.z, y = half == 0 ? v.y * w.y : v.w * w.w;
          const uint32_t both = pack_bf16(x, y);
          b[0][2 * i + half] = both;
          b[1][2 * i + half] =
              pack_bf16(x - __uint_as_float(both << 16), y - __uint_as_float(both & 0xFFFF0000u));
        }
      }
      const uint4 &top = a[block][0], &bottom = a[block][1];
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        mma_m16n8k16(sums[part], top.x, bottom.x, top.y, bottom.y, b[part][0], b[part][1]);
        mma_m16n8k16(sums[part], top.z, bottom.z, top.w, bottom.w, b[part][2], b[part][3]);
      }
    }
    return square;
  }
};

/// Block (t, s) makes the logits of tile t for groups s, s + gridDim.y, ...
template <bool kIsSingle>
__global__ void __launch_bounds__(kThreads, 1) route_sums(const __grid_constant__ TiledRoute p) {
  __shared__ float4 norm[kThreads * kNormFours];
  // Of two groups, so that one barrier a group is enough.
  __shared__ float2 sums_of_warps[2][kWarps][16 * kGroup / 2];  // [expert][token]
  __shared__ float squares_of_warps[2][kWarps][kGroup];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const int num_units = (p.hidden + 63) / 64, num_groups = (p.num_tokens + kGroup - 1) / kGroup;
  const int tile = blockIdx.x;
  const auto unit_of = [&](int u) { return warp + kWarps * u; };

  // Both blocks of 32 columns of a unit: rows g, then rows g + 8.
  uint4 a[kMostUnits][2][2];
  const std::byte* weights =
      p.weight.data + static_cast<int64_t>(tile) * num_units * kUnitOfBF16 + 16 * lane;
#pragma unroll
  for (int u = 0; u < kMostUnits; ++u) {
    if (unit_of(u) >= num_units) break;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[u][i / 2][i % 2] =
          __ldg(reinterpret_cast<const uint4*>(weights + unit_of(u) * kUnitOfBF16 + 512 * i));
    }
  }
  float4 norm_fours[kNormFours];
#pragma unroll
  for (int i = 0; i < kNormFours; ++i) {
    const int four = threadIdx.x + kThreads * i;
    norm_fours[i] =
        4 * four < p.hidden ? reinterpret_cast<const float4*>(p.norm_weight)[four] : float4{};
  }
  // The logit of a group that this thread finishes, if it is one of the first.
  const int my_row = threadIdx.x / kGroup, my_token = threadIdx.x % kGroup;
  const bool finishes = my_row < 16 && 16 * tile + my_row < p.weight.rows;
  const float my_bias = finishes ? p.bias[16 * tile + my_row] : 0.0f;
  wait_for_previous();
  launch_next();
  LaneColumns<kIsSingle> next[kAhead];
  const auto load = [&](int group, int u) {
    if (unit_of(u) < num_units)
      next[u % kAhead].load(p, kGroup * group + g, 64 * unit_of(u) + 8 * q);
  };
#pragma unroll
  for (int u = 0; u < kAhead; ++u) load(blockIdx.y, u);
#pragma unroll
  for (int i = 0; i < kNormFours; ++i) norm[threadIdx.x + kThreads * i] = norm_fours[i];
  __syncthreads();
  int buffer = 0;
#pragma unroll 1
  for (int group = blockIdx.y; group < num_groups; group += gridDim.y, buffer ^= 1) {
    float sums[2][4] = {}, square = 0;
#pragma unroll
    for (int u = 0; u < kMostUnits; ++u) {
      if (unit_of(u) < num_units)
        square += next[u % kAhead].multiply(norm + 16 * unit_of(u) + 2 * q, a[u], sums);
      if (u + kAhead < kMostUnits) {
        load(group, u + kAhead);
      } else {
        load(group + gridDim.y, u + kAhead - kMostUnits);
      }
    }
    // Four lanes share a token.
#pragma unroll
    for (int other = 1; other < 4; other *= 2) square += __shfl_xor_sync(~0u, square, other);
    if (q == 0) squares_of_warps[buffer][warp][g] = square;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sums_of_warps[buffer][warp][4 * (g + 8 * half) + q] = make_float2(
          sums[0][2 * half] + sums[1][2 * half], sums[0][2 * half + 1] + sums[1][2 * half + 1]);
    }
    __syncthreads();
    const int token = kGroup * group + my_token;
    if (finishes && token < p.num_tokens) {
      float sum = 0, all = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        sum += reinterpret_cast<const float*>(sums_of_warps[buffer][w])[threadIdx.x];
        all += squares_of_warps[buffer][w][my_token];
      }
      const float factor = 1.0f / sqrtf(all / static_cast<float>(p.hidden) + p.rms_eps);
      p.logits[static_cast<int64_t>(token) * p.pitch + 16 * tile + my_row] = sum * factor + my_bias;
    }
  }
}
static_assert(16 * kGroup <= kThreads && kMostUnits % kAhead == 0);

/// A warp a token. kMine: the most experts of a lane.
template <int kMine>
__global__ void __launch_bounds__(32 * kChoosers)
    choose_rows(const __grid_constant__ RouteChoices p) {
  wait_for_previous();
  launch_next();
  const int token = kChoosers * static_cast<int>(blockIdx.x) + static_cast<int>(threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (token >= p.num_tokens) return;
  const float* logits = p.logits + static_cast<int64_t>(token) * p.pitch;
  const Choice choice = choose_experts<kMine>(p.num_experts, p.top_k,
                                              [&](int expert, int) { return logits[expert]; });
  const float weight = choice_weight(choice, p.top_k);
  if (lane < p.top_k) {
    const int64_t at = static_cast<int64_t>(token) * p.top_k + lane;
    p.expert_ids[at] = choice.id;
    p.expert_weights[at] = weight;
  }
}
static_assert(kMaxExperts == 32 * 8);

int32_t pitch_of(const PackedMatrix& weight) { return 16 * weight.num_tiles(); }

}  // namespace

const char* route_bf16_bf16x2_tiles_cuda_refuses(const RouteParams& p) {
  if (p.weight.format != DType::kBF16) return "the router is not BF16";
  if (p.weight.rows > kMaxExperts) return "more than 256 experts";
  if (p.weight.num_units() > kWarps * kMostUnits) return "more than 3072 columns";
  return refuses_matrix(p.weight);
}

uint64_t route_bf16_bf16x2_tiles_cuda_workspace(const RouteParams& p) {
  return sizeof(float) * static_cast<uint64_t>(p.num_tokens) *
         static_cast<uint64_t>(pitch_of(p.weight));
}

void route_bf16_bf16x2_tiles_cuda(const RouteParams& p) {
  if (p.num_tokens == 0) return;
  write_route_input(p);
  cudaStream_t stream = launch_stream(p.launch.stream);
  const bool leaves_l1 = p.launch.l1 == L1Form::kL1;
  const TiledRoute step{.weight = p.weight,
                        .x = p.x,
                        .norm_weight = p.norm_weight,
                        .rms_eps = p.rms_eps,
                        .bias = p.bias,
                        .logits = reinterpret_cast<float*>(p.launch.workspace),
                        .num_tokens = p.num_tokens,
                        .hidden = p.hidden,
                        .pitch = pitch_of(p.weight)};
  const int num_tiles = p.weight.num_tiles();
  const int splits =
      std::min(ceil_div(p.num_tokens, kGroup), std::max(1, 2 * num_sms() / num_tiles));
  launch_kernel("route_bf16_bf16x2_tiles_cuda",
                p.forms.x == XForm::kF32 ? route_sums<true> : route_sums<false>, step,
                {.grid = dim3(static_cast<unsigned>(num_tiles), static_cast<unsigned>(splits)),
                 .num_threads = kThreads,
                 .programmatic = true,
                 .leaves_l1 = leaves_l1},
                stream);
  const RouteChoices choices{.logits = step.logits,
                             .expert_ids = p.expert_ids,
                             .expert_weights = p.expert_weights,
                             .num_tokens = p.num_tokens,
                             .num_experts = p.weight.rows,
                             .pitch = step.pitch,
                             .top_k = p.top_k};
  launch_kernel("route_bf16_bf16x2_tiles_cuda",
                p.weight.rows <= 32 * 4 ? choose_rows<4> : choose_rows<8>, choices,
                {.grid = dim3(static_cast<unsigned>(ceil_div(p.num_tokens, kChoosers))),
                 .num_threads = 32 * kChoosers,
                 .programmatic = true,
                 .leaves_l1 = leaves_l1},
                stream);
}

}  // namespace moxie
