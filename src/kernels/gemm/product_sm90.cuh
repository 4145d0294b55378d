// Products of packed weights with some tokens on Hopper, in blocks of 64 rows: for matrices that
// would leave many SMs without work otherwise. The weights, read in the order of their fragments
// and converted to BF16 in registers, are wgmma's register operand. The activations, staged in BF16
// (staged.cuh), are in shared memory. The products are exact except for the activations' rounding.
// Those with more rows are streamed (streamed_product_sm90.cuh).
//
// A block takes one work item after another. One thread of the first warpgroup copies activations,
// 64 columns at a time, into a ring that the other warpgroups read. Each of their warps copies its
// own tiles of weights. While the products of one warpgroup run, another one makes its next
// operand. The weights' scales are exact powers of two and part of the operand. It is 2^-kShift of
// its value, so that it fits BF16's exponents; kProductScale restores the sums.
#pragma once

#include "core/cuda_launch.cuh"
#include "kernels/gemm/operand.cuh"
#include "kernels/gemm/staged.cuh"
#include "kernels/gemm/wgmma_sm90.cuh"

namespace moxie::gemm {

/// How a block is cut. For few columns there should be many warps. A small matrix needs blocks of
/// few rows, whose warpgroups then share K.
template <int kWarpgroups_, bool kSplitsK_, int kMostColumns_, DType kActivation_ = DType::kBF16,
          int kBlocks_ = 1>
struct CutOf {
  static constexpr int kBlocks = kBlocks_;          ///< on an SM at a time
  static constexpr int kWarpgroups = kWarpgroups_;  ///< warpgroups that multiply
  static constexpr int kRowTiles = 1;               ///< of 64 rows, of each warpgroup
  /// Warpgroups have the same rows, and each has units of its own.
  static constexpr bool kSplitsK = kSplitsK_;
  static constexpr int kMostColumns = kMostColumns_;
  static constexpr DType kActivation = kActivation_;  ///< BF16 or E4M3
  static constexpr int kFirstWarp = 4;                ///< that multiplies
  static constexpr int kRowBytes = staged_row_bytes(kActivation);

  static constexpr int kRows = 64 * (kSplitsK ? 1 : kWarpgroups);
  static constexpr int kThreads = 128 * (kWarpgroups + 1);

  // Registers of a thread. A block has the registers of its launch, those of kThreads under
  // __launch_bounds__. A warpgroup that asks for more than the others gave back waits forever.
  static constexpr int kLaunchRegisters = 65536 / (kThreads * kBlocks) / 8 * 8;
  static constexpr int kCopyRegisters = 24;
  static constexpr int kMathRegisters =
      (kThreads * kLaunchRegisters - 128 * kCopyRegisters) / (128 * kWarpgroups) / 8 * 8;
};
using FewRowsCut = CutOf<4, true, 64>;
using FewRowsWideCut = CutOf<2, true, 128>;
static_assert(FewRowsCut::kRows == FewRowsWideCut::kRows);
/// As few rows. One warpgroup adds up all of K in order, to the same bits as the cuts that do not
/// share K.
using FewRowsOrderedCut = CutOf<1, false, 64, DType::kBF16, 2>;
static_assert(FewRowsOrderedCut::kRows == FewRowsCut::kRows);

/// Stages of a warp's ring of weights: at most as many as leave room for the sums of warpgroups
/// that share K.
template <DType F, typename Cut>
inline constexpr int kWeightStages = F == DType::kMXFP4
                                         ? 8
                                         : (F == DType::kMXFP8 ? 6 : 4) - (Cut::kSplitsK ? 1 : 0);
template <DType F, typename Cut>
struct Shared {
  static constexpr int kColumnStages = Cut::kMostColumns > 64 ? 6 : 8;
  static_assert(!Cut::kSplitsK || kColumnStages % Cut::kWarpgroups == 0,
                "in an item the same warpgroup reads a stage");
  static constexpr int kStageBytes = fragment::kUnitBytes<F>;
  /// If warpgroups share K: the sums of all but the first.
  static constexpr int kSums = Cut::kSplitsK ? (Cut::kWarpgroups - 1) * 64 * Cut::kMostColumns : 0;
  alignas(1024) std::byte columns[kColumnStages][Cut::kRowBytes * Cut::kMostColumns];
  alignas(128) std::byte weights[4 * Cut::kWarpgroups][kWeightStages<F, Cut>][kStageBytes];
  alignas(16) float sums[kSums + 4];
  uint64_t full[kColumnStages], empty[kColumnStages];
};

#ifdef __CUDACC__

/// The ring of one warp's weights: a unit of its tile a stage. The warp itself copies them.
template <DType F, typename Cut>
struct WeightRing {
  static constexpr int kStages = kWeightStages<F, Cut>, kBytes = fragment::kUnitBytes<F>;
  static constexpr int kStep = Cut::kSplitsK ? Cut::kWarpgroups : 1;
  std::byte* base;
  uint32_t address;
  const std::byte* from;
  int num_units = 0, first_unit = 0, next_unit = 0, fill_stage = 0, stage = 0;

  __device__ __forceinline__ WeightRing(std::byte* at, int units, int first)
      : base(at), address(shared_address(at)), num_units(units), first_unit(first) {}

  __device__ __forceinline__ void fill() {
    if (next_unit < num_units) {
      copy_unit<F>(address + fill_stage * kBytes + 16 * (threadIdx.x % 32), from);
      from += kStep * kBytes;
    }
    commit_copies();
    next_unit += kStep;
    if (++fill_stage == kStages) fill_stage = 0;
  }
  /// Starts an item with this warp's tile; one past the end is the last one again.
  __device__ __forceinline__ void start(const PackedMatrix& weight, const Item& item, int tile) {
    from = tile_of<F>(weight, num_units, item.expert, tile) + first_unit * kBytes +
           16 * (threadIdx.x % 32);
    next_unit = first_unit;
    fill_stage = stage;
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) fill();
  }
  /// Waits for the next unit's stage and returns it; refills the stage before it.
  __device__ __forceinline__ const std::byte* next() {
    wait_for_copies<kStages - 2>();
    __syncwarp();
    fill();
    const std::byte* at = base + stage * kBytes;
    if (++stage == kStages) stage = 0;
    return at;
  }
};

/// A tile's products with a stage of columns.
template <DType F, typename Cut, int kColumns>
struct UnitProduct {
  uint32_t a[16];

  __device__ __forceinline__ void make(const std::byte* unit) {
    make_operand<F>(read_operand<F>(unit), a);
  }
  __device__ __forceinline__ void add(float* sums, const std::byte* columns) {
    const uint64_t b = tile_descriptor<Cut::kRowBytes>(columns);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma_bf16<kColumns>(sums, &a[4 * k], b + 32 / 16 * k);
    wgmma_commit();
  }
};

/// One item's sums of a warpgroup, kColumns wide. `unit_count`: units of all previous items, which
/// gives the ring's stage. `after` is called when all operands are read, and may start the next
/// item's copies.
template <DType F, typename Cut, int kColumns, typename After>
__device__ __forceinline__ void multiply_item(Shared<F, Cut>& shared, WeightRing<F, Cut>& ring,
                                              uint32_t unit_count, Sums<Cut, kColumns>& sums,
                                              After&& after) {
  constexpr int kStages = Shared<F, Cut>::kColumnStages;
  const bool is_first_lane = threadIdx.x % 32 == 0;
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) sums[0][i] = 0;
  UnitProduct<F, Cut, kColumns> product;
  int last_stage = -1;  // not released yet
  const auto give_back = [&] {
    if (last_stage >= 0 && is_first_lane) arrive_barrier(&shared.empty[last_stage]);
  };
#pragma unroll 1
  for (int u = ring.first_unit; u < ring.num_units; u += ring.kStep) {
    const std::byte* unit = ring.next();
    const uint32_t place = unit_count + u, stage = place % kStages;
    wgmma_wait<0>();
    give_back();
    product.make(unit);
    wait_barrier(&shared.full[stage], place / kStages % 2);
    product.add(sums[0], shared.columns[stage]);
    last_stage = stage;
  }
  after();
  wgmma_wait<0>();
  give_back();
}

/// If warpgroups share K: adds up their sums, in the registers of the first one.
template <DType F, typename Cut, int kColumns>
__device__ __forceinline__ void add_sums(Shared<F, Cut>& shared, int group,
                                         Sums<Cut, kColumns>& sums) {
  constexpr int kThreads = 128 * Cut::kWarpgroups;
  const int thread = threadIdx.x % 128;
  if (group > 0) {
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i)
      shared.sums[((group - 1) * (kColumns / 2) + i) * 128 + thread] = sums[0][i];
  }
  barrier_wait(1, kThreads);
  if (group == 0) {
#pragma unroll
    for (int other = 0; other < Cut::kWarpgroups - 1; ++other) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i)
        sums[0][i] += shared.sums[(other * (kColumns / 2) + i) * 128 + thread];
    }
  }
  barrier_wait(1, kThreads);
}

/// The kernel. kColumns: the most columns of an item. Task: `weight` (PackedMatrix), `staged`
/// (StagedView), and on the device
///   bool item(int i, Item& item)   item number i, false past the last
///   template <Cut, int kColumns> void finish(const Item&, int tile, sums, void* shared)
///     sums[m] of this warp's tile of 16 rows tile + 4 m, times 2^-kShift
///   void drain()                   at the end, by the threads that finish
///   kSharedBytes<Cut>              shared memory of its own behind Shared
template <DType F, typename Cut, typename Task, int kColumns>
__global__ void __launch_bounds__(Cut::kThreads, Cut::kBlocks)
    product_kernel(const __grid_constant__ Task task) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  static_assert(kColumns <= Cut::kMostColumns);
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<Shared<F, Cut>*>(shared_bytes);
  constexpr int kStages = Shared<F, Cut>::kColumnStages;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(&shared.full[i]);
      init_barrier(&shared.empty[i], 4 * (Cut::kSplitsK ? 1 : Cut::kWarpgroups));
    }
  }
  __syncthreads();
  const int num_units = (task.weight.cols + 63) / 64;
  if (threadIdx.x < 128) {
    give_registers<Cut::kCopyRegisters>();
    if (threadIdx.x != 0) return;
    // Only this thread waits for the previous kernel: the items were known when that kernel began,
    // weights never change, and all other work follows the arrival of the activations.
    wait_for_previous();
    launch_next();
    Item item;
    uint32_t place = 0;
    for (int i = blockIdx.x; task.item(i, item); i += gridDim.x) {
      constexpr int kRowBytes = Cut::kRowBytes;
      const uint32_t bytes = kRowBytes * ((item.num_columns + 7) / 8 * 8);
      const std::byte* from =
          task.staged.data + kRowBytes * static_cast<int64_t>(item.first_column);
      for (int u = 0; u < num_units; ++u, ++place) {
        const uint32_t stage = place % kStages;
        wait_barrier(&shared.empty[stage], place / kStages % 2 ^ 1);  // empty from the start
        expect_bytes(&shared.full[stage], bytes);
        copy_bulk(shared.columns[stage], from, bytes, &shared.full[stage]);
        from += kRowBytes * static_cast<int64_t>(task.staged.capacity);
      }
    }
    return;
  }
  take_registers<Cut::kMathRegisters>();
  const int warp = threadIdx.x / 32 - 4, group = warp / 4;
  const int my_tile = (Cut::kSplitsK ? 0 : 4 * group) + warp % 4;
  WeightRing<F, Cut> ring(shared.weights[warp][0], num_units, Cut::kSplitsK ? group : 0);
  Item item, next;
  uint32_t unit_count = 0;
  int i = blockIdx.x;
  bool is_more = task.item(i, item);
  if (is_more) ring.start(task.weight, item, item.first_tile + my_tile);
  while (is_more) {
    i += gridDim.x;
    is_more = task.item(i, next);
    Sums<Cut, kColumns> sums;
    multiply_item<F, Cut, kColumns>(shared, ring, unit_count, sums, [&] {
      if (is_more) ring.start(task.weight, next, next.first_tile + my_tile);
    });
    if constexpr (Cut::kSplitsK) add_sums<F, Cut, kColumns>(shared, group, sums);
    if (!Cut::kSplitsK || group == 0) {
      task.template finish<Cut, kColumns>(item, item.first_tile + my_tile, sums,
                                          shared_bytes + sizeof(shared));
    }
    unit_count += num_units;
    item = next;
  }
  task.drain();
#endif
}

#endif  // __CUDACC__

}  // namespace moxie::gemm
