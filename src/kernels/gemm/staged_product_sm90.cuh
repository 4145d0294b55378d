// Products of dense layers with very many tokens on Hopper. Weights that are read as registers pass
// shared memory once more than the instruction needs, which BF16 has no room for; where tokens are
// many, a kernel first stages them like activations (exactly; their bytes are read and written once
// a launch), and wgmma takes both operands from shared memory.
//
// A block makes 128 rows x 256 columns, each of two warpgroups 64 rows; the two blocks of a cluster
// have the same columns, of which each copies half for both. Per unit of 64 columns of K: 1,024
// clocks of wgmma, 32 KiB from L2, some 80 of 128 bytes of shared memory a clock.
#pragma once

#include "kernels/gemm/product_sm90.cuh"

namespace moxie::gemm {

using StagedCut = CutOf<2, 1, false, 256>;
inline constexpr int kStagedStages = 4;
/// Rows of staged weights are a multiple of this: of both blocks of a cluster.
inline constexpr int kStagedRowsAlign = 2 * StagedCut::kRows;

struct StagedShared {
  alignas(1024) std::byte weights[kStagedStages][128 * StagedCut::kRows];
  alignas(1024) std::byte columns[kStagedStages][128 * StagedCut::kMostColumns];
  uint64_t full[kStagedStages], empty[kStagedStages];
};

static_assert(sizeof(StagedShared) <= 227 * 1024, "a block has this much shared memory");

/// A task of product_kernel, whose staged rows are num_columns, with staged weights.
template <typename Task>
struct StagedProduct {
  Task task;
  StagedView weights;
  int32_t num_columns, num_units, num_row_pairs;
};

struct StageWeights {
  PackedMatrix weight;
  StagedView to;
  int32_t num_tiles, num_units;
};

#ifdef __CUDACC__

/// A warp a unit of 16 rows.
template <DType F>
__global__ void __launch_bounds__(256) stage_weights(const __grid_constant__ StageWeights p) {
  const int warp = static_cast<int>(blockIdx.x) * 8 + threadIdx.x / 32;
  const int tile = warp / p.num_units, unit = warp - tile * p.num_units;
  // The workspace may still be read by the kernel before.
  wait_for_previous();
  launch_next();
  if (tile >= p.num_tiles) return;
  const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  uint32_t a[16];
  make_operand<F>(p.weight.data + int64_t{warp} * fragment::kUnitBytes<F>, a);
#pragma unroll
  for (int block = 0; block < 2; ++block) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Lane q has pair q of four chunks and stores chunk q: a transposition among four lanes.
      const uint32_t* pairs = a + 8 * block + half;
      uint32_t chunk[4];
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const int other = q ^ step;
        const uint32_t sent = other == 0   ? pairs[0]
                              : other == 1 ? pairs[2]
                              : other == 2 ? pairs[4]
                                           : pairs[6];
        const uint32_t got = __shfl_xor_sync(~0u, sent, step);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (i == other) chunk[i] = got;
        }
      }
      const int row = 16 * tile + g + 8 * half;
      std::byte* to = p.to.data + (int64_t{unit} * p.to.capacity + row) * kStagedRowBytes;
      *reinterpret_cast<uint4*>(to + 16 * ((4 * block + q) ^ (row % 8))) =
          make_uint4(chunk[0], chunk[1], chunk[2], chunk[3]);
    }
  }
}

template <typename Task>
__global__ void __launch_bounds__(StagedCut::kThreads, 1)
    staged_product_kernel(const __grid_constant__ StagedProduct<Task> p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<StagedShared*>(shared_bytes);
  constexpr int kColumns = StagedCut::kMostColumns;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStagedStages; ++i) {
      init_barrier(&shared.full[i]);
      init_barrier(&shared.empty[i], 2 * 4 * StagedCut::kWarpgroups);
    }
  }
  const int rank = cluster_rank();
  cluster_arrive();
  cluster_wait();
  wait_for_previous();
  launch_next();
  const int num_clusters = gridDim.x / 2;
  const auto item_of = [&](int i, Item& item) {
    const int tile = i / p.num_row_pairs, first = tile * kColumns;
    item = {.expert = 0,
            .first_tile = (2 * (i - tile * p.num_row_pairs) + rank) * (StagedCut::kRows / 16),
            .first_column = first,
            .num_columns = min(kColumns, p.num_columns - first)};
    return first < p.num_columns;
  };
  if (threadIdx.x < 128) {
    give_registers<StagedCut::kCopyRegisters>();
    if (threadIdx.x == 0) {
      Item item;
      uint32_t place = 0;
      const StagedView& columns = p.task.staged;
      for (int i = blockIdx.x / 2; item_of(i, item); i += num_clusters) {
        // What lies behind the last column is not stored by anybody: it need not be copied.
        const int copied = (item.num_columns + 7) / 8 * 8, half = kColumns / 2;
        const int mine = min(max(copied - half * rank, 0), half);
        const std::byte* weights = p.weights.data + 128ll * 16 * item.first_tile;
        const std::byte* from = columns.data + 128ll * (item.first_column + half * rank);
        for (int u = 0; u < p.num_units; ++u, ++place) {
          const uint32_t stage = place % kStagedStages;
          wait_barrier(&shared.empty[stage], place / kStagedStages % 2 ^ 1);
          uint64_t* full = &shared.full[stage];
          expect_bytes(full, sizeof(shared.weights[0]) + 128 * copied);
          copy_bulk(shared.weights[stage], weights, sizeof(shared.weights[0]), full);
          if (mine > 0) {
            copy_bulk_to_all(shared.columns[stage] + 128 * half * rank, from, 128 * mine, full, 3);
          }
          weights += 128ll * p.weights.capacity;
          from += 128ll * columns.capacity;
        }
      }
    }
  } else {
    take_registers<StagedCut::kMathRegisters>();
    const int warp = threadIdx.x / 32 - 4, group = warp / 4;
    const bool is_first_lane = threadIdx.x % 32 == 0;
    Item item;
    uint32_t place = 0;
    for (int i = blockIdx.x / 2; item_of(i, item); i += num_clusters) {
      Sums<StagedCut, kColumns> sums;
#pragma unroll
      for (int j = 0; j < kColumns / 2; ++j) sums[0][j] = 0;
      const auto give_back = [&](uint32_t stage) {
        if (is_first_lane) {
          arrive_barrier_of(&shared.empty[stage], 0);
          arrive_barrier_of(&shared.empty[stage], 1);
        }
      };
#pragma unroll 1
      for (int u = 0; u < p.num_units; ++u, ++place) {
        const uint32_t stage = place % kStagedStages;
        wait_barrier(&shared.full[stage], place / kStagedStages % 2);
        const uint32_t rows = shared_address(shared.weights[stage]) + 128 * 64 * group;
        const uint32_t columns = shared_address(shared.columns[stage]);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k)
          wgmma_bf16_shared(sums[0], tile_descriptor(rows + 32 * k),
                            tile_descriptor(columns + 32 * k));
        wgmma_commit();
        wgmma_wait<1>();
        if (u > 0) give_back((place - 1) % kStagedStages);
      }
      wgmma_wait<0>();
      give_back((place - 1) % kStagedStages);
      p.task.template finish<StagedCut, kColumns>(item, item.first_tile + warp, sums, nullptr);
    }
    p.task.drain();
  }
  // No block ends while the other may still write to it.
  __syncwarp();
  cluster_arrive();
  cluster_wait();
#endif
}

#endif  // __CUDACC__

}  // namespace moxie::gemm
