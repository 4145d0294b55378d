// Grouped products with few columns on Hopper (up to 64 tokens an expert): limited by reading the
// weights from memory, and almost as much by the instructions that make operands of them.
//
// As product_sm90.cuh, but one warpgroup copies both operands, kBatchUnits units at a time. These
// units of a tile are contiguous for each of the block's 16 tiles. The sixteen warps that multiply
// only wait, make operands and start wgmma.
//
// Per unit of 64 columns and SM: 8.5 KiB of MXFP4, which memory delivers in 450 clocks; 16 warps of
// about 70 instructions, 280 issue slots of four schedulers.
#pragma once

#include <algorithm>

#include "kernels/gemm/product_sm90.cuh"

namespace moxie::gemm {

inline constexpr int kBatchUnits = 3;  ///< 45 units of 2,880 columns are 15 batches

template <DType F, int kMostColumns>
struct StreamedShared {
  static constexpr int kTileBytes = kBatchUnits * fragment::kUnitBytes<F>;
  static constexpr int kStageBytes = 16 * kTileBytes + kBatchUnits * 128 * kMostColumns;
  static constexpr int kStages = std::clamp(200 * 1024 / kStageBytes, 2, 6);
  alignas(1024) std::byte columns[kStages][kBatchUnits][128 * kMostColumns];
  alignas(128) std::byte weights[kStages][16][kTileBytes];
  uint64_t full[kStages], empty[kStages];
};

#ifdef __CUDACC__

/// A warpgroup's 64 rows of one item. `place`: batches of all previous items.
template <DType F, int kColumns, typename S>
__device__ __forceinline__ void multiply_streamed(S& shared, uint32_t place, int num_units,
                                                  int block_tile,
                                                  Sums<FewColumnsCut, kColumns>& sums) {
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) sums[0][i] = 0;
  // Two alternating operands if registers allow it: one is made while the products of the other
  // run.
  constexpr int kOperands = kColumns <= 32 ? 2 : 1;
  uint32_t a[kOperands][16];
  int last_stage = -1;
  // Each lane arrives for itself: race checkers accept no other lane's arrival for its reads.
  const auto give_back = [&] {
    if (last_stage < 0) return;
    fence_bulk_copies();
    arrive_barrier(&shared.empty[last_stage]);
  };
  const auto multiply = [&](const std::byte* unit, uint64_t columns, uint32_t(&operand)[16]) {
    make_operand<F>(read_operand<F>(unit), operand);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k)
      wgmma_bf16<kColumns>(sums[0], operand + 4 * k, columns + 32 / 16 * k);
    wgmma_commit();
  };
  constexpr int kUnit = fragment::kUnitBytes<F>;
  constexpr uint64_t kUnitOfColumns = sizeof(shared.columns[0][0]) / 16;
  // A whole batch, whose first operand is a[kFirst].
  const auto multiply_batch = [&]<int kFirst>() {
    const uint32_t stage = place % S::kStages;
    const std::byte* units = shared.weights[stage][block_tile];
    const uint64_t columns = tile_descriptor(shared.columns[stage][0]);
    wait_barrier(&shared.full[stage], place / S::kStages % 2);
#pragma unroll
    for (int i = 0; i < kBatchUnits; ++i) {
      wgmma_wait<kOperands - 1>();          // the previous products with this operand
      if (i == kOperands - 1) give_back();  // all of the previous batch is read
      multiply(units + i * kUnit, columns + i * kUnitOfColumns, a[(kFirst + i) % kOperands]);
    }
    last_stage = stage;
    ++place;
  };
  const int batches = num_units / kBatchUnits, rest = num_units % kBatchUnits;
#pragma unroll 1
  for (int pair = 0; pair < batches / 2; ++pair) {
    multiply_batch.template operator()<0>();
    multiply_batch.template operator()<kBatchUnits % kOperands>();
  }
  if (batches % 2 == 1) multiply_batch.template operator()<0>();
  wgmma_wait<0>();
  give_back();
  if (rest > 0) {
    const uint32_t stage = place % S::kStages;
    wait_barrier(&shared.full[stage], place / S::kStages % 2);
#pragma unroll 1
    for (int i = 0; i < rest; ++i) {
      multiply(shared.weights[stage][block_tile] + i * kUnit,
               tile_descriptor(shared.columns[stage][i]), a[0]);
      wgmma_wait<0>();
    }
    last_stage = stage;
    give_back();
  }
}

/// The kernel, with the Task of product_kernel, cut as FewColumnsCut, in one width.
template <DType F, int kColumns, typename Task>
__global__ void __launch_bounds__(FewColumnsCut::kThreads, 1)
    streamed_product_kernel(const __grid_constant__ Task task) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using S = StreamedShared<F, kColumns>;
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<S*>(shared_bytes);
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      init_barrier(&shared.full[i]);
      init_barrier(&shared.empty[i], 16 * 32);
    }
  }
  __syncthreads();
  constexpr int kUnit = fragment::kUnitBytes<F>;
  const int num_units = (task.weight.cols + 63) / 64;
  if (threadIdx.x < 128) {
    give_registers<FewColumnsCut::kCopyRegisters>();
    // Three warps start the copies of five or six tiles each (one warp could not start copies fast
    // enough), a fourth those of the activations. Only the fourth waits for the previous kernel:
    // the items were known when that kernel began, and weights never change.
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool has_columns = warp == 3;
    const int of_warp = has_columns ? kBatchUnits : warp == 0 ? 6 : 5;
    const int number = lane + (warp == 1 ? 6 : warp == 2 ? 11 : 0);
    if (lane >= of_warp) return;
    if (has_columns) {
      wait_for_previous();
      launch_next();
    }
    const int64_t unit_stride = has_columns ? 128ll * task.staged.capacity : kUnit;
    Item item;
    uint32_t place = 0;
    for (int i = blockIdx.x; task.item(i, item); i += gridDim.x) {
      const uint32_t column_bytes = 128 * ((item.num_columns + 7) / 8 * 8);
      const std::byte* from =
          has_columns ? task.staged.data + 128ll * item.first_column + number * unit_stride
                      : tile_of<F>(task.weight, num_units, item.expert, item.first_tile + number);
      for (int u = 0; u < num_units; u += kBatchUnits, ++place) {
        const uint32_t stage = place % S::kStages;
        const int count = min(kBatchUnits, num_units - u);
        wait_barrier(&shared.empty[stage], place / S::kStages % 2 ^ 1);
        uint64_t* full = &shared.full[stage];
        if (threadIdx.x == 0) expect_bytes(full, count * (16 * kUnit + column_bytes));
        if (!has_columns) {
          copy_bulk(shared.weights[stage][number], from, count * kUnit, full);
        } else if (number < count) {
          copy_bulk(shared.columns[stage][number], from, column_bytes, full);
        }
        from += kBatchUnits * unit_stride;
      }
    }
    return;
  }
  take_registers<FewColumnsCut::kMathRegisters>();
  const int block_tile = threadIdx.x / 32 - 4;
  Item item;
  uint32_t place = 0;
  for (int i = blockIdx.x; task.item(i, item); i += gridDim.x) {
    Sums<FewColumnsCut, kColumns> sums;
    multiply_streamed<F, kColumns>(shared, place, num_units, block_tile, sums);
    task.template finish<FewColumnsCut, kColumns>(item, item.first_tile + block_tile, sums,
                                                  shared_bytes + sizeof(S));
    place += (num_units + kBatchUnits - 1) / kBatchUnits;
  }
  task.drain();
#endif
}

#endif  // __CUDACC__

}  // namespace moxie::gemm
