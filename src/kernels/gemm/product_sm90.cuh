// Products of packed weights with many tokens on Hopper. The weights, read in the order of their
// fragments and converted to BF16 in registers, are wgmma's register operand. The activations,
// staged in BF16 (staged.cuh), are in shared memory. The products are exact except for the
// activations' rounding. Those of 8-bit operands are streamed (streamed_product_sm90.cuh).
//
// A block takes one work item after another (rows of the weights x up to 144 staged rows). One
// thread of the first warpgroup copies activations, 64 columns at a time, into a ring that the
// other warpgroups read. Each of their warps copies its own tiles of weights. While the products of
// one tile run, the same warpgroup, or another one, makes the next operand. The weights' scales are
// exact powers of two and part of the operand. It is 2^-kShift of its value, so that it fits BF16's
// exponents; kProductScale restores the sums.
//
// Per unit of 64 columns and SM, 256 rows x 128 columns: 1,024 clocks of wgmma; some 300 issue
// slots of four schedulers for the operand; 8.5 KiB of MXFP4 and 16 KiB of activations from L2.
#pragma once

#include <utility>

#include "core/cuda_launch.cuh"
#include "kernels/gemm/operand.cuh"
#include "kernels/gemm/staged.cuh"
#include "kernels/gemm/wgmma_sm90.cuh"

namespace moxie::gemm {

/// How a block is cut. For many columns each warpgroup should have many rows, for few columns there
/// should be many warps. A small matrix needs blocks of few rows, whose warpgroups then share K.
template <int kWarpgroups_, int kRowTiles_, bool kSplitsK_, int kMostColumns_,
          DType kActivation_ = DType::kBF16, int kBlocks_ = 1>
struct CutOf {
  static constexpr int kBlocks = kBlocks_;          ///< on an SM at a time
  static constexpr int kWarpgroups = kWarpgroups_;  ///< warpgroups that multiply
  static constexpr int kRowTiles = kRowTiles_;      ///< of 64 rows, of each warpgroup
  /// Warpgroups have the same rows, and each has units of its own.
  static constexpr bool kSplitsK = kSplitsK_;
  static constexpr int kMostColumns = kMostColumns_;
  static constexpr DType kActivation = kActivation_;  ///< BF16 or E4M3
  static constexpr int kFirstWarp = 4;                ///< that multiplies
  static constexpr int kRowBytes = staged_row_bytes(kActivation);

  static constexpr int kRows = 64 * kRowTiles * (kSplitsK ? 1 : kWarpgroups);
  static constexpr int kThreads = 128 * (kWarpgroups + 1);

  // Registers of a thread. A block has the registers of its launch, those of kThreads under
  // __launch_bounds__. A warpgroup that asks for more than the others gave back waits forever.
  static constexpr int kLaunchRegisters = 65536 / (kThreads * kBlocks) / 8 * 8;
  static constexpr int kCopyRegisters = 24;
  static constexpr int kMathRegisters =
      (kThreads * kLaunchRegisters - 128 * kCopyRegisters) / (128 * kWarpgroups) / 8 * 8;
};
using WideCut = CutOf<2, 2, false, 128>;
static_assert(WideCut::kMathRegisters == 240, "two warpgroups of 128 sums a thread");
/// Half the rows and twice the columns, for matrices that fill more of its last block.
using ManyColumnsCut = CutOf<2, 1, false, 256>;
using FewRowsCut = CutOf<4, 1, true, 64>;
using FewRowsWideCut = CutOf<2, 1, true, 128>;
static_assert(FewRowsCut::kRows == FewRowsWideCut::kRows);
/// As few rows. One warpgroup adds up all of K in order, to the same bits as the cuts that do not
/// share K.
using FewRowsOrderedCut = CutOf<1, 1, false, 64, DType::kBF16, 2>;
static_assert(FewRowsOrderedCut::kRows == FewRowsCut::kRows);

/// Stages of a warp's ring of weights: at most as many as leave room for the sums of warpgroups
/// that share K.
template <DType F, typename Cut>
inline constexpr int kWeightStages = F == DType::kMXFP4
                                         ? 8
                                         : (F == DType::kMXFP8 ? 6 : 4) - (Cut::kSplitsK ? 1 : 0);
template <DType F, typename Cut>
struct Shared {
  // As many as leave room for the weights and for the task's shared memory: with more stages a
  // warpgroup can be at the end of an item while the other still multiplies.
  static constexpr int kColumnStages = Cut::kMostColumns > 144                    ? 4
                                       : Cut::kMostColumns <= 64                  ? 8
                                       : Cut::kMostColumns > 128 || Cut::kSplitsK ? 6
                                       : F == DType::kMXFP4                       ? 7
                                       : F == DType::kMXFP8                       ? 5
                                                                                  : 4;
  static_assert(!Cut::kSplitsK || kColumnStages % Cut::kWarpgroups == 0,
                "in an item the same warpgroup reads a stage");
  static constexpr int kStageBytes = Cut::kRowTiles * fragment::kUnitBytes<F>;
  /// If warpgroups share K: the sums of all but the first.
  static constexpr int kSums = Cut::kSplitsK ? (Cut::kWarpgroups - 1) * 64 * Cut::kMostColumns : 0;
  alignas(1024) std::byte columns[kColumnStages][Cut::kRowBytes * Cut::kMostColumns];
  alignas(128) std::byte weights[4 * Cut::kWarpgroups][kWeightStages<F, Cut>][kStageBytes];
  alignas(16) float sums[kSums + 4];
  uint64_t full[kColumnStages], empty[kColumnStages];
};

#ifdef __CUDACC__

/// The ring of one warp's weights. A stage has a unit of each of the warp's tiles; the warp itself
/// copies them.
template <DType F, typename Cut>
struct WeightRing {
  static constexpr int kStages = kWeightStages<F, Cut>;
  static constexpr int kBytes = fragment::kUnitBytes<F>, kStageBytes = Cut::kRowTiles * kBytes;
  static constexpr int kStep = Cut::kSplitsK ? Cut::kWarpgroups : 1;
  std::byte* base;
  uint32_t address;
  const std::byte* from[Cut::kRowTiles];
  int num_units = 0, first_unit = 0, next_unit = 0, fill_stage = 0, stage = 0;

  __device__ __forceinline__ WeightRing(std::byte* at, int units, int first)
      : base(at), address(shared_address(at)), num_units(units), first_unit(first) {}

  __device__ __forceinline__ void fill() {
    if (next_unit < num_units) {
      const uint32_t to = address + fill_stage * kStageBytes + 16 * (threadIdx.x % 32);
#pragma unroll
      for (int m = 0; m < Cut::kRowTiles; ++m) {
        copy_unit<F>(to + m * kBytes, from[m]);
        from[m] += kStep * kBytes;
      }
    }
    commit_copies();
    next_unit += kStep;
    if (++fill_stage == kStages) fill_stage = 0;
  }
  /// Starts an item: `tile` is this warp's first tile, its others are four apart; tiles past the
  /// end repeat the last one.
  __device__ __forceinline__ void start(const PackedMatrix& weight, const Item& item, int tile) {
#pragma unroll
    for (int m = 0; m < Cut::kRowTiles; ++m) {
      from[m] = tile_of<F>(weight, num_units, item.expert, tile + 4 * m) + first_unit * kBytes +
                16 * (threadIdx.x % 32);
    }
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
    const std::byte* at = base + stage * kStageBytes;
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
  constexpr int kStages = Shared<F, Cut>::kColumnStages, kTiles = Cut::kRowTiles;
  const bool is_first_lane = threadIdx.x % 32 == 0;
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) sums[m][i] = 0;
  }
  // An operand for each tile. One tile with many columns has two: of this unit and of the previous
  // one.
  constexpr bool kIsDouble = kTiles == 1 && Cut::kMostColumns > 144;
  constexpr int kOperands = kIsDouble ? 2 : kTiles;
  UnitProduct<F, Cut, kColumns> products[kOperands];
  int last_stage = -1, stage_before = -1;  // not released yet
  const auto give_back = [&](int stage) {
    if (stage >= 0 && is_first_lane) arrive_barrier(&shared.empty[stage]);
  };
  const auto multiply_unit = [&](int u, auto* product) {
    const std::byte* unit = ring.next();
    const uint32_t place = unit_count + u, stage = place % kStages;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      wgmma_wait<kOperands - 1>();  // the previous product with this operand
      if (m == kTiles - 1) give_back(kIsDouble ? stage_before : last_stage);
      product[m].make(unit + m * fragment::kUnitBytes<F>);
      if (m == 0) wait_barrier(&shared.full[stage], place / kStages % 2);
      product[m].add(sums[m], shared.columns[stage]);
    }
    stage_before = last_stage, last_stage = stage;
  };
  int u = ring.first_unit;
  if constexpr (kIsDouble) {
#pragma unroll 1
    for (; u + ring.kStep < ring.num_units; u += 2 * ring.kStep) {
      multiply_unit(u, &products[0]);
      multiply_unit(u + ring.kStep, &products[1]);
    }
    if (u < ring.num_units) multiply_unit(u, &products[0]);
  } else {
#pragma unroll 1
    for (; u < ring.num_units; u += ring.kStep) multiply_unit(u, &products[0]);
  }
  after();
  wgmma_wait<0>();
  if (kIsDouble) give_back(stage_before);
  give_back(last_stage);
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

/// Calls run<kWidth, kBelow>() for each width, the greatest first; kBelow: the next one, or 0. run
/// takes items while they are wider than kBelow. (With a branch for each item, ptxas makes each
/// wgmma of more than two widths wait for itself.)
template <int... kWidths, typename Run>
__device__ __forceinline__ void for_each_width(const Run& run) {
  constexpr int kAll[] = {0, kWidths...}, kLast = sizeof...(kWidths);
  [&]<int... kIdx>(std::integer_sequence<int, kIdx...>) __attribute__((always_inline)) {
    (run.template operator()<kAll[kLast - kIdx], kAll[kLast - kIdx - 1]>(), ...);
  }
  (std::make_integer_sequence<int, kLast>());
}

/// The kernel. kWidths ascend; the last is the most columns of an item, and each item takes the
/// least that its `width` fits. With several, items come from the widest to the narrowest. Task:
/// `weight` (PackedMatrix), `staged` (StagedView), and on the device
///   bool item(int i, Item& item)   item number i, false past the last
///   template <Cut, int kColumns> void finish(const Item&, int tile, sums, void* shared)
///     sums[m] of this warp's tile of 16 rows tile + 4 m, times 2^-kShift
///   void drain()                   at the end, by the threads that finish
///   kSharedBytes<Cut>              shared memory of its own behind Shared
template <DType F, typename Cut, typename Task, int... kWidths>
__global__ void __launch_bounds__(Cut::kThreads, Cut::kBlocks)
    product_kernel(const __grid_constant__ Task task) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  static_assert(((kWidths <= Cut::kMostColumns) && ...));
  static_assert(!Cut::kSplitsK || Cut::kRowTiles == 1);
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
  const int my_tile = (Cut::kSplitsK ? 0 : 4 * Cut::kRowTiles * group) + warp % 4;
  WeightRing<F, Cut> ring(shared.weights[warp][0], num_units, Cut::kSplitsK ? group : 0);
  Item item, next;
  uint32_t unit_count = 0;
  int i = blockIdx.x;
  bool is_more = task.item(i, item);
  if (is_more) ring.start(task.weight, item, item.first_tile + my_tile);
  const auto run = [&]<int kColumns, int kBelow>() {
    while (is_more && item.width > kBelow) {
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
  };
  for_each_width<kWidths...>(run);
  task.drain();
#endif
}

#endif  // __CUDACC__

}  // namespace moxie::gemm
