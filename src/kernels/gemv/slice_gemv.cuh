// One kernel shape for qkv and out; route uses parts of it. A block makes a tile of 16 outputs (or
// several tiles, if staging several tokens' activations for each tile would cost more than it
// gains); its warps share the columns. Copies of weights to shared memory start before the wait for
// the kernel that makes the activations, so that a launch costs little more than its dependency.
//
// A Step defines what differs: the source of the activations and the use of the sums.
//   struct Step {
//     static constexpr bool kNorm;
//     PackedMatrix weight;
//     const X* x;                // [tokens, cols], floats or the residual stream
//     const float* norm_weight;  // [cols], if kNorm
//     float rms_eps;
//     int32_t num_tokens, tiles_a_block;
//     // Where the outputs of rows `row` and `row` + 8 of a tile go, and what else finish() needs:
//     // only values that nothing in the chain writes, or that kernels before the previous one
//     // wrote. They are computed before the wait, so that little is left after it.
//     struct Early {...};
//     __device__ Early early(int tile, int row, int token) const;
//     __device__ void finish(float top, float bottom, const Early&) const;
//     // With kMore, finish(..., made, at) also stores its results for the two rows in shared
//     // memory, at `at` and `at` + 8 of [tile][token][16], for more(), which all threads call.
//     static constexpr bool kMore;
//     struct Made {...};
//     struct MoreEarly {...};  // computed before the wait, like Early
//     __device__ MoreEarly more_early(int first_tile) const;
//     template <int kTokens>  // at most; num_tokens of them are in use
//     __device__ void more(const Made&, int first_tile, int num_tiles, int num_tokens,
//                          const MoreEarly&) const;
//   };
#pragma once

#include "core/cuda_launch.cuh"
#include "core/cuda_part.h"
#include "kernels/gemv/fragment_gemv.cuh"
#include "kernels/step.h"

namespace moxie::fragment {

inline constexpr int kMaxSliceWarps = 16, kMaxTilesABlock = 4;

template <DType F>
inline constexpr int kSliceStages = slice_stages(F);
template <DType F>
inline constexpr int kSliceRingBytes = kSliceStages<F>* Pipeline<F>::kStageBytes;
/// Stages of a tile for each warp, if there are enough warps: fewer shorten the chain after the
/// wait; more leave room for all blocks of a launch at once, which matters more.
template <DType F, int kTokens>
inline constexpr int kStagesAWarp = F == DType::kMXFP4  ? (kTokens == 1 ? 2 : 1)
                                    : F == DType::kBF16 ? (kTokens == 1 ? 8 : 4)
                                                        : 3;
/// The most tiles of a block: it stages several tokens' activations once for all of them.
template <DType F, int kTokens>
inline constexpr int kMostTiles = kTokens == 1                       ? 1
                                  : F == DType::kMXFP4&& kTokens < 8 ? 2
                                                                     : kMaxTilesABlock;

/// The slice of columns that one warp multiplies, in whole stages: its weights and activations.
template <DType F, int kTokens>
struct WarpSlice {
  static constexpr int kUnroll = Pipeline<F>::kUnroll, kGroups = kGroupsOf<kTokens>;
  Ring<kSliceStages<F>> ring;
  UnitCursor<F> cursor;
  std::byte* staged;
  int first_unit, count, num_units;
  int ahead_units = 0, ahead_tiles = 0;

  /// `rings`: kSliceRingBytes a warp; `activations`: kUnitActivationBytes a unit of the block.
  __device__ __forceinline__ WarpSlice(std::byte* rings, std::byte* activations, int units_of_row)
      : ring(rings + threadIdx.x / 32 * kSliceRingBytes<F>, Pipeline<F>::kStageBytes),
        num_units(units_of_row) {
    const int warp = threadIdx.x / 32, num_warps = blockDim.x / 32;
    const int num_stages = (num_units + kUnroll - 1) / kUnroll;
    first_unit = part_begin(num_stages, num_warps, warp) * kUnroll;
    count = min(num_units, part_begin(num_stages, num_warps, warp + 1) * kUnroll) - first_unit;
    staged = activations + kUnitActivationBytes<kTokens> * first_unit;
  }
  /// Starts the copies of `num_tiles` neighbouring tiles.
  __device__ __forceinline__ void start(const PackedMatrix& weight, int tile, int num_tiles) {
    cursor = UnitCursor<F>(weight, 0, 0, tile, first_unit);
    ahead_units = count;
    ahead_tiles = num_tiles - 1;
    ring.start([this](uint32_t stage) { fill(stage); });
  }
  __device__ __forceinline__ void fill(uint32_t stage) {
    if (ahead_units > 0) cursor.copy_stage(stage, ahead_units);
    ahead_units -= kUnroll;
    if (ahead_units <= 0 && ahead_tiles > 0) {
      cursor.skip(num_units - (count - ahead_units));
      ahead_units = count;
      --ahead_tiles;
    }
  }
  /// Writes the sums of the next tile over this warp's columns to sums_of_warp [16][4 kGroups].
  __device__ __forceinline__ void multiply_tile(int num_tokens, float* sums_of_warp) {
    TileProduct<F, kTokens> product(staged, num_tokens);
    for (int left = count; left > 0; left -= kUnroll)
      product.add_stage(ring.next([this](uint32_t to) { fill(to); }), left);
    product.finish();
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        sums_of_warp[(g + 8 * half) * 4 * kGroups + 4 * c + q] = product.sums[c][half];
    }
  }
};

/// Blocks of an SM that registers must leave room for; 0: as the assembler chooses, which spills
/// rather than take more than 64 registers. Several tokens of MXFP8 with more() need some 100, and
/// shared memory bounds such blocks before registers do.
template <DType F, int kTokens, typename Step>
inline constexpr int kLeastSliceBlocks = F == DType::kMXFP8&& kTokens > 1 && Step::kMore ? 1 : 0;

template <DType F, int kTokens, typename Step>
__global__ void __launch_bounds__(32 * kMaxSliceWarps, kLeastSliceBlocks<F, kTokens, Step>)
    slice_gemv(const __grid_constant__ Step step) {
  constexpr int kWidth = 4 * kGroupsOf<kTokens>;  // tokens of the product
  touch_params(step);
  extern __shared__ __align__(128) std::byte shared[];
  const int num_warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int num_tokens = kTokens == 1 ? 1 : step.num_tokens;
  const int num_units = (step.weight.cols + 63) / 64;
  const int tiles_a_block = kTokens == 1 ? 1 : step.tiles_a_block;
  const int first_tile = blockIdx.x * tiles_a_block;
  const int num_tiles =
      kTokens == 1 ? 1 : min(tiles_a_block, (step.weight.rows + 15) / 16 - first_tile);
  std::byte* staged = shared + num_warps * kSliceRingBytes<F>;
  auto* sums_of_warps =
      reinterpret_cast<float*>(staged + kUnitActivationBytes<kTokens> * num_units);
  float* squares_of_warps = sums_of_warps + tiles_a_block * num_warps * 16 * kWidth;

  WarpSlice<F, kTokens> slice(shared, staged, num_units);
  slice.start(step.weight, first_tile, num_tiles);
  Eight norm;
  if constexpr (Step::kNorm)
    norm.load(step.norm_weight, step.weight.cols, 64 * slice.first_unit, 8 * slice.count, lane);
  // The outputs of this thread: a pair of rows of one token.
  const int row = threadIdx.x % 8, token = threadIdx.x / 8 % num_tokens;
  const int tile = threadIdx.x / 8 / num_tokens;
  typename Step::Early early{};
  if (tile < num_tiles) early = step.early(first_tile + tile, row, token);
  typename Step::MoreEarly more_early{};
  if constexpr (Step::kMore) more_early = step.more_early(first_tile);

  wait_for_previous();
  launch_next();

  float squares[kTokens] = {};
  stage_activations<kTokens, Step::kNorm>(
      step.x, step.weight.cols, 64 * slice.first_unit, slice.count, num_tokens, kActivationScale<F>,
      step.norm_weight, norm, nullptr, slice.staged, lane, 32, squares);
  __syncwarp();
  for (int t = 0; t < num_tiles; ++t)
    slice.multiply_tile(num_tokens, sums_of_warps + (t * num_warps + warp) * 16 * kWidth);
  if constexpr (Step::kNorm) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      if (t >= num_tokens) break;
      const float sum = warp_sum(squares[t]);
      if (lane == 0) squares_of_warps[warp * kWidth + t] = sum;
    }
  }
  __syncthreads();
  if (tile >= num_tiles && !Step::kMore) return;
  float top = 0, bottom = 0, square = 0;
  const float* of = sums_of_warps + tile * num_warps * 16 * kWidth + row * kWidth + token;
  const float* of_square = squares_of_warps + token;
// Kept short, since it runs once.
#pragma unroll 2
  for (int w = 0; w < (tile < num_tiles ? num_warps : 0); ++w) {
    top += of[0];
    bottom += of[8 * kWidth];
    of += 16 * kWidth;
    if constexpr (Step::kNorm) {
      square += *of_square;
      of_square += kWidth;
    }
  }
  float factor = kSumScale<F>;
  if constexpr (Step::kNorm)
    factor *= rsqrtf(__fdividef(square, static_cast<float>(step.weight.cols)) + step.rms_eps);
  if constexpr (Step::kMore) {
    __shared__ typename Step::Made made;
    if (tile < num_tiles)
      step.finish(top * factor, bottom * factor, early, made,
                  (tile * num_tokens + token) * 16 + row);
    __syncthreads();
    step.template more<kTokens>(made, first_tile, num_tiles, num_tokens, more_early);
  } else {
    step.finish(top * factor, bottom * factor, early);
  }
}

/// SMs of the current device.
inline int num_sms() { return num_multiprocessors(); }

/// What a block of a launch on the current device may take, static shared memory included.
struct BlockLimits {
  uint64_t shared_bytes;
  int num_units;
};
inline BlockLimits block_limits(const Launch& launch) {
  const uint64_t of_device = shared_memory().of_block;
  return {launch.most_shared == 0 ? of_device : std::min(of_device, launch.most_shared), num_sms()};
}

/// Warps of a block and its dynamic shared memory: as many warps as share the columns in runs of
/// `stages_a_warp`; fewer if `fixed` bytes of the block and `a_warp` bytes beside each ring leave
/// too little room.
struct BlockPlan {
  int num_warps;
  uint64_t shared_bytes, a_warp;
};
template <DType F>
BlockPlan plan_slices(const BlockLimits& limits, int num_units, int stages_a_warp, uint64_t fixed,
                      uint64_t a_warp) {
  constexpr int kUnroll = Pipeline<F>::kUnroll;
  const int num_stages = ceil_div(num_units, kUnroll);
  const uint64_t each = kSliceRingBytes<F> + a_warp;
  const int room = static_cast<int>((limits.shared_bytes - fixed) / each);
  const int at_most =
      std::max(1, std::min({kMaxSliceWarps, room, ceil_div(num_stages, stages_a_warp)}));
  // The fewest warps with the same number of rounds.
  const int num_warps = ceil_div(num_stages, ceil_div(num_stages, at_most));
  return {num_warps, fixed + each * static_cast<uint64_t>(num_warps), each};
}

/// Calls launch<k>() with the first of the ascending numbers k that is not less than n, or with the
/// last one. Kernels are compiled for these k.
template <int kFirst, int... kOthers, typename Launch>
void dispatch_up_to(int n, Launch&& launch) {
  if constexpr (sizeof...(kOthers) > 0) {
    if (n > kFirst) return dispatch_up_to<kOthers...>(n, launch);
  }
  launch.template operator()<kFirst>();
}

/// The same for the numbers of tokens that most kernels are compiled for.
template <typename Launch>
void dispatch_tokens(int num_tokens, Launch&& launch) {
  dispatch_up_to<1, 4, kMaxTokens>(num_tokens, launch);
}

/// Calls launch<F>() for the format of a matrix.
template <typename Launch>
void dispatch_format(DType format, Launch&& launch) {
  switch (format) {
    case DType::kMXFP4:
      return launch.template operator()<DType::kMXFP4>();
    case DType::kMXFP8:
      return launch.template operator()<DType::kMXFP8>();
    case DType::kQ8_0:
      return launch.template operator()<DType::kQ8_0>();
    case DType::kBF16:
      return launch.template operator()<DType::kBF16>();
    case DType::kF32:
      return launch.template operator()<DType::kF32>();
    default:
      CHECK(false, "not a packed format");
  }
}

/// Tokens of one launch of a slice kernel over this matrix on the current device.
inline int slice_tokens(const PackedMatrix& weight, const Launch& launch) {
  int tokens = 1;
  dispatch_format(weight.format, [&]<DType F>() {
    tokens =
        tokens_that_fit(block_limits(launch).shared_bytes, weight.num_units(), kSliceRingBytes<F>);
  });
  return tokens;
}

template <typename Step>
void launch_slice_gemv(const char* row, Step step, const Launch& launch) {
  dispatch_format(step.weight.format, [&]<DType F>() {
    dispatch_tokens(step.num_tokens, [&]<int kTokens>() {
      BlockLimits limits = block_limits(launch);
      if constexpr (Step::kMore) limits.shared_bytes -= sizeof(typename Step::Made);
      const int num_units = step.weight.num_units(), num_tiles = step.weight.num_tiles();
      step.tiles_a_block =
          std::clamp(ceil_div(num_tiles, limits.num_units), 1, kMostTiles<F, kTokens>);
      BlockPlan plan = plan_slices<F>(
          limits, num_units, kStagesAWarp<F, kTokens>,
          static_cast<uint64_t>(kUnitActivationBytes<kTokens>) * static_cast<uint64_t>(num_units),
          4ull * (16 * step.tiles_a_block + 1) * 4 * kGroupsOf<kTokens>);
      // A thread for each pair of outputs.
      const int least = ceil_div(8 * step.num_tokens * step.tiles_a_block, 32);
      plan.shared_bytes += plan.a_warp * static_cast<uint64_t>(std::max(0, least - plan.num_warps));
      plan.num_warps = std::max(plan.num_warps, least);
      launch_kernel(row, slice_gemv<F, kTokens, Step>, step,
                    {.grid = dim3(static_cast<unsigned>(ceil_div(num_tiles, step.tiles_a_block))),
                     .num_threads = 32 * plan.num_warps,
                     .shared_bytes = plan.shared_bytes,
                     .programmatic = true,
                     .leaves_l1 = launch.l1 == L1Form::kL1},
                    launch_stream(launch.stream));
    });
  });
}

/// One token's activations of as many columns, 4 bytes each, leave room for a ring in 99 KB.
inline constexpr int32_t kMaxColumns = 18432;

/// Null if the CUDA rows can read a matrix, otherwise why not.
inline const char* refuses_matrix(const PackedMatrix& matrix) {
  if (matrix.layout != PackedLayout::kFragment16x32)
    return "weights are not in CUDA's packed layout";
  if (matrix.unit_bytes() == 0) return "not a packed format";
  if (matrix.cols > kMaxColumns) return "more than 18432 columns";
  return matrix.cols % 8 == 0 ? nullptr : "columns are not a multiple of 8";
}

}  // namespace moxie::fragment
