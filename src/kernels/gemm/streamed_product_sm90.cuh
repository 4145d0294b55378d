// Grouped products with few columns on Hopper (2 to 64 tokens an expert): limited by the weights'
// way from memory, and next to it by the instructions that make operands of them.
//
// As product_sm90.cuh, but one warp copies both operands, kBatchUnits units at a time: of each of
// the block's 16 tiles a run of memory, so that the sixteen warps that multiply have nothing to do
// but wait, make operands and start wgmma.
//
// Per unit of 64 columns and SM: 8.5 KiB of MXFP4, for which memory takes 450 clocks; 16 warps of
// about 90 instructions, 360 issue slots of four schedulers.
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

/// A warpgroup's 64 rows of one item. `place`: batches of the items before.
template <DType F, int kColumns, typename S>
__device__ __forceinline__ void multiply_streamed(S& shared, uint32_t place, int num_units,
                                                  int block_tile,
                                                  Sums<FewColumnsCut, kColumns>& sums) {
  const bool is_first_lane = threadIdx.x % 32 == 0;
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) sums[0][i] = 0;
  // Two operands in turn, where registers allow.
  constexpr int kOperands = kColumns <= 32 ? 2 : 1;
  uint32_t a[kOperands][16];
  int last_stage = -1;
  const auto give_back = [&] {
    if (last_stage >= 0 && is_first_lane) arrive_barrier(&shared.empty[last_stage]);
  };
  const auto multiply = [&](const std::byte* unit, uint32_t columns, uint32_t* operand) {
    make_operand<F>(unit, *reinterpret_cast<uint32_t(*)[16]>(operand));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k)
      wgmma_bf16<kColumns>(sums[0], operand + 4 * k, tile_descriptor(columns + 32 * k));
    wgmma_commit();
  };
#pragma unroll 1
  for (int u = 0; u < num_units; u += kBatchUnits, ++place) {
    const uint32_t stage = place % S::kStages;
    const std::byte* units = shared.weights[stage][block_tile];
    const uint32_t columns = shared_address(shared.columns[stage][0]);
    wgmma_wait<0>();
    give_back();
    wait_barrier(&shared.full[stage], place / S::kStages % 2);
    last_stage = stage;
    if (u + kBatchUnits <= num_units) {
#pragma unroll
      for (int i = 0; i < kBatchUnits; ++i) {
        wgmma_wait<kOperands - 1>();
        multiply(units + i * fragment::kUnitBytes<F>, columns + i * sizeof(shared.columns[0][0]),
                 a[i % kOperands]);
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < num_units - u; ++i) {
        wgmma_wait<0>();
        multiply(units + i * fragment::kUnitBytes<F>, columns + i * sizeof(shared.columns[0][0]),
                 a[0]);
      }
    }
  }
  wgmma_wait<0>();
  give_back();
}

/// The kernel: Task as of product_kernel, cut as FewColumnsCut.
template <DType F, int kFew, int kMany, typename Task>
__global__ void __launch_bounds__(FewColumnsCut::kThreads, 1)
    streamed_product_kernel(const __grid_constant__ Task task) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using S = StreamedShared<F, kMany>;
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<S*>(shared_bytes);
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      init_barrier(&shared.full[i]);
      init_barrier(&shared.empty[i], 16);
    }
  }
  __syncthreads();
  wait_for_previous();
  launch_next();
  constexpr int kUnit = fragment::kUnitBytes<F>;
  const int num_units = (task.weight.cols + 63) / 64;
  if (threadIdx.x < 128) {
    give_registers<FewColumnsCut::kCopyRegisters>();
    if (threadIdx.x >= 32) return;
    // Lanes 0 to 15 copy a tile each, the kBatchUnits behind them a unit of activations each.
    const int lane = threadIdx.x, unit_of_lane = lane - 16;
    Item item;
    uint32_t place = 0;
    for (int i = blockIdx.x; task.item(i, item); i += gridDim.x) {
      const uint32_t column_bytes = 128 * ((item.num_columns + 7) / 8 * 8);
      const int64_t unit_stride = lane < 16 ? kUnit : 128ll * task.staged.capacity;
      const std::byte* from =
          lane < 16 ? tile_of<F>(task.weight, num_units, item.expert, item.first_tile + lane)
                    : task.staged.data + 128ll * item.first_column + unit_of_lane * unit_stride;
      for (int u = 0; u < num_units; u += kBatchUnits, ++place) {
        const uint32_t stage = place % S::kStages;
        const int count = min(kBatchUnits, num_units - u);
        wait_barrier(&shared.empty[stage], place / S::kStages % 2 ^ 1);
        uint64_t* full = &shared.full[stage];
        if (lane == 0) expect_bytes(full, count * (16 * kUnit + column_bytes));
        __syncwarp();
        if (lane < 16) {
          copy_bulk(shared.weights[stage][lane], from, count * kUnit, full);
        } else if (unit_of_lane < count) {
          copy_bulk(shared.columns[stage][unit_of_lane], from, column_bytes, full);
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
    const auto run = [&]<int kColumns>() {
      Sums<FewColumnsCut, kColumns> sums;
      multiply_streamed<F, kColumns>(shared, place, num_units, block_tile, sums);
      task.template finish<FewColumnsCut, kColumns>(item, item.first_tile + block_tile, sums,
                                                    shared_bytes + sizeof(S));
    };
    if (kFew < kMany && item.num_columns <= kFew) {
      run.template operator()<kFew>();
    } else {
      run.template operator()<kMany>();
    }
    place += (num_units + kBatchUnits - 1) / kBatchUnits;
  }
  task.drain();
#endif
}

#endif  // __CUDACC__

}  // namespace moxie::gemm
