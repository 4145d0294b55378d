// Products of dense layers with both operands in 8-bit integers, on Hopper, for thousands of
// tokens.
//
// Weights are laid out when a model is loaded (i8_rows_cuda.h), so that wgmma reads both operands
// from shared memory, in any format that they are packed in. At twice the rate of BF16, 128 columns
// of K take 1,024 clocks and 48 KiB, more than L2 gives: so the two blocks of a cluster have the
// same columns, and each copies half of them to both.
#pragma once

#include "core/cuda_launch.cuh"
#include "kernels/gemm/i8_rows_cuda.h"
#include "kernels/gemm/wgmma_i8_sm90.cuh"
#include "kernels/gemm/wide_block_sm90.cuh"
#include "kernels/tensor_map_sm90.h"

namespace moxie::gemm {

struct I8Cut : WideBlock {
  static constexpr int kBlocks = 2;  ///< of a cluster
  static constexpr int kMathRegisters = 184, kEndRegisters = 136;
  static_assert(2 * kMathRegisters + kEndRegisters <= 3 * kLaunchRegisters);
  static constexpr int kStages = 3;
  static constexpr int kBoxRows = 128, kBoxBytes = kBoxRows * kI8Unit;
  static constexpr int kStageBytes = kBoxBytes * (1 + kColumns / kBoxRows);
};

struct I8Shared {
  alignas(1024) std::byte stages[I8Cut::kStages][I8Cut::kStageBytes];  // weights, columns
  WideEnds ends;
  uint64_t full[I8Cut::kStages], empty[I8Cut::kStages];
};

/// End: as end_items().
template <typename End>
struct I8Product {
  CUtensorMap of_weights, of_columns;
  const float *row_scales, *column_scales;
  int32_t rows, num_columns, num_units, cluster_rows, num_items;
  End end;

  /// Neighbouring items have the same columns.
  __device__ __forceinline__ WidePlace place(int32_t item, int32_t rank) const {
    const int32_t tile = item / cluster_rows, column = tile * I8Cut::kColumns;
    return {0, ((item - tile * cluster_rows) * I8Cut::kBlocks + rank) * I8Cut::kRows, column,
            min(I8Cut::kColumns, num_columns - column)};
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
    wait_barrier(&shared.ends.empty, parity ^ 1);  // empty from the start
    leave_sums<SumsAs::kBf16, C::kColumns>(shared.ends, tile, sums, [&](int half, int32_t sum) {
      return __int2float_rn(sum) * (half == 0 ? scale0 : scale1);
    });
    arrive_barrier(&shared.ends.full);
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
    init_barrier(&shared.ends.full, C::kThreads - C::kFirstMath);
    init_barrier(&shared.ends.empty, 32 * C::kEndWarps);
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
      end_items<SumsAs::kBf16>(
          task.end, shared.ends, first, step, task.num_items, task.rows,
          [&](int32_t i) { return task.place(i, rank); },
          [&](int column) { return __ldg(task.column_scales + column); });
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
