// unembed on CUDA for a few rows: norm and head. Warps take whole tiles of 16 vocabulary entries; a
// block stages the activations once. More rows than one launch takes are cut into groups.
#include "kernels/gemv/slice_gemv.cuh"
#include "kernels/unembed/unembed_rows.h"

namespace moxie {
namespace {

using namespace fragment;

// Rows of the largest launch, for MXFP4 alone: the rings of other formats leave too few warps
// beside the activations of so many rows.
constexpr int kMostRows = 16, kLeastWarps = 8;
template <int kRows>
inline constexpr int kMaxWarps = kRows > kMaxTokens ? 10 : 20;

struct UnembedStep {
  PackedMatrix weight;
  const float* x;  // [tokens, hidden], two floats a value or one
  bool x_is_single;
  const int32_t* row_idx;    // [rows]
  const float* norm_weight;  // [hidden]
  float* logits;             // [rows, vocab]
  float rms_eps;
  int32_t num_rows, hidden;
};

template <DType F>
inline constexpr int kRingBytes = Pipeline<F>::kStages* Pipeline<F>::kStageBytes;

template <DType F, int kRows>
__global__ void __launch_bounds__(32 * kMaxWarps<kRows>, 1)
    head_gemv(const __grid_constant__ UnembedStep p) {
  constexpr int kUnroll = Pipeline<F>::kUnroll, kStages = Pipeline<F>::kStages;
  constexpr int kGroups = kGroupsOf<kRows>;
  touch_params(p);
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ float squares_of_warps[kMaxWarps<kRows>][kRows];
  const int num_warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, q = lane % 4;
  const int num_units = (p.hidden + 63) / 64, num_tiles = (p.weight.rows + 15) / 16;
  Ring<kStages> ring(shared + warp * kRingBytes<F>, Pipeline<F>::kStageBytes);
  std::byte* staged = shared + num_warps * kRingBytes<F>;

  const int stride = gridDim.x * num_warps;
  int tile = blockIdx.x * num_warps + warp;
  const int num_rounds = tile < num_tiles ? (num_tiles - 1 - tile) / stride + 1 : 0;
  UnitCursor<F> cursor;
  int ahead_tile = tile, ahead_units = 0, ahead_rounds = num_rounds;
  const auto fill = [&](uint32_t stage) {
    if (ahead_units == 0 && ahead_rounds > 0) {
      cursor = UnitCursor<F>(p.weight, 0, 0, ahead_tile, 0);
      ahead_units = num_units;
      ahead_tile += stride;
      --ahead_rounds;
    }
    if (ahead_units > 0) cursor.copy_stage(stage, ahead_units);
    ahead_units = max(ahead_units - kUnroll, 0);
  };
  ring.start(fill);

  wait_for_previous();
  launch_next();
  for (int r = 0; r < p.num_rows; ++r) {
    // One row at a time: rows of x need not be neighbours.
    float square[1] = {};
    const int64_t first = static_cast<int64_t>(p.row_idx[r]) * p.hidden;
    for (int s = threadIdx.x; s < 8 * num_units; s += blockDim.x) {
      const int k = 8 * s;
      float v[8] = {}, norm[8];
      if (k < p.hidden) {
        if (p.x_is_single) {
          load_eight(p.x + first + k, v);
        } else {
          load_eight(reinterpret_cast<const float2*>(p.x) + first + k, v);
        }
        load_eight(p.norm_weight + k, norm);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          square[0] += v[i] * v[i];
          v[i] *= norm[i] * kActivationScale<F>;
        }
      }
      uint4 high, low;
      split_parts(v, high, low);
      std::byte* to = staged + (s / 4) * kBlockBytes<kRows> + 128 * r + 16 * (s % 4);
      *reinterpret_cast<uint4*>(to) = high;
      *reinterpret_cast<uint4*>(to + 64) = low;
    }
    square[0] = warp_sum(square[0]);
    if (lane == 0) squares_of_warps[warp][r] = square[0];
  }
  __syncthreads();
  float factor[kGroups];
#pragma unroll
  for (int c = 0; c < kGroups; ++c) {
    float sum = 0;
    if (4 * c + q < p.num_rows)
      for (int w = 0; w < num_warps; ++w) sum += squares_of_warps[w][4 * c + q];
    factor[c] = kSumScale<F> * rsqrtf(sum / static_cast<float>(p.hidden) + p.rms_eps);
  }

  for (int round = 0; round < num_rounds; ++round, tile += stride) {
    TileProduct<F, kRows> product(staged, p.num_rows);
    for (int left = num_units; left > 0; left -= kUnroll) product.add_stage(ring.next(fill), left);
    product.finish();
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 4 * c + q, token = 16 * tile + g + 8 * half;
        if (row < p.num_rows && token < p.weight.rows)
          p.logits[static_cast<int64_t>(row) * p.weight.rows + token] =
              product.sums[c][half] * factor[c];
      }
    }
    __syncwarp();
  }
}

template <DType F, int kRows>
void launch_head(const UnembedStep& step, const BlockLimits& limits, cudaStream_t stream) {
  const uint64_t staged = static_cast<uint64_t>(kUnitActivationBytes<kRows>) *
                          static_cast<uint64_t>(step.weight.num_units());
  const auto ring = static_cast<uint64_t>(kRingBytes<F>);
  const int room = static_cast<int>((limits.shared_bytes - 1024 - staged) / ring);
  // As many warps as there is room for, or up to a third fewer if that leaves fewer idle in the
  // last round.
  const int tiles = ceil_div(step.weight.num_tiles(), limits.num_units);
  const int most = std::min(std::clamp(room, 1, kMaxWarps<kRows>), tiles);
  const auto slots = [&](int warps) { return ceil_div(tiles, warps) * warps; };
  int num_warps = most;
  for (int n = most - 1; n >= std::max(1, most * 2 / 3); --n) {
    if (slots(n) < slots(num_warps)) num_warps = n;
  }
  launch_kernel("unembed_any_bf16x2_gemv_cuda", head_gemv<F, kRows>, step,
                {.grid = dim3(static_cast<unsigned>(limits.num_units)),
                 .num_threads = 32 * num_warps,
                 .shared_bytes = staged + ring * static_cast<uint64_t>(num_warps),
                 .programmatic = true},
                stream);
}

}  // namespace

const char* unembed_any_bf16x2_gemv_cuda_refuses(const UnembedParams& p) {
  return refuses_matrix(p.weight);
}

void unembed_any_bf16x2_gemv_cuda(const UnembedParams& p) {
  const BlockLimits limits = block_limits(p.launch);
  int32_t group = 1;
  dispatch_format(p.weight.format, [&]<DType F>() {
    group = tokens_that_fit(limits.shared_bytes, p.weight.num_units(), kRingBytes<F>);
    const uint64_t staged = static_cast<uint64_t>(kUnitActivationBytes<kMostRows>) *
                            static_cast<uint64_t>(p.weight.num_units());
    if (F == DType::kMXFP4 && p.num_rows > kMaxTokens &&
        staged + kLeastWarps * kRingBytes<F> + 2048 <= limits.shared_bytes)
      group = kMostRows;
  });
  for (int32_t first = 0; first < p.num_rows; first += group) {
    const UnembedStep step{.weight = p.weight,
                           .x = p.x,
                           .x_is_single = p.forms.x == XForm::kF32,
                           .row_idx = p.row_idx + first,
                           .norm_weight = p.norm_weight,
                           .logits = p.logits + static_cast<int64_t>(first) * p.weight.rows,
                           .rms_eps = p.rms_eps,
                           .num_rows = std::min(group, p.num_rows - first),
                           .hidden = p.hidden};
    dispatch_format(p.weight.format, [&]<DType F>() {
      const auto launch = [&]<int kRows>() {
        launch_head<F, kRows>(step, limits, launch_stream(p.launch.stream));
      };
      if constexpr (F == DType::kMXFP4) {
        dispatch_up_to<1, 4, kMaxTokens, kMostRows>(step.num_rows, launch);
      } else {
        dispatch_tokens(step.num_rows, launch);
      }
    });
  }
}

}  // namespace moxie
