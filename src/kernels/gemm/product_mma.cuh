// Products of packed weights with many tokens on any GPU since sm_80, written over an atom: by
// mma.m16n8k16 in BF16, or by block-scaled products of MXFP4 weights with activations in MX formats
// (mx_atom.cuh). Copies by cp.async, at most 99 KiB of shared memory. Operands and staged
// activations are those of product_sm90.cuh (operand.cuh, staged.cuh).
//
// A block takes one work item: its rows times up to 128 staged rows. Each warp multiplies its own
// tiles of 16 rows by all columns. The ring holds, for each unit of 64 columns of K, the block's
// weights and activations; copies of later units run while one is multiplied. In BF16 there is a
// loop over the units for each number of steps of eight columns: no column without a token is
// multiplied beyond the last step, and nothing branches between products, which run over the ends
// of units. A column's sums are added in the order of K, by one warp, whatever the cut: the same
// bits in any batch.
//
// Per unit, SM and 256 rows x 128 columns in BF16: 1,024 mma of 2,048 multiply-adds, 2,048 clocks
// at the A100's rate; 256 ldmatrix.x4 (128 KiB, 1,024 clocks of shared memory); some 300 issue
// slots of each scheduler for operands; 24.5 KiB from L2.
#pragma once

#include <algorithm>
#include <type_traits>

#include "core/cuda_launch.cuh"
#include "kernels/features.h"
#include "kernels/gemm/mx_atom.cuh"
#include "kernels/gemm/operand.cuh"
#include "kernels/gemm/staged.cuh"
#ifdef __CUDACC__
#include "kernels/matrices.cuh"
#endif

namespace moxie::gemm {

/// What a warp's tiles of a unit are multiplied by: how a column's 64 activations are staged, and
/// the bytes of its scales.
struct Bf16Atom {
  static constexpr DType kActivation = DType::kBF16;
  static constexpr int kScaleBytes = 0;
};
/// Two products of 32 columns; any element (the task's).
struct MxAtom32 {
  static constexpr DType kActivation = DType::kMXFP8;
  static constexpr int kScaleBytes = kStagedScaleBytes;
};
/// One product of 64 columns: E2M1.
struct MxAtom64 {
  static constexpr DType kActivation = DType::kMXFP4;
  static constexpr int kScaleBytes = kStagedScaleBytes;
};

/// How a block is cut: warps in groups of four, kRowTiles tiles of 16 rows of each warp.
template <int kWarpgroups_, int kRowTiles_, int kMostColumns_, typename Atom_ = Bf16Atom>
struct MmaCut {
  using Atom = Atom_;
  static constexpr int kWarpgroups = kWarpgroups_, kRowTiles = kRowTiles_;
  static constexpr int kMostColumns = kMostColumns_;
  static constexpr int kRows = 64 * kRowTiles * kWarpgroups, kThreads = 128 * kWarpgroups;
  static constexpr int kTileStep = 4;  ///< from a warp's tile to its next in a stage
  /// With MX atoms: steps of eight columns between two looks at whether columns are left.
  static constexpr int kStepsOfGroup = kMostColumns > 64 ? 4 : 2;
  static constexpr int kFirstWarp = 0;
  static constexpr bool kSplitsK = false;
  static constexpr DType kActivation = Atom::kActivation;
  static constexpr int kRowBytes = staged_row_bytes(kActivation);
  static constexpr int kBlocks = 2;  ///< on an SM at a time

  /// A warp's first tile in the block; its others are kTileStep apart.
  MOXIE_HOST_DEVICE static constexpr int tile_of_warp(int warp) {
    return 4 * kRowTiles * (warp / 4) + warp % 4;
  }
};

/// Many columns: a load of activations serves two tiles of a warp, and two blocks share an SM, so
/// that one multiplies while the other makes operands or ends.
template <typename Atom = Bf16Atom>
using MmaWideCut = MmaCut<1, 2, 128, Atom>;
/// Some columns: a load of activations serves four tiles of a warp.
using MmaTallCut = MmaCut<1, 4, 64>;
/// Tiles of kColumns. Those of few tokens are limited by the weights' bytes: many copies of them
/// are in flight.
template <int kColumns, typename Atom = Bf16Atom>
using MmaTileCut =
    std::conditional_t<kColumns == 128, MmaWideCut<Atom>,
                       std::conditional_t<kColumns == 64 && std::is_same_v<Atom, Bf16Atom>,
                                          MmaTallCut, MmaCut<2, 1, kColumns, Atom>>>;

template <DType F, typename Cut>
struct MmaShared {
  static constexpr int kTileBytes = fragment::kUnitBytes<F>;
  static constexpr int kColumnBytes = Cut::kRowBytes * Cut::kMostColumns;
  static constexpr int kScaleBytes = Cut::Atom::kScaleBytes * Cut::kMostColumns;
  static constexpr int kWeightBytes = Cut::kRows / 16 * kTileBytes;
  /// In a stage: activations, their scales, weights.
  static constexpr int kScalesAt = kColumnBytes, kWeightsAt = kColumnBytes + kScaleBytes;
  static constexpr int kStageBytes = round_up(kWeightsAt + kWeightBytes, 128);
  /// An SM keeps 1 KiB back for each block.
  static constexpr int kMostBytes = (int{kPortableSharedBytes} + 1024) / Cut::kBlocks - 1024;
  static constexpr int kStages = std::clamp(kMostBytes / kStageBytes, 2, 8);
  static constexpr uint64_t kBytes = uint64_t{kStages} * kStageBytes;
  static_assert(kBytes <= kPortableSharedBytes);
};

#ifdef __CUDACC__

/// Copies 16 bytes to shared memory if wanted, without a branch.
__device__ __forceinline__ void copy_async_16_if(bool is_wanted, uint32_t to, const void* from) {
  asm volatile(
      "{.reg .pred wanted; setp.ne.u32 wanted, %2, 0; "
      "@wanted cp.async.cg.shared.global [%0], [%1], 16;}" ::"r"(to),
      "l"(from), "r"(static_cast<uint32_t>(is_wanted))
      : "memory");
}
__device__ __forceinline__ uint32_t load_shared_4(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
  return v;
}

/// The copies of one item's units into the ring, for more than kLess and up to kSteps steps of
/// eight columns. They come in parts without a branch, which can lie between products. A warp
/// copies neighbouring runs of 512 bytes of the activations, so that one address serves them all,
/// and few need to be asked whether there are so many.
template <DType F, typename Cut, int kSteps = Cut::kMostColumns / 8, int kLess = 0>
struct MmaCopies {
  using S = MmaShared<F, Cut>;
  static constexpr int kWarps = Cut::kThreads / 32, kRunBytes = 512;
  static constexpr int kRuns = ceil_div(8 * kSteps * Cut::kRowBytes, kWarps* kRunBytes);
  /// Of them, those that any warp has.
  static constexpr int kSureRuns =
      8 * (kLess + 1) * Cut::kRowBytes / kRunBytes - (kWarps - 1) * kRuns;
  static constexpr int kPartsOfTile = ceil_div(S::kTileBytes, kRunBytes);
  static constexpr int kWeightParts = Cut::kRowTiles * kPartsOfTile;
  static constexpr bool kHasScales = Cut::Atom::kScaleBytes > 0;
  static constexpr int kParts = kWeightParts + kRuns + (kHasScales ? 1 : 0);
  /// Pairs of steps of a unit, and the parts before each of the first ones: copies start early,
  /// within a quarter of a unit, or a half where a pair has twice the products.
  static constexpr int kGroups = 2 * ceil_div(kSteps, 2);
  static constexpr int kAtOnce =
      std::max(Cut::kRowTiles > 2 ? 6 : 3, ceil_div(kParts, std::min(4, kGroups)));
  static constexpr int kBefore = 2048;  // an instruction's offsets are signed

  // Of the next unit: this lane's first 16 bytes, in memory and in the ring.
  const std::byte *columns, *weights, *scales;
  uint32_t columns_to, weights_to, scales_to;
  uint32_t stage_at = 0;
  int64_t columns_step, scales_step;
  int32_t tiles[Cut::kRowTiles];          // from the warp's first tile to its others
  int num_column_bytes, num_scale_bytes;  // from this lane's first on
  int units_left;

  template <typename Task>
  __device__ __forceinline__ MmaCopies(const Task& task, const Item& item, int num_units,
                                       uint32_t ring)
      : units_left(num_units) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first = warp * kRuns * kRunBytes + 16 * lane;
    const int num_columns = (item.num_columns + 7) / 8 * 8;
    columns = task.staged.data + Cut::kRowBytes * int64_t{item.first_column} + first + kBefore;
    columns_step = Cut::kRowBytes * int64_t{task.staged.capacity};
    num_column_bytes = Cut::kRowBytes * num_columns - first;
    constexpr int64_t kScaleBytes = Cut::Atom::kScaleBytes;
    scales = task.staged.scales + kScaleBytes * item.first_column + 16 * threadIdx.x;
    scales_step = kScaleBytes * task.staged.capacity;
    num_scale_bytes =
        static_cast<int>(kScaleBytes) * num_columns - 16 * static_cast<int>(threadIdx.x);
    const int in_block = Cut::tile_of_warp(warp), tile = item.first_tile + in_block;
    const std::byte* const first_tile = tile_of<F>(task.weight, num_units, item.expert, tile);
    weights = first_tile + 16 * lane;
#pragma unroll
    for (int m = 0; m < Cut::kRowTiles; ++m)
      tiles[m] = static_cast<int32_t>(
          tile_of<F>(task.weight, num_units, item.expert, tile + Cut::kTileStep * m) - first_tile);
    columns_to = ring + first;
    weights_to = ring + S::kWeightsAt + in_block * S::kTileBytes + 16 * lane;
    scales_to = ring + S::kScalesAt + 16 * threadIdx.x;
    // Kept in registers: the compiler would make them of others for each unit.
    asm volatile("" : "+r"(columns_to), "+r"(weights_to), "+r"(num_column_bytes));
    asm volatile("" : "+l"(columns), "+l"(weights));
  }
  /// Part i of kParts of the next unit, the weights first.
  __device__ __forceinline__ void copy(int i) const {
    const bool is_more = units_left > 0;
    if (i < kWeightParts) {
      const int m = i / kPartsOfTile, at = i % kPartsOfTile * kRunBytes;
      const int left = (S::kTileBytes - at) / 16;
      const bool has = left >= 32 || threadIdx.x % 32 < left;
      copy_async_16_if(is_more && has, weights_to + Cut::kTileStep * m * S::kTileBytes + at,
                       weights + tiles[m] + at);
    } else if (const int run = i - kWeightParts; run < kRuns) {
      const bool is_sure = run < kSureRuns;
      copy_async_16_if(is_more && (is_sure || kRunBytes * run < num_column_bytes),
                       columns_to + kRunBytes * run, columns + (kRunBytes * run - kBefore));
    } else {
      copy_async_16_if(is_more && num_scale_bytes > 0, scales_to, scales);
    }
  }
  /// After all parts of a unit.
  __device__ __forceinline__ void finish_unit() {
    commit_copies();
    columns += columns_step, weights += S::kTileBytes;
    if constexpr (kHasScales) scales += scales_step;
    const uint32_t by =
        stage_at + S::kStageBytes == S::kBytes ? 0u - stage_at : uint32_t{S::kStageBytes};
    stage_at += by, columns_to += by, weights_to += by, scales_to += by;
    --units_left;
  }
  __device__ __forceinline__ void copy_unit() {
#pragma unroll
    for (int i = 0; i < kParts; ++i) copy(i);
    finish_unit();
  }
  /// All units but one that the ring holds.
  __device__ __forceinline__ void fill_ring() {
#pragma unroll 1
    for (int u = 0; u < S::kStages - 1; ++u) copy_unit();
  }
};

/// A lane's share of a unit at an address of shared memory.
template <DType F>
__device__ __forceinline__ fragment::Unit<F> load_operand(uint32_t unit_at) {
  const uint32_t lane = threadIdx.x % 32;
  fragment::Unit<F> unit;
#pragma unroll
  for (int i = 0; i < fragment::Format<F>::kVectors; ++i)
    unit.codes[i] = fragment::load_shared_16(unit_at + 512 * i + 16 * lane);
  if constexpr (fragment::Format<F>::kScaleWords == 1)
    unit.scales[0] = load_shared_4(unit_at + fragment::kCodeBytes<F> + lane / 4 * 4);
  return unit;
}

/// All units of an item, in BF16, with more than kLess and up to kSteps steps of eight columns: no
/// branch but the loop's. Loads of activations run one or two pairs of steps ahead of their
/// products. So a unit's last pairs are multiplied behind the barrier, while the next unit's
/// weights are decoded and the copies of a later one start.
template <DType F, typename Cut, int kSteps, int kLess, typename Task>
__device__ __forceinline__ void multiply_units(const Task& task, const Item& item, int num_units,
                                               uint32_t ring, Sums<Cut, Cut::kMostColumns>& sums) {
  using S = MmaShared<F, Cut>;
  constexpr int kTiles = Cut::kRowTiles, kAhead = kTiles > 2 ? 1 : 2;
  constexpr int kPairs = (kSteps + 1) / 2, kGroups = 2 * kPairs;  // of a block of 32 of K, of both
  const uint32_t lane = threadIdx.x % 32, row = lane % 8;
  // Matrix i of a load is chunk i of a block of 32 columns of K: the operands of two products.
  uint32_t at = ring + row * Cut::kRowBytes + staged_pair_offset(row, lane / 8);
  uint32_t unit_at = ring + S::kWeightsAt + Cut::tile_of_warp(threadIdx.x / 32) * S::kTileBytes;
  MmaCopies<F, Cut, kSteps, kLess> copies(task, item, num_units, ring);
  copies.fill_ring();
  constexpr int kParts = copies.kParts, kAtOnce = copies.kAtOnce;
  uint32_t stage = 0;
  // Zeros times zeros before the first unit.
  uint32_t a[2][kTiles][8] = {}, b[kAhead + 1][2][4] = {};
  // The products of group i of a unit, whose activations are b[0].
  const auto multiply_group = [&](int i) {
    const int first = 2 * (i % kPairs);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        const uint32_t* of_tile = &a[i / kPairs][m][4 * k];
#pragma unroll
        for (int s = 0; s < 2 && first + s < kSteps; ++s) {
          mma_m16n8k16(reinterpret_cast<float(&)[4]>(sums[m][4 * (first + s)]), of_tile[0],
                       of_tile[1], of_tile[2], of_tile[3], b[0][s][2 * k], b[0][s][2 * k + 1]);
        }
      }
    }
#pragma unroll
    for (int slot = 0; slot < kAhead; ++slot) {
#pragma unroll
      for (int w = 0; w < 8; ++w) b[slot][w / 4][w % 4] = b[slot + 1][w / 4][w % 4];
    }
  };
#pragma unroll 1
  for (int u = 0; u < num_units; ++u) {
    wait_for_copies<S::kStages - 2>();
    __syncthreads();  // all copies of this unit are there, and all have read the unit before
    fragment::Unit<F> units[kTiles];
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
      units[m] = load_operand<F>(unit_at + Cut::kTileStep * m * S::kTileBytes);
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      // Block 1's chunk of a row is block 0's with bit 2 flipped. Copies lie between loads, which
      // so are not all moved to the front.
      const int first = 2 * (i % kPairs);
      const uint32_t from = (i < kPairs ? at : at ^ 64) + 8 * first * Cut::kRowBytes;
#pragma unroll
      for (int s = 0; s < 2 && first + s < kSteps; ++s)
        load_matrices(from + 8 * s * Cut::kRowBytes, b[kAhead][s]);
#pragma unroll
      for (int part = 0; part < kAtOnce; ++part)
        if (kAtOnce * i + part < kParts) copies.copy(kAtOnce * i + part);
      if (kAtOnce * i < kParts && kAtOnce * (i + 1) >= kParts) copies.finish_unit();
      multiply_group((i + kGroups - kAhead) % kGroups);
      if (i + 1 == kAhead) {
#pragma unroll
        for (int block = 0; block < 2; ++block) {
#pragma unroll
          for (int m = 0; m < kTiles; ++m) make_operand<F>(units[m], block, a[block][m]);
        }
      }
    }
    const uint32_t by = stage + S::kStageBytes == S::kBytes ? 0u - stage : S::kStageBytes;
    stage += by, at += by, unit_at += by;
  }
#pragma unroll
  for (int i = kGroups - kAhead; i < kGroups; ++i) multiply_group(i);
}
/// The same for an item's columns, by the least loop for more than kLess steps that holds them.
template <DType F, typename Cut, int kLess = 0, typename Task>
__device__ __forceinline__ void multiply_item(const Task& task, const Item& item, int num_units,
                                              uint32_t ring, Sums<Cut, Cut::kMostColumns>& sums) {
  constexpr int kMost = Cut::kMostColumns / 8;
  constexpr int kFew = kMost > 8 ? 4 : 2;  // up to 2 kFew in steps of two
  constexpr int kSteps = kLess == 0 ? kFew : kLess < 2 * kFew ? kLess + 2 : kLess + 1;
  if constexpr (kSteps < kMost) {
    if (item.num_columns > 8 * kSteps)
      return multiply_item<F, Cut, kSteps>(task, item, num_units, ring, sums);
  }
  multiply_units<F, Cut, kSteps, kLess>(task, item, num_units, ring, sums);
}

/// The lane's eight codes of a row of a block: four a register, in bits 5:2 of each byte.
__device__ __forceinline__ void make_bytes(uint32_t word, uint32_t& first, uint32_t& second) {
  uint32_t pairs[4];
  fragment_mxfp4_pairs(word, pairs);
#pragma unroll
  for (uint32_t& pair : pairs) pair = (pair >> 10 & 0x00200020u) | (pair >> 4 & 0x001C001Cu);
  first = __byte_perm(pairs[0], pairs[1], 0x6420);
  second = __byte_perm(pairs[2], pairs[3], 0x6420);
}
/// The same as nibbles: columns 0, 2, 4, 6, then 1, 3, 5, 7, as they are staged.
__device__ __forceinline__ uint32_t make_nibbles(uint32_t word) {
  uint32_t pairs[4], nibbles = 0;
  fragment_mxfp4_pairs(word, pairs);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    nibbles |= ((pairs[i] >> 12 & 0x00080008u) | (pairs[i] >> 6 & 0x00070007u)) << (4 * i);
  return nibbles;
}

/// sums += this warp's tiles of a unit times its columns in an MX format, in groups up to the last
/// token's: two products of a block of 32 columns.
template <DType F, typename Cut>
__device__ __forceinline__ void multiply_mx_unit(MxElement element, const std::byte* stage,
                                                 int tile_in_block, int num_columns,
                                                 Sums<Cut, Cut::kMostColumns>& sums) {
  static_assert(F == DType::kMXFP4);
  using S = MmaShared<F, Cut>;
  constexpr int kTiles = Cut::kRowTiles, kSteps = Cut::kMostColumns / 8;
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, row = lane % 8;
  // Matrix i of a load is chunk i of the unit: both operands of both blocks.
  const uint32_t at =
      shared_address(stage) + row * Cut::kRowBytes + staged_quad_chunk(row, lane / 8);
  const auto* scales = reinterpret_cast<const uint16_t*>(stage + S::kScalesAt) + g;
  uint32_t a[kTiles][2][4], scale_a[kTiles];
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    const fragment::Unit<F> unit = read_operand<F>(
        stage + S::kWeightsAt + (tile_in_block + Cut::kTileStep * m) * S::kTileBytes);
    make_bytes(unit.codes[0].x, a[m][0][0], a[m][0][2]);
    make_bytes(unit.codes[0].y, a[m][0][1], a[m][0][3]);
    make_bytes(unit.codes[0].z, a[m][1][0], a[m][1][2]);
    make_bytes(unit.codes[0].w, a[m][1][1], a[m][1][3]);
    scale_a[m] = unit.scales[0] >> (8 * (lane % 2));
  }
  uint32_t b[2][4], scale_b[2];
  load_matrices(at, b[0]);
  scale_b[0] = scales[0];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    if (i > 0 && i % Cut::kStepsOfGroup == 0 && 8 * i >= num_columns) break;
    if (i + 1 < kSteps) {
      load_matrices(at + 8 * (i + 1) * Cut::kRowBytes, b[(i + 1) % 2]);
      scale_b[(i + 1) % 2] = scales[8 * (i + 1)];
    }
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      auto& of = reinterpret_cast<float(&)[4]>(sums[m][4 * i]);
      const uint32_t(&words)[4] = b[i % 2];
      mx::multiply_k32<0, 0>(element, of, a[m][0], {words[0], words[1]}, scale_a[m],
                             scale_b[i % 2]);
      mx::multiply_k32<2, 1>(element, of, a[m][1], {words[2], words[3]}, scale_a[m],
                             scale_b[i % 2]);
    }
  }
}
template <DType F, typename Cut>
__device__ __forceinline__ void multiply_unit(MxElement element, MxAtom32, const std::byte* stage,
                                              int tile_in_block, int num_columns,
                                              Sums<Cut, Cut::kMostColumns>& sums) {
#if MOXIE_HAS_MX_MMA
  // The instruction names its element.
  switch (element) {
    case MxElement::kE4M3:
      return multiply_mx_unit<F, Cut>(MxElement::kE4M3, stage, tile_in_block, num_columns, sums);
    case MxElement::kE3M2:
      return multiply_mx_unit<F, Cut>(MxElement::kE3M2, stage, tile_in_block, num_columns, sums);
    case MxElement::kE2M3:
      return multiply_mx_unit<F, Cut>(MxElement::kE2M3, stage, tile_in_block, num_columns, sums);
    case MxElement::kE2M1:
      return multiply_mx_unit<F, Cut>(MxElement::kE2M1, stage, tile_in_block, num_columns, sums);
  }
#else
  multiply_mx_unit<F, Cut>(element, stage, tile_in_block, num_columns, sums);
#endif
}
/// The same in MXFP4, one product of the unit.
template <DType F, typename Cut>
__device__ __forceinline__ void multiply_unit(MxElement, MxAtom64, const std::byte* stage,
                                              int tile_in_block, int num_columns,
                                              Sums<Cut, Cut::kMostColumns>& sums) {
  static_assert(F == DType::kMXFP4);
  using S = MmaShared<F, Cut>;
  constexpr int kTiles = Cut::kRowTiles, kSteps = Cut::kMostColumns / 8;
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, row = lane % 8;
  // Matrices 0 and 1 of a load are the chunks of a step's columns, 2 and 3 those of the next
  // step's.
  const uint32_t of_lane = row + lane / 16 * 8;
  const uint32_t at =
      shared_address(stage) + of_lane * Cut::kRowBytes + staged_nibble_chunk(row, lane / 8 % 2);
  const auto* scales = reinterpret_cast<const uint16_t*>(stage + S::kScalesAt) + g;
  uint32_t a[kTiles][4], scale_a[kTiles];
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    const fragment::Unit<F> unit = read_operand<F>(
        stage + S::kWeightsAt + (tile_in_block + Cut::kTileStep * m) * S::kTileBytes);
    a[m][0] = make_nibbles(unit.codes[0].x), a[m][1] = make_nibbles(unit.codes[0].y);
    a[m][2] = make_nibbles(unit.codes[0].z), a[m][3] = make_nibbles(unit.codes[0].w);
    scale_a[m] = __byte_perm(unit.scales[0], 0, lane % 2 == 0 ? 0x4420 : 0x4431);
  }
#pragma unroll
  for (int i = 0; i < kSteps; i += 2) {
    if (i > 0 && i % Cut::kStepsOfGroup == 0 && 8 * i >= num_columns) break;
    uint32_t b[4];
    load_matrices(at + 8 * i * Cut::kRowBytes, b);
#pragma unroll
    for (int next = 0; next < 2; ++next) {
      const uint32_t scale_b = scales[8 * (i + next)];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        mx::multiply_k64(reinterpret_cast<float(&)[4]>(sums[m][4 * (i + next)]), a[m],
                         {b[2 * next], b[2 * next + 1]}, scale_a[m], scale_b);
      }
    }
  }
}

/// All units of an item in an MX format. One loop for any number of columns: where products are
/// plain arithmetic, a loop for each number of steps and each element would be too much code.
template <DType F, typename Cut, typename Task>
__device__ __forceinline__ void multiply_mx_item(const Task& task, const Item& item, int num_units,
                                                 std::byte* ring,
                                                 Sums<Cut, Cut::kMostColumns>& sums) {
  using S = MmaShared<F, Cut>;
  MmaCopies<F, Cut> copies(task, item, num_units, shared_address(ring));
  copies.fill_ring();
  uint32_t stage = 0;
#pragma unroll 1
  for (int u = 0; u < num_units; ++u) {
    wait_for_copies<S::kStages - 2>();
    __syncthreads();  // all copies of this unit are there, and all have read the unit before
    copies.copy_unit();
    multiply_unit<F, Cut>(task.element, typename Cut::Atom(), ring + stage,
                          Cut::tile_of_warp(threadIdx.x / 32), item.num_columns, sums);
    stage += S::kStageBytes;
    if (stage == S::kBytes) stage = 0;
  }
}

/// The kernel: block i takes item i. Task: as of product_kernel, with `element` for MX atoms, and
///   template <Cut, int kColumns> void finish(const Item&, int tile, sums, void* shared)
/// which all warps call at once, and whose kSharedBytes<Cut> lie where the ring was.
template <DType F, typename Cut, typename Task>
__global__ void __launch_bounds__(Cut::kThreads, Cut::kBlocks)
    product_mma_kernel(const __grid_constant__ Task task) {
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  wait_for_previous();
  launch_next();
  Item item;
  if (!task.item(blockIdx.x, item)) return;
  const int num_units = (task.weight.cols + kStagedColumns - 1) / kStagedColumns;
  Sums<Cut, Cut::kMostColumns> sums;
#pragma unroll
  for (int m = 0; m < Cut::kRowTiles; ++m) {
#pragma unroll
    for (int i = 0; i < Cut::kMostColumns / 2; ++i) sums[m][i] = 0;
  }
  if constexpr (std::is_same_v<typename Cut::Atom, Bf16Atom>) {
    // Kept in a register: the compiler would compute it anew for each unit.
    uint32_t ring = shared_address(shared_bytes);
    asm volatile("" : "+r"(ring));
    multiply_item<F, Cut>(task, item, num_units, ring, sums);
  } else {
    multiply_mx_item<F, Cut>(task, item, num_units, shared_bytes, sums);
  }
  wait_for_copies<0>();
  __syncthreads();  // the ring's memory is the end's now
  const int tile = item.first_tile + Cut::tile_of_warp(threadIdx.x / 32);
  task.template finish<Cut, Cut::kMostColumns>(item, tile, sums, shared_bytes);
}

/// Launches a block for each item.
template <DType F, typename Cut, typename Task>
void launch_product_mma(const char* row, const Task& task, int64_t most_items,
                        cudaStream_t stream) {
  if (most_items == 0) return;
  constexpr uint64_t kShared =
      std::max<uint64_t>(MmaShared<F, Cut>::kBytes, Task::template kSharedBytes<Cut>);
  static_assert(kShared <= kPortableSharedBytes, "a block has this much on any device");
  launch_kernel(row, product_mma_kernel<F, Cut, Task>, task,
                {.grid = dim3(static_cast<unsigned>(most_items)),
                 .num_threads = Cut::kThreads,
                 .shared_bytes = kShared,
                 .programmatic = true},
                stream);
}

#endif  // __CUDACC__

}  // namespace moxie::gemm
