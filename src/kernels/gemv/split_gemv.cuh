// qkv and out in MXFP4, where a cluster of blocks shares the columns: a cluster of n blocks makes n
// tiles of 16 outputs. Block r has the r-th share of the columns of all n tiles, a tile a warp,
// with the weights in registers before the wait for the kernel that makes the activations
// (held_units.cuh). So it stages only that share of the activations. The sums of tile r are sent to
// block r, as words that its barrier counts.
//
// Blocks start late, when the previous kernel's blocks leave them room: work before the wait is not
// free. So before the wait no load depends on another, except in a step's early(); after the wait
// there is one round trip to memory.
//
// slice_gemv.cuh says what a Step is.
#pragma once

#include "kernels/gemv/held_units.cuh"
#include "kernels/gemv/slice_gemv.cuh"
#include "kernels/rank_fold.cuh"

namespace moxie::fragment {

/// Tokens that a block stages and multiplies at once: all, unless their activations leave too
/// little room for the other blocks of an SM, or for themselves.
template <int kUnits, int kCluster, int kTokens>
inline constexpr int kTokensAtOnce = (kTokens > 12 && kCluster <= 5) || (kTokens > 8 && kUnits > 9)
                                         ? kTokens / 2
                                         : kTokens;

template <int kUnits, int kCluster, int kTokens, typename Step>
__global__ void __launch_bounds__(32 * kCluster, kCluster <= 5 ? 3 : 2)
    split_gemv(const __grid_constant__ Step step) {
  constexpr DType F = DType::kMXFP4;
  constexpr int kColumns = 64 * kUnits, kSegments = kColumns / 8, kParts = kSegments / 8;
  constexpr int kAtOnce = kTokensAtOnce<kUnits, kCluster, kTokens>;
  constexpr int kGroups = kGroupsOf<kAtOnce>, kThreads = 32 * kCluster;
  touch_params(step);
  __shared__ __align__(128) std::byte inputs[kAtOnce][HeldUnits<kUnits>::kInputBytes];
  __shared__ __align__(16) std::byte zeros[kTokens == 1 ? HeldUnits<kUnits>::kInputBytes : 16];
  __shared__ __align__(16) float norm_weights[Step::kNorm ? kColumns : 4];
  __shared__ float squares_of_parts[kAtOnce][kParts];      // of 64 columns
  __shared__ float2 sums_of_blocks[kCluster][kTokens][8];  // rows g and g + 8
  __shared__ float squares_of_blocks[kCluster][kTokens];
  __shared__ uint64_t has_norm, has_sums;
  __shared__ __align__(16) float reduced[mail::kFolds<Step> ? kColumns : 4];  // x of these columns
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int num_tokens = kTokens == 1 ? 1 : step.num_tokens;
  const int rank = blockIdx.x % kCluster, first_tile = blockIdx.x - rank;
  const int num_tiles = (step.weight.rows + 15) / 16;
  if (threadIdx.x == 0) init_barrier(&has_norm), init_barrier(&has_sums);
  cluster_arrive();
  if constexpr (kTokens == 1) clear_zeros(zeros);
  // The outputs of this thread: a pair of rows of one token.
  const int row = threadIdx.x % 8, token = threadIdx.x / 8, my_tile = first_tile + rank;
  const bool has_outputs = token < num_tokens && my_tile < num_tiles;
  __syncthreads();
  cluster_wait();  // all blocks have begun
  HeldUnits<kUnits> held;
  if (first_tile + warp < num_tiles)
    held.load(step.weight.data +
              (int64_t{first_tile + warp} * (kUnits * kCluster) + rank * kUnits) * kUnitBytes<F>);
  if (threadIdx.x == 0) {
    // From each block: the sums of this block's tile, and the squares of the sender's columns.
    expect_bytes(&has_sums, kCluster * num_tokens * (Step::kNorm ? 68 : 64));
    if constexpr (Step::kNorm) {
      expect_bytes(&has_norm, 4 * kColumns);
      copy_bulk(norm_weights, step.norm_weight + rank * kColumns, 4 * kColumns, &has_norm);
    }
  }
  typename Step::Early early{};
  if (has_outputs) early = step.early(my_tile, row, token);
  typename Step::MoreEarly more_early{};
  if constexpr (Step::kMore) {
    if (my_tile < num_tiles) more_early = step.more_early(my_tile);
  }

  wait_for_previous();
  launch_next();
  uint32_t exchanges = 0;
  if constexpr (mail::kFolds<Step>) {
    static_assert(kColumns % mail::kValuesOfFold == 0 && kTokens == 1);
    constexpr int kWords = kColumns / mail::kValuesOfFold;
    exchanges = mail::exchanges_before(step.fold);
    mail::fold_words<Step::kMostRanks, (kWords + kThreads - 1) / kThreads>(
        step.fold, exchanges, rank * kWords, (rank + 1) * kWords,
        [&](int) { return first_tile == 0; },
        [&](int i, float value) { reduced[i - rank * kColumns] = value; });
    mail::clear_parts(step.fold);
    __syncthreads();
  }

  // Each thread loads eight columns of a token a round; the loads of all rounds are in flight at
  // once.
  constexpr int kRounds = (kAtOnce * kSegments + kThreads - 1) / kThreads;
  float values[kRounds][8];
  const auto load_values = [&](int first, int count) {
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int i = threadIdx.x + r * kThreads, t = i / kSegments, s = i % kSegments;
      if (t >= count) continue;
      if constexpr (mail::kFolds<Step>)
        load_eight(reduced + 8 * s, values[r]);
      else
        load_eight(step.x + int64_t{first + t} * step.weight.cols + rank * kColumns + 8 * s,
                   values[r]);
    }
  };
  const auto stage_values = [&](int count) {
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int i = threadIdx.x + r * kThreads, t = i / kSegments, s = i % kSegments;
      if (t >= count) break;  // the same for all eight threads of 64 columns
      float(&v)[8] = values[r];
      if constexpr (Step::kNorm) {
        float square = 0, norm[8];
        load_eight(norm_weights + 8 * s, norm);
#pragma unroll
        for (int k = 0; k < 8; ++k) square += v[k] * v[k], v[k] *= norm[k];
#pragma unroll
        for (int lanes = 1; lanes < 8; lanes *= 2)
          square += __shfl_xor_sync(0xFFu << lane / 8 * 8, square, lanes);
        if (lane % 8 == 0) squares_of_parts[t][s / 8] = square;
      }
#pragma unroll
      for (float& value : v) value *= kActivationScale<F>;
      uint4 high, low;
      split_parts(v, high, low);
      std::byte* to = inputs[t] + s / 4 * kBlockBytes<1> + 16 * (s % 4);
      *reinterpret_cast<uint4*>(to) = high;
      *reinterpret_cast<uint4*>(to + 64) = low;
    }
  };
  const auto multiply_staged = [&](int first, int count) {
    if constexpr (Step::kNorm) {
      for (int i = threadIdx.x; i < count * kCluster; i += blockDim.x) {
        const int t = i / kCluster;
        float square = 0;
#pragma unroll
        for (int k = 0; k < kParts; ++k) square += squares_of_parts[t][k];
        if (first_tile + i % kCluster < num_tiles)
          send(&squares_of_blocks[rank][first + t], &has_sums, i % kCluster,
               __float_as_uint(square));
      }
    }
    if (first_tile + warp < num_tiles) {
      if constexpr (kTokens == 1) {
        const float top = held.multiply(inputs[0], zeros, nullptr);
        const float bottom = __shfl_down_sync(~0u, top, 1);
        if (lane % 4 == 0) send(&sums_of_blocks[rank][0][lane / 4], &has_sums, warp, top, bottom);
      } else {
        // A lane has one token of each group of four.
        const auto of_group = [&](int c) {
          return LanePart(inputs[min(4 * c + lane / 8, count - 1)]);
        };
        const LanePart of_lane[] = {of_group(0), of_group(1), of_group(2), of_group(3)};
        static_assert(kGroups <= 4);
        float products[kGroups][2];
        held.multiply([&](int c, int n) { return of_lane[c](n); }, products, nullptr);
#pragma unroll
        for (int c = 0; c < kGroups; ++c) {
          const int j = 4 * c + lane % 4;
          if (j < count)
            send(&sums_of_blocks[rank][first + j][lane / 4], &has_sums, warp, products[c][0],
                 products[c][1]);
        }
      }
    }
  };
  static_assert(kTokens <= 2 * kAtOnce);
  const int num_first = kTokens == kAtOnce ? num_tokens : min(num_tokens, kAtOnce);
  load_values(0, num_first);
  if constexpr (Step::kNorm) wait_barrier(&has_norm, 0);
  stage_values(num_first);
  // The other half is on its way while the first is multiplied, by the same weights.
  if constexpr (kTokens > kAtOnce) load_values(kAtOnce, num_tokens - kAtOnce);
  __syncthreads();
  multiply_staged(0, num_first);
  if constexpr (kTokens > kAtOnce) {
    __syncthreads();
    stage_values(num_tokens - kAtOnce);
    __syncthreads();
    multiply_staged(kAtOnce, num_tokens - kAtOnce);
  }
  if constexpr (mail::kFolds<Step>) {
    if (threadIdx.x == blockDim.x - 1) mail::end_fold(step.fold, exchanges);
  }
  if (my_tile >= num_tiles) return;

  float top = 0, bottom = 0, square = 0;
  if (has_outputs) {
    wait_cluster_barrier(&has_sums, 0);
#pragma unroll
    for (int r = 0; r < kCluster; ++r) {
      const float2 both = sums_of_blocks[r][token][row];
      top += both.x, bottom += both.y;
      if constexpr (Step::kNorm) square += squares_of_blocks[r][token];
    }
  }
  float factor = kSumScale<F>;
  if constexpr (Step::kNorm)
    factor *= rsqrtf(__fdividef(square, static_cast<float>(step.weight.cols)) + step.rms_eps);
  if constexpr (Step::kMore) {
    __shared__ typename Step::Made made;
    if (has_outputs) step.finish(top * factor, bottom * factor, early, made, token * 16 + row);
    __syncthreads();
    step.template more<kTokens>(made, my_tile, 1, num_tokens, more_early);
  } else {
    if (has_outputs) step.finish(top * factor, bottom * factor, early);
  }
}

template <int kUnits, int kCluster, int kTokens, typename Step>
void launch_split(const char* row, const Step& step, const Launch& launch) {
  const int num_clusters = ceil_div(step.weight.num_tiles(), kCluster);
  launch_kernel(row, split_gemv<kUnits, kCluster, kTokens, Step>, step,
                {.grid = dim3(static_cast<unsigned>(num_clusters * kCluster)),
                 .num_threads = 32 * kCluster,
                 .cluster = kCluster,
                 .programmatic = true,
                 .leaves_l1 = launch.l1 == L1Form::kL1},
                launch_stream(launch.stream));
}

/// The most tokens of one launch.
inline constexpr int kMaxSplitTokens = 16;

/// Columns that clusters of 5 and of 8 share evenly. For steps that neither norm nor go on also the
/// wide ones of a draft head's MLP, and those of one rank of two and of four.
inline constexpr int kColumnsOf5 = 64 * 9 * 5, kColumnsOf8 = 64 * 8 * 8, kWideColumns = 64 * 15 * 8,
                     kHalfColumns = kColumnsOf8 / 2, kQuarterColumns = kColumnsOf8 / 4;

/// Null if split_gemv can multiply by a matrix, otherwise why not. `is_plain`: for a step that
/// neither norms nor goes on.
inline const char* refuses_split(const PackedMatrix& weight, bool is_plain = false) {
  const bool has_columns =
      weight.cols == kColumnsOf5 || weight.cols == kColumnsOf8 ||
      (is_plain && (weight.cols == kWideColumns || weight.cols == kHalfColumns ||
                    weight.cols == kQuarterColumns));
  if (weight.format != DType::kMXFP4 || !has_columns)
    return is_plain ? "not MXFP4 of 1024, 2048, 2880, 4096 or 7680 columns"
                    : "not MXFP4 of 2880 or 4096 columns";
  return refuses_matrix(weight);
}

/// Of a step that goes on with a rank's part of x, for one token.
inline const char* refuses_split_part(const PackedMatrix& weight) {
  const bool has_columns = weight.cols == kHalfColumns || weight.cols == kQuarterColumns;
  return weight.format == DType::kMXFP4 && has_columns ? refuses_matrix(weight)
                                                       : "not MXFP4 of 1024 or 2048 columns";
}
template <typename Step>
void launch_split_part(const char* row, const Step& step, const Launch& launch) {
  if (step.weight.cols == kHalfColumns) return launch_split<4, 8, 1>(row, step, launch);
  launch_split<2, 8, 1>(row, step, launch);
}

/// Launches split_gemv for a matrix that refuses_split accepts.
template <typename Step>
void launch_split_gemv(const char* row, const Step& step, const Launch& launch) {
  dispatch_up_to<1, 2, 4, kMaxTokens, 12, kMaxSplitTokens>(step.num_tokens, [&]<int kTokens>() {
    if (step.weight.cols == kColumnsOf5) return launch_split<9, 5, kTokens>(row, step, launch);
    if constexpr (!Step::kNorm && !Step::kMore) {
      if (step.weight.cols == kWideColumns) return launch_split<15, 8, kTokens>(row, step, launch);
      if (step.weight.cols == kHalfColumns) return launch_split<4, 8, kTokens>(row, step, launch);
      if (step.weight.cols == kQuarterColumns)
        return launch_split<2, 8, kTokens>(row, step, launch);
    }
    launch_split<8, 8, kTokens>(row, step, launch);
  });
}

}  // namespace moxie::fragment
