// qkv and out for 2 to 8 tokens in MXFP4, where a cluster of blocks shares the columns: a cluster
// of n blocks makes n tiles of 16 outputs. Block r has the r-th part of the columns of all n, a
// tile a warp, the weights in registers before the wait for the kernel that makes the activations
// (held_units.cuh); it stages that part of the activations alone, which is what takes long with
// several tokens. Sums go to block r for tile r. kGroups: of four tokens, as many as there are.
//
// A Step is what slice_gemv.cuh says.
#pragma once

#include <cooperative_groups.h>

#include "kernels/gemv/held_units.cuh"
#include "kernels/gemv/slice_gemv.cuh"

namespace moxie::fragment {

template <int kUnits, int kCluster, int kGroups, typename Step>
__global__ void __launch_bounds__(32 * kCluster, kCluster <= 5 ? 3 : 2)
    split_gemv(const __grid_constant__ Step step) {
  using X = std::remove_cv_t<std::remove_pointer_t<decltype(step.x)>>;
  constexpr DType F = DType::kMXFP4;
  constexpr int kColumns = 64 * kUnits, kSegments = kColumns / 8;
  // Of a block of 32 columns: as activations come, and as the parts that take their place.
  constexpr int kStride = 32 * sizeof(X), kTokenBytes = 2 * kUnits * kStride;
  touch_params(step);
  extern __shared__ __align__(128) std::byte inputs[];  // [tokens] of kTokenBytes
  __shared__ __align__(16) float norm_weights[Step::kNorm ? kColumns : 4];
  __shared__ float sums_of_blocks[kCluster][kMaxTokens][16],
      squares_of_blocks[kCluster][kMaxTokens];
  __shared__ float squares_of_warps[kMaxTokens];
  __shared__ uint64_t has_come;
  const auto cluster = cooperative_groups::this_cluster();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, num_tokens = step.num_tokens;
  const int rank = blockIdx.x % kCluster, first_tile = blockIdx.x - rank;
  const int num_tiles = (step.weight.rows + 15) / 16;
  cluster_arrive();
  if (threadIdx.x == 0) init_barrier(&has_come);
  if constexpr (Step::kNorm) {
    for (int i = threadIdx.x; i < kColumns; i += blockDim.x)
      norm_weights[i] = step.norm_weight[rank * kColumns + i];
  }
  // The outputs of this thread: a pair of rows of one token.
  const int row = threadIdx.x % 8, token = threadIdx.x / 8, my_tile = first_tile + rank;
  const bool has_outputs = token < num_tokens && my_tile < num_tiles;
  __syncthreads();
  cluster_wait();  // all blocks have begun
  HeldUnits<kUnits> held;
  if (first_tile + warp < num_tiles)
    held.load(step.weight.data +
              (int64_t{first_tile + warp} * (kUnits * kCluster) + rank * kUnits) * kUnitBytes<F>);
  typename Step::Early early{};
  if (has_outputs) early = step.early(my_tile, row, token);
  typename Step::MoreEarly more_early{};
  if constexpr (Step::kMore) {
    if (my_tile < num_tiles) more_early = step.more_early(my_tile);
  }

  wait_for_previous();
  launch_next();

  if (threadIdx.x == 0) {
    expect_bytes(&has_come, num_tokens * kTokenBytes);
    for (int t = 0; t < num_tokens; ++t)
      copy_bulk(inputs + t * kTokenBytes, step.x + int64_t{t} * step.weight.cols + rank * kColumns,
                kTokenBytes, &has_come);
  }
  wait_barrier(&has_come, 0);
  // A token's columns are shared by `parts` warps.
  const int parts = num_tokens < kCluster ? kCluster / num_tokens : 1;
#pragma unroll 1
  for (int k = warp; k < num_tokens * parts; k += kCluster) {
    std::byte* of_token = inputs + k % num_tokens * kTokenBytes;
    float square = 0;
    for (int first = k / num_tokens * 32; first < kSegments; first += 32 * parts) {
      const int s = first + lane;
      float v[8], norm[8];
      if (s < kSegments) {
        load_eight(reinterpret_cast<const X*>(of_token) + 8 * s, v);
        if constexpr (Step::kNorm) load_eight(norm_weights + 8 * s, norm);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if constexpr (Step::kNorm) {
            square += v[i] * v[i];
            v[i] *= norm[i] * kActivationScale<F>;
          } else {
            v[i] *= kActivationScale<F>;
          }
        }
      }
      __syncwarp();  // the four lanes of a block of columns have read it
      if (s < kSegments) {
        uint4 high, low;
        split_parts(v, high, low);
        std::byte* to = of_token + s / 4 * kStride + 16 * (s % 4);
        *reinterpret_cast<uint4*>(to) = high;
        *reinterpret_cast<uint4*>(to + 64) = low;
      }
    }
    if constexpr (Step::kNorm) {
      square = warp_sum(square);
      if (lane == 0) squares_of_warps[k] = square;
    }
  }
  __syncthreads();

  if (first_tile + warp < num_tiles) {
    auto* to = cluster.map_shared_rank(&sums_of_blocks[0][0][0], warp) + rank * (kMaxTokens * 16);
    // Of each group of four tokens a lane has one.
    const std::byte* of_lane[kGroups];
#pragma unroll
    for (int c = 0; c < kGroups; ++c)
      of_lane[c] = inputs + min(4 * c + lane / 8, num_tokens - 1) * kTokenBytes +
                   lane / 4 % 2 * 64 + 16 * (lane % 4);
    float products[kGroups][2];
    held.multiply(
        [&](int c, int n) { return *reinterpret_cast<const uint4*>(of_lane[c] + n * kStride); },
        products, nullptr);
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
      const int j = 4 * c + lane % 4;
      if (j < num_tokens)
        to[16 * j + lane / 4] = products[c][0], to[16 * j + lane / 4 + 8] = products[c][1];
    }
  }
  if constexpr (Step::kNorm) {
    for (int i = threadIdx.x; i < num_tokens * kCluster; i += blockDim.x) {
      const int t = i / kCluster;
      float square = 0;
      for (int part = 0; part < parts; ++part) square += squares_of_warps[part * num_tokens + t];
      cluster.map_shared_rank(&squares_of_blocks[0][0], i % kCluster)[rank * kMaxTokens + t] =
          square;
    }
  }
  cluster.sync();
  if (my_tile >= num_tiles) return;

  float top = 0, bottom = 0, square = 0;
  if (has_outputs) {
#pragma unroll
    for (int r = 0; r < kCluster; ++r) {
      top += sums_of_blocks[r][token][row];
      bottom += sums_of_blocks[r][token][row + 8];
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
    step.more(made, my_tile, 1, num_tokens, more_early);
  } else {
    if (has_outputs) step.finish(top * factor, bottom * factor, early);
  }
}

template <int kUnits, int kCluster, int kGroups, typename Step>
void launch_split(const char* row, const Step& step, cudaStream_t stream) {
  using X = std::remove_cv_t<std::remove_pointer_t<decltype(step.x)>>;
  const int num_clusters = ceil_div(step.weight.num_tiles(), kCluster);
  launch_kernel(
      row, split_gemv<kUnits, kCluster, kGroups, Step>, step,
      {.grid = dim3(static_cast<unsigned>(num_clusters * kCluster)),
       .num_threads = 32 * kCluster,
       .shared_bytes = uint64_t{64} * kUnits * sizeof(X) * static_cast<uint64_t>(step.num_tokens),
       .cluster = kCluster,
       .programmatic = true,
       .leaves_l1 = true},
      stream);
}

/// Launches split_gemv if it knows the matrix, and there are tokens enough: with one the way
/// between the blocks takes longer than what is saved.
template <typename Step>
bool launch_split_gemv(const char* row, const Step& step, cudaStream_t stream) {
  if (step.weight.format != DType::kMXFP4 || !chain_leaves_l1(step.num_tokens)) return false;
  const auto launch = [&]<int kUnits, int kCluster>() {
    step.num_tokens <= 4 ? launch_split<kUnits, kCluster, 1>(row, step, stream)
                         : launch_split<kUnits, kCluster, 2>(row, step, stream);
    return true;
  };
  if (step.weight.cols == 64 * 9 * 5) return launch.template operator()<9, 5>();
  if (step.weight.cols == 64 * 8 * 8) return launch.template operator()<8, 8>();
  return false;
}

}  // namespace moxie::fragment
