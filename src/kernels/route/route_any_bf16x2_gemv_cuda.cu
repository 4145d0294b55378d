// route on CUDA for a few tokens: norm, router, top-k and softmax in one kernel, a cluster of
// blocks. The blocks share the router's tiles, the warps of a block share the columns. The logits
// are sent to the first block's shared memory, where one warp a token chooses the greatest. Copies
// of the whole router start before the wait.

#include "kernels/gemv/slice_gemv.cuh"
#include "kernels/route/route_choose.cuh"
#include "kernels/route/route_rows.h"

namespace moxie {
namespace {

using namespace fragment;

constexpr int kMaxCluster = 8;

struct RouteStep {
  PackedMatrix weight;
  const float2* x;
  const float* norm_weight;
  const float* bias;
  float* t;
  int32_t* expert_ids;
  float* expert_weights;
  float rms_eps;
  int32_t num_tokens, hidden, top_k;
};

// As the assembler chooses there are 64 registers, into which eight tokens' sums of squares and a
// format with scales do not fit. A bound of 24 warps, more than there are, gives 80.
template <DType F, int kTokens>
inline constexpr bool kNeedsRegisters = kTokens == kMaxTokens&& Format<F>::kScaleWords > 0;

template <DType F, int kTokens>
__global__ void __launch_bounds__(32 * (kNeedsRegisters<F, kTokens> ? 24 : kMaxSliceWarps),
                                  kNeedsRegisters<F, kTokens> ? 1 : 0)
    route_gemv(const __grid_constant__ RouteStep p) {
  constexpr int kWidth = 4 * kGroupsOf<kTokens>;
  touch_params(p);
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ float logits[kMaxExperts * kWidth];  // those of the first block are read
  __shared__ uint64_t barrier;                    // counts their bytes
  // The grid is one cluster.
  const int rank = blockIdx.x, num_blocks = gridDim.x;
  if (rank == 0 && threadIdx.x == 0) {
    init_barrier(&barrier);
    expect_bytes(&barrier, 4 * p.weight.rows * p.num_tokens);
  }
  cluster_arrive();
  const int num_warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int num_units = (p.hidden + 63) / 64, num_tiles = (p.weight.rows + 15) / 16;
  std::byte* staged = shared + num_warps * kSliceRingBytes<F>;
  auto* sums_of_warps =
      reinterpret_cast<float*>(staged + kUnitActivationBytes<kTokens> * num_units);
  float* squares_of_warps = sums_of_warps + num_warps * 16 * kWidth;

  WarpSlice<F, kTokens> slice(shared, staged, num_units);
  slice.start(p.weight, rank, 1);
  Eight norm;
  norm.load(p.norm_weight, p.hidden, 64 * slice.first_unit, 8 * slice.count, lane);

  const int my_expert = 16 * rank + threadIdx.x % 16;
  const float my_bias = my_expert < p.weight.rows ? load_early(p.bias + my_expert) : 0.0f;
  // The columns of the experts' input that this thread writes.
  const int my_column = rank * blockDim.x + threadIdx.x;
  const float my_norm = my_column < p.hidden ? p.norm_weight[my_column] : 0.0f;

  cluster_wait();  // the first block is ready to receive
  wait_for_previous();
  launch_next();
  const float my_x = my_column < p.hidden ? whole(p.x[my_column]) : 0.0f;
  float squares[kTokens] = {};
  stage_activations<kTokens, true>(p.x, p.hidden, 64 * slice.first_unit, slice.count, p.num_tokens,
                                   kActivationScale<F>, p.norm_weight, norm, nullptr, slice.staged,
                                   lane, 32, squares);
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    if (t >= p.num_tokens) break;
    const float sum = warp_sum(squares[t]);
    if (lane == 0) squares_of_warps[warp * kWidth + t] = sum;
  }
  __syncwarp();
  const auto factor_of = [&](int token) {
    float square = 0;
    for (int w = 0; w < num_warps; ++w) square += squares_of_warps[w * kWidth + token];
    return rsqrtf(square / static_cast<float>(p.hidden) + p.rms_eps);
  };

  float first_factor = 0;
  for (int tile = rank; tile < num_tiles; tile += num_blocks) {
    if (tile != rank) {
      __syncthreads();
      slice.ring.restart();
      slice.start(p.weight, tile, 1);
    }
    slice.multiply_tile(p.num_tokens, sums_of_warps + warp * 16 * kWidth);
    __syncthreads();
    if (tile == rank) first_factor = factor_of(0);
    for (int i = threadIdx.x; i < 16 * p.num_tokens; i += blockDim.x) {
      const int row = i % 16, token = i / 16, expert = 16 * tile + row;
      float sum = 0;
      for (int w = 0; w < num_warps; ++w) sum += sums_of_warps[(w * 16 + row) * kWidth + token];
      if (expert < p.weight.rows) {
        const float factor = token == 0 ? first_factor : factor_of(token);
        const float bias = tile == rank ? my_bias : p.bias[expert];
        const float logit = sum * (kSumScale<F> * factor) + bias;
        float* to = &logits[expert * kWidth + token];
        if (num_blocks == 1) {  // a single block cannot receive from itself
          *to = logit;
        } else {
          send(to, &barrier, 0, __float_as_uint(logit));
        }
      }
    }
  }

  for (int token = 0; token < p.num_tokens; ++token) {
    const float factor = token == 0 ? first_factor : factor_of(token);
    const int64_t row = static_cast<int64_t>(token) * p.hidden;
    for (int k = my_column; k < p.hidden; k += num_blocks * blockDim.x) {
      const bool is_early = token == 0 && k == my_column;
      p.t[row + k] = (is_early ? my_x * my_norm : whole(p.x[row + k]) * p.norm_weight[k]) * factor;
    }
  }
  if (rank == 0) {
    if (num_blocks == 1) {
      __syncthreads();
    } else {
      wait_cluster_barrier(&barrier, 0);
    }
    for (int token = warp; token < p.num_tokens; token += num_warps) {
      const Choice choice = choose_experts<kMaxExperts / 32>(
          p.weight.rows, p.top_k, [&](int expert, int) { return logits[expert * kWidth + token]; });
      const float weight = choice_weight(choice, p.top_k);
      if (lane < p.top_k) {
        p.expert_ids[token * p.top_k + lane] = choice.id;
        p.expert_weights[token * p.top_k + lane] = weight;
      }
    }
  }
}

template <DType F, int kTokens>
void launch_route(const RouteStep& step, const Launch& launch) {
  BlockLimits limits = block_limits(launch);
  limits.shared_bytes -= sizeof(float) * kMaxExperts * 4 * kGroupsOf<kTokens>;  // the logits
  const auto num_units = static_cast<uint64_t>(step.weight.num_units());
  const BlockPlan plan =
      plan_slices<F>(limits, step.weight.num_units(), kStagesAWarp<F, kMaxTokens>,
                     kUnitActivationBytes<kTokens> * num_units, 4ull * 17 * 4 * kGroupsOf<kTokens>);
  const int cluster = std::min(kMaxCluster, step.weight.num_tiles());
  launch_kernel("route_any_bf16x2_gemv_cuda", route_gemv<F, kTokens>, step,
                {.grid = dim3(static_cast<unsigned>(cluster)),
                 .num_threads = 32 * plan.num_warps,
                 .shared_bytes = plan.shared_bytes,
                 .cluster = cluster,
                 .programmatic = true},
                launch_stream(launch.stream));
}

}  // namespace

const char* route_any_bf16x2_gemv_cuda_refuses(const RouteParams& p) {
  if (p.weight.rows > kMaxExperts) return "more than 256 experts";
  return refuses_matrix(p.weight);
}

void route_any_bf16x2_gemv_cuda(const RouteParams& p) {
  const int32_t group = slice_tokens(p.weight, p.launch);
  for (int32_t first = 0; first < p.num_tokens; first += group) {
    const int64_t row = int64_t{first} * p.hidden, pair = int64_t{first} * p.top_k;
    const RouteStep step{.weight = p.weight,
                         .x = reinterpret_cast<const float2*>(p.x) + row,
                         .norm_weight = p.norm_weight,
                         .bias = p.bias,
                         .t = p.t + row,
                         .expert_ids = p.expert_ids + pair,
                         .expert_weights = p.expert_weights + pair,
                         .rms_eps = p.rms_eps,
                         .num_tokens = std::min(group, p.num_tokens - first),
                         .hidden = p.hidden,
                         .top_k = p.top_k};
    dispatch_format(p.weight.format, [&]<DType F>() {
      dispatch_tokens(step.num_tokens,
                      [&]<int kTokens>() { launch_route<F, kTokens>(step, p.launch); });
    });
  }
}

}  // namespace moxie
