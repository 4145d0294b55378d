// Products of dense layers with both operands in 8-bit integers, on Hopper, for thousands of
// tokens.
//
// Weights are laid out when a model is loaded (i8_rows_cuda.h), so that wgmma reads both operands
// from shared memory, in any format that they are packed in. A block has 128 rows of the weights
// and 256 columns (tokens). At twice the rate of BF16, 128 columns of K take 1,024 clocks and 48
// KiB, more than L2 gives: so the two blocks of a cluster have the same columns, and each copies
// half of them to both. One warp copies, two warpgroups multiply, and three warps end items while
// the next ones are multiplied. They read an item's sums from shared memory, in BF16, a column at a
// time: lanes side by side read and write what lies side by side in memory.
#pragma once

#include "core/cuda_launch.cuh"
#include "kernels/gemm/dense.cuh"
#include "kernels/gemm/i8_rows_cuda.h"
#include "kernels/gemm/wgmma_i8_sm90.cuh"
#include "kernels/tensor_map_sm90.h"

namespace moxie::gemm {

/// How a block is cut, for the ends.
struct I8Cut {
  static constexpr int kBlocks = 2;      ///< of a cluster
  static constexpr int kWarpgroups = 2;  ///< that multiply 64 rows each
  static constexpr int kRows = 128, kColumns = 256;
  // A warp that copies and three that end items; then two warpgroups that multiply. With a fourth
  // warpgroup ptxas has no registers for 256 columns.
  static constexpr int kThreads = 384, kFirstEnd = 32, kFirstMath = 128, kEndWarps = 3;
  static constexpr int kLaunchRegisters = 168, kMathRegisters = 184, kEndRegisters = 136;
  static_assert(2 * kMathRegisters + kEndRegisters <= 3 * kLaunchRegisters);
  static constexpr int kStages = 3;
  static constexpr int kBoxRows = 128, kBoxBytes = kBoxRows * kI8Unit;
  static constexpr int kStageBytes = kBoxBytes * (1 + kColumns / kBoxRows);
  static constexpr int kSumsBytes = kColumns * kRows * 2;
};

/// What ends need to know of a block's columns.
struct I8Columns {
  float scale[I8Cut::kColumns];
  int32_t position[I8Cut::kColumns];  // of qkv
  int64_t place[I8Cut::kColumns];     // in the cache, of a head; of qkv
};

struct I8Shared {
  alignas(1024) std::byte stages[I8Cut::kStages][I8Cut::kStageBytes];  // weights, columns
  alignas(1024) std::byte sums[I8Cut::kSumsBytes];
  I8Columns columns;
  uint64_t full[I8Cut::kStages], empty[I8Cut::kStages], sums_full, sums_empty;
};

/// The sums of a block. A column's rows are 256 bytes, chunks of eight rows exclusive-or'd with the
/// column modulo 8.
struct I8Sums {
  const std::byte* sums;
  const float* scales;  // of the columns

  /// Rows `row`, a multiple of 4, to row + 3.
  __device__ __forceinline__ float4 four(int column, int row) const {
    const uint2 v = *reinterpret_cast<const uint2*>(sums + 256 * column +
                                                    16 * (row / 8 ^ column % 8) + 2 * (row % 8));
    const float scale = scales[column];
    return make_float4(__uint_as_float(v.x << 16) * scale, __uint_as_float(v.x & ~0xFFFFu) * scale,
                       __uint_as_float(v.y << 16) * scale, __uint_as_float(v.y & ~0xFFFFu) * scale);
  }
};
/// What the ends of a block's item take. Rows and columns are the matrix's.
struct I8Ended {
  I8Sums sums;
  const I8Columns& columns;
  int first_row, first_column, num_columns;
  int warp;  // of I8Cut::kEndWarps that share the columns
};

/// End: void look_up(I8Columns&, int column, int token, int first_row) for a column of the block,
/// then store(const I8Ended&).
template <typename End>
struct I8Product {
  CUtensorMap of_weights, of_columns;
  const float *row_scales, *column_scales;
  int32_t rows, num_columns, num_units, cluster_rows, num_items;
  End end;

  struct Place {
    int32_t row, column;
  };
  /// Neighbouring items have the same columns.
  __device__ __forceinline__ Place place(int32_t item, int32_t rank) const {
    const int32_t tile = item / cluster_rows;
    return {((item - tile * cluster_rows) * I8Cut::kBlocks + rank) * I8Cut::kRows,
            tile * I8Cut::kColumns};
  }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <typename End>
__device__ __forceinline__ void copy_i8(const I8Product<End>& task, I8Shared& shared, int32_t first,
                                        int32_t step, int32_t rank) {
  using C = I8Cut;
  uint32_t place = 0;
  for (int32_t i = first; i < task.num_items; i += step) {
    const auto at = task.place(i, rank);
    for (int32_t u = 0; u < task.num_units; ++u, ++place) {
      const uint32_t stage = place % C::kStages;
      std::byte* to = shared.stages[stage];
      uint64_t* full = &shared.full[stage];
      wait_barrier(&shared.empty[stage], place / C::kStages % 2 ^ 1);  // empty from the start
      expect_bytes(full, C::kStageBytes);
      const int32_t k = u * kI8Unit;
      copy_box(to, &task.of_weights, k, at.row, full);
      copy_box_to(3, to + (1 + rank) * C::kBoxBytes, &task.of_columns, k,
                  at.column + rank * C::kBoxRows, full);
    }
  }
}

/// A warpgroup's 64 rows of all items.
template <typename End>
__device__ __forceinline__ void multiply_i8(const I8Product<End>& task, I8Shared& shared, int group,
                                            int32_t first, int32_t step, int32_t rank) {
  using C = I8Cut;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, tile = 4 * group + warp;
  // Where this lane's row of an 8 x 8 matrix goes: the four matrices are two blocks of eight
  // columns times both halves of the tile.
  const uint32_t in_block = lane % 8, half_of_lane = lane / 8 % 2, block_of_lane = lane / 16;
  const uint32_t lane_at = shared_address(shared.sums) + (8 * block_of_lane + in_block) * 256 +
                           16 * ((2 * tile + half_of_lane) ^ in_block);
  const auto give_back = [&](uint32_t stage) {
    if (lane < C::kBlocks) arrive_barrier(&shared.empty[stage], lane);
  };
  uint32_t place = 0, parity = 0;
  for (int32_t i = first; i < task.num_items; i += step, parity ^= 1) {
    const int32_t row = task.place(i, rank).row + static_cast<int32_t>(16 * tile + lane / 4);
    const float scale0 = row < task.rows ? __ldg(task.row_scales + row) : 0.0f;
    const float scale1 = row + 8 < task.rows ? __ldg(task.row_scales + row + 8) : 0.0f;
    int32_t sums[C::kColumns / 2];
    for (int32_t u = 0; u < task.num_units; ++u, ++place) {
      const uint32_t stage = place % C::kStages;
      wait_barrier(&shared.full[stage], place / C::kStages % 2);
      const std::byte* from = shared.stages[stage];
      const uint64_t a = tile_descriptor(from + group * 64 * kI8Unit);
      const uint64_t b = tile_descriptor(from + C::kBoxBytes);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kI8Unit / 32; ++k) wgmma_i8_256(sums, a + 2 * k, b + 2 * k, u + k > 0);
      wgmma_commit();
      if (u > 0) {
        wgmma_wait<1>();
        give_back((place - 1) % C::kStages);
      }
    }
    wgmma_wait<0>();
    give_back((place - 1) % C::kStages);
    wait_barrier(&shared.sums_empty, parity ^ 1);  // empty from the start
#pragma unroll
    for (int block = 0; block < C::kColumns / 8; block += 2) {
      uint32_t words[4];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int32_t* d = &sums[4 * (block + j)];
        const auto value = [&](int i) { return __int2float_rn(d[i]); };
        words[2 * j] = pack_bf16(value(0) * scale0, value(1) * scale0);
        words[2 * j + 1] = pack_bf16(value(2) * scale1, value(3) * scale1);
      }
      store_transposed(lane_at + 8 * block * 256, words);
    }
    arrive_barrier(&shared.sums_full);
  }
}

/// Ends items.
template <typename End>
__device__ __forceinline__ void end_i8(const I8Product<End>& task, I8Shared& shared, int32_t first,
                                       int32_t step, int32_t rank) {
  using C = I8Cut;
  constexpr int kEndBarrier = 1, kEndThreads = 32 * C::kEndWarps;
  const int thread = static_cast<int>(threadIdx.x) - C::kFirstEnd;
  uint32_t parity = 0;
  for (int32_t i = first; i < task.num_items; i += step, parity ^= 1) {
    const auto at = task.place(i, rank);
    const int columns = min(C::kColumns, task.num_columns - at.column);
    barrier_wait(kEndBarrier, kEndThreads);  // all have ended the previous item
    for (int column = thread; column < columns; column += kEndThreads) {
      shared.columns.scale[column] = __ldg(task.column_scales + at.column + column);
      task.end.look_up(shared.columns, column, at.column + column, at.row);
    }
    barrier_wait(kEndBarrier, kEndThreads);
    wait_barrier(&shared.sums_full, parity);
    if (at.row < task.rows) {
      task.end.store({.sums = {shared.sums, shared.columns.scale},
                      .columns = shared.columns,
                      .first_row = at.row,
                      .first_column = at.column,
                      .num_columns = columns,
                      .warp = thread / 32});
    }
    arrive_barrier(&shared.sums_empty);
  }
}

#endif

template <typename End>
__global__ void __launch_bounds__(I8Cut::kThreads, 1)
    dense_i8_kernel(const __grid_constant__ I8Product<End> task) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using C = I8Cut;
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<I8Shared*>(shared_bytes);
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kStages; ++i) {
      init_barrier(&shared.full[i]);
      init_barrier(&shared.empty[i], C::kBlocks * 4 * C::kWarpgroups);
    }
    init_barrier(&shared.sums_full, C::kThreads - C::kFirstMath);
    init_barrier(&shared.sums_empty, 32 * C::kEndWarps);
  }
  __syncthreads();
  cluster_arrive();
  cluster_wait();
  wait_for_previous();
  launch_next();
  const auto rank = static_cast<int32_t>(cluster_rank());
  const auto first = static_cast<int32_t>(blockIdx.x / C::kBlocks);
  const auto step = static_cast<int32_t>(gridDim.x / C::kBlocks);
  if (threadIdx.x < C::kFirstMath) {
    give_registers<C::kEndRegisters>();
    if (threadIdx.x >= C::kFirstEnd) {
      end_i8(task, shared, first, step, rank);
    } else if (threadIdx.x == 0) {
      copy_i8(task, shared, first, step, rank);
    }
    __syncwarp();
  } else {
    take_registers<C::kMathRegisters>();
    multiply_i8(task, shared, static_cast<int>(threadIdx.x / 128) - 1, first, step, rank);
  }
  // The other block may copy into this one, or report to it, until it has ended, too.
  cluster_arrive();
  cluster_wait();
#endif
}

/// Why a matrix cannot be multiplied here; null if it can.
inline const char* refuses_i8(DType activation, const PackedMatrix& weight) {
  if (activation != DType::kMXFP8) return "activations in 8 bits: --activation mxfp8 asks for them";
  return refuses_product(weight, kMostI8Columns);
}

/// The columns of a product, in the workspace.
struct I8ColumnsOf {
  Scratch scratch;
  I8Rows rows;
  uint64_t bytes;

  I8ColumnsOf(const PackedMatrix& weight, int32_t num_columns, std::byte* base)
      : scratch(base), rows(num_columns, weight.cols, scratch), bytes(scratch.bytes()) {}
};

template <typename End>
void multiply_dense_i8(const char* row, const PackedMatrix& weight, const I8Rows& columns,
                       const End& end, const Launch& at) {
  using C = I8Cut;
  CHECK(weight.integers != nullptr, "weights were laid out when the model was loaded");
  const I8Rows weights(weight);
  const auto map_of = [&](const I8Rows& of) {
    return map_of_boxes(row, of.data, CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, of.stride, of.rows,
                        C::kBoxRows);
  };
  const int32_t cluster_rows = ceil_div(weights.rows, C::kBlocks * C::kRows);
  const I8Product<End> task{.of_weights = map_of(weights),
                            .of_columns = map_of(columns),
                            .row_scales = weights.scales,
                            .column_scales = columns.scales,
                            .rows = weights.rows,
                            .num_columns = columns.rows,
                            .num_units = weights.stride / kI8Unit,
                            .cluster_rows = cluster_rows,
                            .num_items = cluster_rows * ceil_div(columns.rows, C::kColumns),
                            .end = end};
  const int32_t clusters = std::min(task.num_items, fragment::num_sms() / C::kBlocks);
  launch_kernel(row, dense_i8_kernel<End>, task,
                {.grid = dim3(static_cast<unsigned>(C::kBlocks * clusters)),
                 .num_threads = C::kThreads,
                 .shared_bytes = sizeof(I8Shared),
                 .cluster = C::kBlocks,
                 .programmatic = true},
                launch_stream(at.stream));
}

}  // namespace moxie::gemm
