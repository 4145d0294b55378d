// Products of dense layers with some 32 to 512 tokens on Hopper. SMs take 64 bytes a clock from L2,
// and shared memory gives and takes 128: with 256 tokens, blocks of 64 rows x 128 columns need 384
// clocks of it for a unit of 64 columns of K that wgmma multiplies in 256.
//
// Here a block has 128 or 192 rows x up to 256 columns. So that there are enough blocks, those of a
// cluster may share K: block k multiplies the k-th run of the units. Then each block gets the sums
// of some of the columns from the others, adds them up in the blocks' order, and ends them.
#pragma once

#include <array>

#include "kernels/gemm/dense.cuh"
#include "kernels/gemm/product_sm90.cuh"

namespace moxie::gemm {

/// How a block is cut: kWarpgroups tiles of 64 rows, kColumns columns; kParts blocks share K.
template <int kWarpgroups_, int kColumns, int kParts_>
struct ClusterCut : CutOf<kWarpgroups_, false, kColumns> {
  static constexpr int kTiles = 4 * kWarpgroups_, kParts = kParts_;
  static constexpr bool kHasRoomAtEnd = kParts_ > 1 || kWarpgroups_ < 3;
};

/// The cuts that there are.
struct ClusterCutSizes {
  int32_t warpgroups, columns, parts;
};
inline constexpr std::array<ClusterCutSizes, 10> kClusterCuts = {{{2, 64, 1},
                                                                  {2, 96, 1},
                                                                  {2, 128, 1},
                                                                  {3, 128, 1},
                                                                  {2, 96, 2},
                                                                  {2, 128, 2},
                                                                  {3, 128, 2},
                                                                  {2, 64, 4},
                                                                  {2, 96, 4},
                                                                  {2, 128, 4}}};
inline constexpr int32_t kLeastClusterColumns = 33, kMostClusterColumns = 512;

/// What a block's unit of 64 columns of K takes: clocks of shared memory, to which it is written
/// and from which wgmma reads the activations once for each 64 rows. In microseconds of an H200,
/// which takes 1.17 times as long.
constexpr double unit_us(int32_t rows, int32_t columns, int32_t width) {
  return 1.17 / 1980 * (2 * rows + columns + width * rows / 64);
}
/// The time of a launch, as fitted on an H200; only the order of such times counts.
inline double cluster_us(const ClusterCutSizes& cut, const PackedMatrix& weight,
                         int32_t num_columns, int32_t num_sms) {
  const int32_t rows = 64 * cut.warpgroups, tiles = ceil_div(num_columns, cut.columns);
  const int32_t columns = round_up(ceil_div(num_columns, tiles), kStagedRows);
  // A GPC has no whole number of clusters of four: an H200 runs 30 of them at a time.
  const int32_t at_a_time = cut.parts > 2 ? num_sms * 10 / 11 : num_sms;
  const int32_t rounds = ceil_div(ceil_div(weight.rows, rows) * tiles * cut.parts, at_a_time);
  // Blocks exchange 14 bytes a clock.
  const double exchange =
      cut.parts == 1 ? 0 : 1.5 + 4.0 / (14 * 1980) * rows * columns * (cut.parts - 1) / cut.parts;
  const double units = ceil_div(weight.num_units(), cut.parts);
  return 1.2 + rounds * (3.0 + units * unit_us(rows, columns, cut.columns) + exchange +
                         0.015 * columns / cut.parts);
}

template <DType F, typename Cut>
struct ClusterShared {
  static constexpr int kColumns = Cut::kMostColumns, kUnit = fragment::kUnitBytes<F>;
  static constexpr int kColumnBytes = kStagedRowBytes * kColumns;
  static constexpr int kEndBytes = SumsTile::kBytes * Cut::kTiles;
  static constexpr int kStages =
      std::min(8, (227 * 1024 - 256 - kEndBytes) / (kColumnBytes + Cut::kTiles * kUnit));
  static_assert(kStages >= 3);
  alignas(1024) std::byte columns[kStages][kColumnBytes];
  alignas(128) std::byte weights[Cut::kTiles][kStages][kUnit];
  alignas(128) std::byte ends[kEndBytes];
  uint64_t full[kStages], empty[kStages];
  /// Of all parts: [part][warp][group of 8 columns][lane] of four floats.
  static constexpr int kMostGroups = (kColumns / 8 + Cut::kParts - 1) / Cut::kParts;
  static constexpr int kWarpBytes = kMostGroups * 512, kPartBytes = Cut::kTiles * kWarpBytes;
  static_assert(Cut::kParts * kPartBytes <= sizeof(columns) + sizeof(weights));
};

/// The work of a launch: blocks of [column tiles][row blocks][parts of K].
template <typename End>
struct ClusterProduct {
  int32_t num_columns, tile_columns, row_blocks;
  PackedMatrix weight;
  StagedView staged;
  float scale;
  End end;
};

#ifdef __CUDACC__

__device__ __forceinline__ uint32_t address_in(uint32_t address, uint32_t rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
__device__ __forceinline__ void store_in_cluster(uint32_t address, const float* v) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v[0]),
               "f"(v[1]), "f"(v[2]), "f"(v[3])
               : "memory");
}
/// All threads of the cluster that have not ended.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  cluster_wait();
}

/// End as DenseProduct's.
template <DType F, typename Cut, typename End>
__global__ void __launch_bounds__(Cut::kThreads, 1)
    cluster_product_kernel(const __grid_constant__ ClusterProduct<End> task) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using S = ClusterShared<F, Cut>;
  constexpr int kStages = S::kStages, kColumns = Cut::kMostColumns, kUnit = S::kUnit;
  constexpr int kTiles = Cut::kTiles, kParts = Cut::kParts;
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<S*>(shared_bytes);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(&shared.full[i]);
      init_barrier(&shared.empty[i], kTiles);
    }
  }
  __syncthreads();
  const int num_units = (task.weight.cols + 63) / 64;
  const int part = kParts > 1 ? blockIdx.x % kParts : 0, item = blockIdx.x / kParts;
  const int column_tile = item / task.row_blocks;
  const int first_tile = (item - column_tile * task.row_blocks) * kTiles;
  const int first_column = column_tile * task.tile_columns;
  const int num_columns = min(task.tile_columns, task.num_columns - first_column);
  const int first_unit = part * num_units / kParts;
  const int my_units = (part + 1) * num_units / kParts - first_unit;
  if (threadIdx.x < 128) {
    give_registers<Cut::kCopyRegisters>();
    if (threadIdx.x != 0) return;
    // Only this thread waits for the previous kernel, as in product_kernel.
    wait_for_previous();
    launch_next();
    const int64_t stride = int64_t{kStagedRowBytes} * task.staged.capacity;
    const int bytes = kStagedRowBytes * ((num_columns + 7) / 8 * 8);
    const std::byte* from =
        task.staged.data + int64_t{kStagedRowBytes} * first_column + first_unit * stride;
#pragma unroll 1
    for (int u = 0; u < my_units; ++u, from += stride) {
      const uint32_t stage = u % kStages;
      wait_barrier(&shared.empty[stage], u / kStages % 2 ^ 1);  // empty from the start
      expect_bytes(&shared.full[stage], bytes);
      copy_bulk(shared.columns[stage], from, bytes, &shared.full[stage]);
    }
    return;
  }
  take_registers<Cut::kMathRegisters>();
  const int warp = threadIdx.x / 32 - 4, lane = threadIdx.x % 32, tile = first_tile + warp;
  // The first weights do not wait for the kernel that makes the activations.
  const std::byte* weights =
      tile_of<F>(task.weight, num_units, 0, tile) + first_unit * kUnit + 16 * lane;
  const uint32_t ring = shared_address(shared.weights[warp][0]) + 16 * lane;
  const auto fill = [&](int u) {
    if (u < my_units) {
      copy_unit<F>(ring + static_cast<uint32_t>(u) % kStages * kUnit, weights);
      weights += kUnit;
    }
    commit_copies();
  };
#pragma unroll 1
  for (int u = 0; u < kStages - 1; ++u) fill(u);
  Sums<Cut, kColumns> sums;
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) sums[0][i] = 0;
  const auto give_back = [&](int u) {
    if (lane == 0) arrive_barrier(&shared.empty[static_cast<uint32_t>(u) % kStages]);
  };
  // One operand is made while the products of the other run.
  constexpr int kOperands = 2;
  uint32_t a[kOperands][16];
  const auto multiply = [&](int u, uint32_t(&operand)[16]) {
    const uint32_t stage = static_cast<uint32_t>(u) % kStages;
    wait_for_copies<kStages - 2>();
    __syncwarp();  // all lanes' copies are there, and all have read the unit before
    fill(u + kStages - 1);
    wgmma_wait<kOperands - 1>();  // the previous product with this operand
    if (u >= kOperands) give_back(u - kOperands);
    make_operand<F>(read_operand<F>(shared.weights[warp][stage]), operand);
    wait_barrier(&shared.full[stage], u / kStages % 2);
    const uint64_t columns = tile_descriptor(shared.columns[stage]);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k)
      wgmma_bf16<kColumns>(sums[0], operand + 4 * k, columns + 32 / 16 * k);
    wgmma_commit();
  };
  int u = 0;
#pragma unroll 1
  for (; u + 1 < my_units; u += 2) {
    multiply(u, a[0]);
    multiply(u + 1, a[1]);
  }
  if (u < my_units) multiply(u, a[0]);
  wgmma_wait<0>();
  if constexpr (kParts == 1) {
    const DenseProduct<End> product{
        .items = {}, .weight = task.weight, .staged = {}, .scale = task.scale, .end = task.end};
    product.template finish<Cut, kColumns>({0, first_tile, first_column, num_columns}, tile, sums,
                                           shared.ends);
    return;
  } else {
    // The rings' memory is the sums' now.
    const int groups = (num_columns + 7) / 8;
    const auto first_group = [&](int of_part) { return of_part * groups / kParts; };
    const uint32_t mine_at =
        shared_address(shared_bytes) + part * S::kPartBytes + warp * S::kWarpBytes + 16 * lane;
    // Race checkers do not take the cluster's barrier for one of the block.
    barrier_wait(1, 32 * kTiles);
    cluster_sync();
    int owner = -1, next = 0;
    uint32_t at = 0;
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
      if (i < groups) {
        while (i == next) {
          ++owner;
          next = first_group(owner + 1);
          at = owner == part ? mine_at : address_in(mine_at, owner);
        }
        const float* d = &sums[0][4 * i];
        if (owner == part) {
          asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(d[0]), "f"(d[1]),
                       "f"(d[2]), "f"(d[3])
                       : "memory");
        } else {
          store_in_cluster(at, d);
        }
        at += 512;
      }
    }
    cluster_sync();
    const int first = first_group(part), last = first_group(part + 1);
    if (16 * tile >= task.weight.rows) return;
    auto* const mine = reinterpret_cast<float*>(shared.ends + warp * SumsTile::kBytes);
    const int g = lane / 4, q = lane % 4;
#pragma unroll 1
    for (int of_end = first; of_end < last; of_end += 8) {
      const int count = min(8, last - of_end);
#pragma unroll 2
      for (int i = 0; i < count; ++i) {
        float4 parts[kParts];
#pragma unroll
        for (int from = 0; from < kParts; ++from) {
          parts[from] = *reinterpret_cast<const float4*>(shared_bytes + from * S::kPartBytes +
                                                         warp * S::kWarpBytes +
                                                         (of_end - first + i) * 512 + 16 * lane);
        }
        float4 sum = parts[0];
#pragma unroll
        for (int from = 1; from < kParts; ++from) {
          sum.x += parts[from].x, sum.y += parts[from].y;
          sum.z += parts[from].z, sum.w += parts[from].w;
        }
        *reinterpret_cast<float2*>(mine + SumsTile::place(4 * i + q, g)) =
            make_float2(sum.x * task.scale, sum.y * task.scale);
        *reinterpret_cast<float2*>(mine + SumsTile::place(4 * i + q, g + 8)) =
            make_float2(sum.z * task.scale, sum.w * task.scale);
      }
      __syncwarp();
      task.end.template store<Cut>(SumsTile{mine}, tile, task.weight.rows,
                                   first_column + 8 * of_end,
                                   min(8 * count, num_columns - 8 * of_end));
      __syncwarp();
    }
  }
#endif
}

#endif  // __CUDACC__

}  // namespace moxie::gemm
