// Limited by memory. Bytes at 8,192 tokens of gpt-oss-120b: the norm before qkv reads 94 MB and
// writes 24 MB; attention's outputs are 67 MB and 34 MB.
#include "core/cuda_launch.cuh"
#include "kernels/gemm/i8_rows_cuda.h"
#include "kernels/gemm/i8_scale.cuh"
#include "kernels/ptx.cuh"
#include "kernels/residual.cuh"

namespace moxie::gemm {
namespace {

// Tokens: a block takes a row, a thread every blockDim.x-th group of four columns.
constexpr int kRowWarps = 8;
constexpr int kGroupsOfThread = kMostI8Columns / 4 / (32 * kRowWarps);

struct LayRows {
  LayNormed step;
  I8Rows to;
};

/// With a norm a thread holds x times the weight; the norm's factor is then part of the scale.
template <bool kIsNormed>
__global__ void __launch_bounds__(32 * kRowWarps)
    lay_rows_i8(const __grid_constant__ LayRows params) {
  __shared__ uint32_t greatest_of[kRowWarps];
  __shared__ float squares[kRowWarps];
  const LayNormed& p = params.step;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto column = [](int i) { return 4 * static_cast<int>(threadIdx.x + i * 32 * kRowWarps); };
  [[maybe_unused]] float4 weight[kGroupsOfThread];
  if constexpr (kIsNormed) {
#pragma unroll
    for (int i = 0; i < kGroupsOfThread; ++i) {
      weight[i] = column(i) < p.width ? *reinterpret_cast<const float4*>(p.norm_weight + column(i))
                                      : float4{};
    }
  }
  wait_for_previous();
  launch_next();
  const int64_t row = blockIdx.x;
  float4 values[kGroupsOfThread];
  with_single(p.x_is_single, [&]<bool kIsSingle>() {
#pragma unroll
    for (int i = 0; i < kGroupsOfThread; ++i) {
      ResidualFour<kIsSingle> four = {};
      if (column(i) < p.width) four.load(p.x, row * p.width + column(i));
      values[i] = four.values();
    }
  });
  float square = 0;
  uint32_t greatest = 0;
#pragma unroll
  for (int i = 0; i < kGroupsOfThread; ++i) {
    float4& v = values[i];
    if constexpr (kIsNormed) {
      square += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
      v = {v.x * weight[i].x, v.y * weight[i].y, v.z * weight[i].z, v.w * weight[i].w};
    }
    for (const float value : {v.x, v.y, v.z, v.w})
      greatest = max(greatest, __float_as_uint(fabsf(value)));
  }
  square = warp_sum(square);
  greatest = __reduce_max_sync(~0u, greatest);
  if (lane == 0) squares[warp] = square, greatest_of[warp] = greatest;
  __syncthreads();
  greatest = __reduce_max_sync(~0u, greatest_of[lane % kRowWarps]);
  float factor = 1.0f;
  if constexpr (kIsNormed) {
    square = warp_sum(lane < kRowWarps ? squares[lane] : 0.0f);
    factor = 1.0f / sqrtf(square / static_cast<float>(p.width) + p.rms_eps);
  }
  const Scale scale = scale_for(__float_as_uint(__uint_as_float(greatest) * factor));
  if (threadIdx.x == 0) params.to.scales[row] = scale.scale;
  factor *= scale.factor;
#pragma unroll
  for (int i = 0; i < kGroupsOfThread; ++i) {
    if (column(i) >= params.to.stride) continue;
    const float4& v = values[i];
    *reinterpret_cast<uint32_t*>(params.to.data + row * params.to.stride + column(i)) =
        pack_four(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
  }
}

// Staged tokens: a block takes eight rows, which a unit has side by side; a warp takes every eighth
// unit. A lane reads two neighbouring chunks of a row: four columns of every eight in a block of
// 32. Two lanes then exchange halves, so that each has 16 columns.
constexpr int kStagedUnitsOfWarp = kMostI8Columns / kStagedColumns / kRowWarps;

struct LayStaged {
  StagedView from;
  I8Rows to;
};

__global__ void __launch_bounds__(32 * kRowWarps)
    lay_staged_rows_i8(const __grid_constant__ LayStaged p) {
  __shared__ uint32_t greatest_of[kRowWarps][8];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, r = lane / 4, j = lane % 4;
  const int row = static_cast<int>(8 * blockIdx.x + r), num_units = staged_units(p.from.width);
  wait_for_previous();
  launch_next();
  uint4 held[kStagedUnitsOfWarp][2];
#pragma unroll
  for (int i = 0; i < kStagedUnitsOfWarp; ++i) {
    const int u = static_cast<int>(warp) + i * kRowWarps;
#pragma unroll
    for (uint32_t c = 0; c < 2; ++c) {
      held[i][c] = {};
      if (u < num_units && row < p.to.rows) {
        held[i][c] = *reinterpret_cast<const uint4*>(
            p.from.data + (int64_t{u} * p.from.capacity + row) * kStagedRowBytes +
            16 * ((2 * j + c) ^ r));
      }
    }
  }
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < kStagedUnitsOfWarp; ++i) {
#pragma unroll
    for (const uint4& chunk : held[i]) {
      for (const uint32_t word : {chunk.x, chunk.y, chunk.z, chunk.w})
        most = __vmaxu2(most, word & 0x7FFF7FFFu);
    }
  }
  most = max(most >> 16, most & 0xFFFFu);
  most = max(most, __shfl_xor_sync(~0u, most, 1));
  most = max(most, __shfl_xor_sync(~0u, most, 2));
  if (j == 0) greatest_of[warp][r] = most;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kRowWarps; ++w) most = max(most, greatest_of[w][r]);
  const auto [factor, scale] = scale_for(most << 16);
  if (row < p.to.rows && warp == 0 && j == 0) p.to.scales[row] = scale;
  const auto four = [factor = factor](uint32_t low, uint32_t high) {
    return pack_four(
        __uint_as_float(low << 16) * factor, __uint_as_float(low & 0xFFFF0000u) * factor,
        __uint_as_float(high << 16) * factor, __uint_as_float(high & 0xFFFF0000u) * factor);
  };
#pragma unroll
  for (int i = 0; i < kStagedUnitsOfWarp; ++i) {
    const uint4 &a = held[i][0], &b = held[i][1];
    // Columns 8 k + 4 (j % 2) and the next three of block j / 2.
    const uint32_t mine[4] = {four(a.x, b.x), four(a.y, b.y), four(a.z, b.z), four(a.w, b.w)};
    const bool is_odd = j % 2 == 1;
    const uint32_t got0 = __shfl_xor_sync(~0u, is_odd ? mine[0] : mine[2], 1);
    const uint32_t got1 = __shfl_xor_sync(~0u, is_odd ? mine[1] : mine[3], 1);
    const int column = 64 * (static_cast<int>(warp) + i * kRowWarps) + 16 * static_cast<int>(j);
    if (row >= p.to.rows || column >= p.to.stride) continue;
    *reinterpret_cast<uint4*>(p.to.data + int64_t{row} * p.to.stride + column) =
        is_odd ? make_uint4(got0, mine[2], got1, mine[3])
               : make_uint4(mine[0], got0, mine[1], got1);
  }
}

void check_width(int32_t width) {
  CHECK(width % 4 == 0 && width <= kMostI8Columns, "width " + std::to_string(width));
}

}  // namespace

void lay_normed_i8(const LayNormed& step, const I8Rows& to, Stream* stream) {
  check_width(step.width);
  if (to.rows == 0) return;
  launch_kernel("lay_normed_i8",
                step.norm_weight != nullptr ? lay_rows_i8<true> : lay_rows_i8<false>,
                LayRows{step, to},
                {.grid = dim3(static_cast<unsigned>(to.rows)),
                 .num_threads = 32 * kRowWarps,
                 .programmatic = true},
                launch_stream(stream));
}

void lay_staged_i8(const StagedView& from, const I8Rows& to, Stream* stream) {
  check_width(from.width);
  if (to.rows == 0) return;
  launch_kernel("lay_staged_i8", lay_staged_rows_i8, LayStaged{from, to},
                {.grid = dim3(static_cast<unsigned>(ceil_div(to.rows, 8))),
                 .num_threads = 32 * kRowWarps,
                 .programmatic = true},
                launch_stream(stream));
}

}  // namespace moxie::gemm
