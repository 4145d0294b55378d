// Products of packed weights with many tokens on any GPU since sm_80, written over an atom: by
// mma.m16n8k16 in BF16, or by block-scaled products of MXFP4 weights with activations in MX formats
// (mx_atom.cuh). Copies by cp.async, at most 99 KiB of shared memory. Operands and staged
// activations are those of product_sm90.cuh (operand.cuh, staged.cuh).
//
// A block takes one work item: its rows times up to 128 staged rows. Each warp multiplies its own
// tiles of 16 rows by all columns. The ring holds, for each unit of 64 columns of K, the block's
// weights and activations; copies of later units run while one is multiplied. A column's sums are
// added in the order of K, by one warp, whatever the cut: the same bits in any batch.
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

// Forms of the products of MXFP4 weights in BF16 with tiles of 128 tokens, to be compared: 0, as
// they were; 1, products run over the ends of units (multiply_units); 2, gate and up in blocks of
// 256 rows; 3, two warps share a tile's columns, and tiles of 64 tokens run over the ends of units
// as well; 4, that with gate and up in blocks of 256 rows; 5 and 6, as 3 and 4 with up to 144
// tokens.
#ifndef MOXIE_MMA_VARIANT
#define MOXIE_MMA_VARIANT 0
#endif
// Units in the ring of those products; 0: as many as fit.
#ifndef MOXIE_MMA_STAGES
#define MOXIE_MMA_STAGES 0
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
template <int kWarpgroups_, int kRowTiles_, int kMostColumns_, typename Atom_ = Bf16Atom,
          int kBlocks_ = (kRowTiles_ * kMostColumns_ * kWarpgroups_ > 256 ? 1 : 2)>
struct MmaCut {
  using Atom = Atom_;
  static constexpr int kWarpgroups = kWarpgroups_, kRowTiles = kRowTiles_;
  static constexpr int kMostColumns = kMostColumns_;
  static constexpr int kRows = 64 * kRowTiles * kWarpgroups, kThreads = 128 * kWarpgroups;
  static constexpr int kTileStep = 4;  ///< from a warp's tile to its next in a stage
  /// Steps of eight columns between two looks at whether columns are left.
  static constexpr int kStepsOfGroup = kMostColumns > 64 ? 4 : 2;
  /// Warps share a block's rows only.
  static constexpr int kColumnGroups = 1, kWarpColumns = kMostColumns;
  static constexpr int kCopyTiles = kRowTiles;  ///< tiles of a warp's copies
  static constexpr int kFirstWarp = 0;
  static constexpr bool kSplitsK = false;
  static constexpr DType kActivation = Atom::kActivation;
  static constexpr int kRowBytes = staged_row_bytes(kActivation);
  static constexpr int kBlocks = kBlocks_;  ///< on an SM at a time, as registers allow

  /// A warp's first tile in the block, and the first that it copies, kTileStep and 4 apart.
  MOXIE_HOST_DEVICE static constexpr int tile_of_warp(int warp) {
    return 4 * kRowTiles * (warp / 4) + warp % 4;
  }
  MOXIE_HOST_DEVICE static constexpr int copied_tile_of_warp(int warp) {
    return tile_of_warp(warp);
  }
};

/// Two warps share the rows, two the columns: a load of activations serves four tiles of a warp.
/// An item's columns are halved evenly.
template <int kMostColumns>
struct MmaSquareCut : MmaCut<1, 2, kMostColumns, Bf16Atom, 2> {
  static constexpr int kRowTiles = 4, kTileStep = 2, kColumnGroups = 2;
  static constexpr int kWarpColumns = kMostColumns / kColumnGroups;

  MOXIE_HOST_DEVICE static constexpr int tile_of_warp(int warp) { return warp % 2; }
};

/// The same with one block of twice the rows on an SM: fewer bytes copied for a product.
template <int kMostColumns>
struct MmaLargeSquareCut : MmaCut<2, 2, kMostColumns, Bf16Atom, 1> {
  static constexpr int kRowTiles = 4, kColumnGroups = 2;
  static constexpr int kWarpColumns = kMostColumns / kColumnGroups;

  MOXIE_HOST_DEVICE static constexpr int tile_of_warp(int warp) { return warp % 4; }
};

/// The columns of an item's column group, and a warp's first.
template <typename Cut>
MOXIE_HOST_DEVICE constexpr int columns_of_group(int num_columns) {
  constexpr int kGroups = Cut::kColumnGroups;
  return kGroups == 1 ? num_columns : (num_columns + 8 * kGroups - 1) / (8 * kGroups) * 8;
}
template <typename Cut>
MOXIE_HOST_DEVICE constexpr int first_column_of_warp(int warp, int num_columns) {
  constexpr int kWarpsOfGroup = Cut::kThreads / 32 / Cut::kColumnGroups;
  return Cut::kColumnGroups == 1 ? 0 : warp / kWarpsOfGroup * columns_of_group<Cut>(num_columns);
}

/// Many columns: a load of activations serves two tiles of a warp, and two blocks share an SM, so
/// that one multiplies while the other makes operands or ends.
template <typename Atom = Bf16Atom>
using MmaWideCut = MmaCut<1, 2, 128, Atom, 2>;
/// The same with one block of twice the rows on an SM: fewer bytes copied for a product.
template <typename Atom = Bf16Atom>
using MmaLargeCut = MmaCut<2, 2, 128, Atom, 1>;
/// Some columns: a load of activations serves four tiles of a warp.
using MmaTallCut = MmaCut<1, 4, 64, Bf16Atom, 2>;
/// Tiles of kColumns. Those of few tokens are limited by the weights' bytes: many copies of them
/// are in flight.
template <int kColumns, typename Atom = Bf16Atom>
using MmaTileCut =
    std::conditional_t<kColumns == 128, MmaWideCut<Atom>,
                       std::conditional_t<kColumns == 64 && std::is_same_v<Atom, Bf16Atom>,
                                          MmaTallCut, MmaCut<2, 1, kColumns, Atom>>>;

/// Whether products run over the ends of units (multiply_units).
template <DType F, typename Cut>
inline constexpr bool kRunsAhead =
    MOXIE_MMA_VARIANT >= 1 && F == DType::kMXFP4&& std::is_same_v<typename Cut::Atom, Bf16Atom> &&
    (Cut::kRowTiles == 2 || (Cut::kRowTiles == 4 && MOXIE_MMA_VARIANT >= 3));

template <DType F, typename Cut>
struct MmaShared {
  static constexpr int kTileBytes = fragment::kUnitBytes<F>;
  static constexpr int kColumnBytes = Cut::kRowBytes * Cut::kMostColumns;
  static constexpr int kScaleBytes = Cut::Atom::kScaleBytes * Cut::kMostColumns;
  static constexpr int kWeightBytes = Cut::kRows / 16 * kTileBytes;
  /// In a stage: activations, their scales, weights.
  static constexpr int kScalesAt = kColumnBytes, kWeightsAt = kColumnBytes + kScaleBytes;
  static constexpr int kStageBytes =
      round_up(kWeightsAt + kWeightBytes, kRunsAhead<F, Cut> ? 128 : 1024);
  /// An SM keeps 1 KiB back for each block.
  static constexpr int kMostBytes = kRunsAhead<F, Cut>
                                        ? (int{kPortableSharedBytes} + 1024) / Cut::kBlocks - 1024
                                        : int{kPortableSharedBytes} / Cut::kBlocks;
  static constexpr int kStages = kRunsAhead<F, Cut> && MOXIE_MMA_STAGES > 0
                                     ? MOXIE_MMA_STAGES
                                     : std::clamp(kMostBytes / kStageBytes, 2, 8);
  static constexpr uint64_t kBytes = uint64_t{kStages} * kStageBytes;
  static_assert(kBytes <= kPortableSharedBytes);
};

#ifdef __CUDACC__

/// Four 8 x 8 matrices of 16-bit elements; lane 8 i + r gives the address of row r of matrix i.
__device__ __forceinline__ void load_matrices(uint32_t at, uint32_t (&words)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(at));
}

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

/// The copies of one item's units into the ring. fill() has no branch, so that it can lie between
/// products.
template <DType F, typename Cut>
struct MmaCopies {
  using S = MmaShared<F, Cut>;
  static constexpr int kAtOnce = 16 * Cut::kThreads;  // bytes
  uint32_t base;
  const std::byte* columns;  // this thread's first 16 bytes of the next unit
  int64_t columns_step;
  int num_column_bytes;     // from this thread's first on
  const std::byte* scales;  // of the columns, if the atom has scales
  int64_t scales_step;
  int num_scale_bytes;             // as of the columns
  const std::byte* weights;        // of this warp's first tile, this lane's first 16 bytes
  int32_t tiles[Cut::kCopyTiles];  // from there to the warp's tiles
  int tile_in_block;               // this warp's first
  int num_units, next_unit = 0;
  uint32_t stage_at = 0;

  __device__ __forceinline__ void fill() {
    const bool is_more = next_unit < num_units;
    const uint32_t to = base + stage_at + 16 * threadIdx.x;
    const int num_bytes = is_more ? num_column_bytes : 0;
#pragma unroll
    for (int at = 0; at < S::kColumnBytes; at += kAtOnce)
      copy_async_16_if(at < num_bytes, to + at, columns + at);
    columns += columns_step;
    if constexpr (Cut::Atom::kScaleBytes > 0) {
      copy_async_16_if(is_more && num_scale_bytes > 0, to + S::kScalesAt, scales);
      scales += scales_step;
    }
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t tile_at =
        base + stage_at + S::kWeightsAt + tile_in_block * S::kTileBytes + 16 * lane;
    constexpr int kWhole = S::kTileBytes / 512 * 512;
#pragma unroll
    for (int m = 0; m < Cut::kCopyTiles; ++m) {
      const uint32_t to_tile = tile_at + 4 * m * S::kTileBytes;
      const std::byte* from = weights + tiles[m];
#pragma unroll
      for (int at = 0; at < kWhole; at += 512) copy_async_16_if(is_more, to_tile + at, from + at);
      if constexpr (kWhole < S::kTileBytes)
        copy_async_16_if(is_more && 16 * lane < S::kTileBytes - kWhole, to_tile + kWhole,
                         from + kWhole);
    }
    weights += S::kTileBytes;
    commit_copies();
    ++next_unit;
    stage_at += S::kStageBytes;
    if (stage_at == S::kBytes) stage_at = 0;
  }
};

/// The copies of MmaCopies in parts, for column groups of up to kSteps steps of 8 columns and more
/// than kLess: a warp copies neighbouring runs of 512 bytes of the activations, so that one address
/// serves them all, and few need to be asked whether there are so many.
template <DType F, typename Cut, int kSteps, int kLess>
struct MmaCopyParts {
  using S = MmaShared<F, Cut>;
  static constexpr int kWarps = Cut::kThreads / 32, kRunBytes = 512;
  static constexpr int kRuns =
      ceil_div(8 * kSteps * Cut::kColumnGroups * Cut::kRowBytes / kRunBytes, kWarps);
  static constexpr int kMissing = kWarps * kRuns - 8 * (kLess * Cut::kColumnGroups + 1) *
                                                       Cut::kRowBytes / kRunBytes;  ///< at most
  static constexpr int kBefore = 2048;  // an instruction's offsets are signed
  const std::byte *columns, *weights;
  int64_t columns_step;
  int32_t tiles[Cut::kCopyTiles];
  uint32_t columns_to, weights_to;  // in the stage that is filled
  uint32_t stage_at;
  int num_runs;  // of this warp
  int units_left;

  __device__ __forceinline__ explicit MmaCopyParts(const MmaCopies<F, Cut>& of, int num_columns) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first = warp * kRuns * kRunBytes;
    columns = of.columns - 16 * threadIdx.x + first + 16 * lane + kBefore;
    weights = of.weights;
    columns_step = of.columns_step;
#pragma unroll
    for (int m = 0; m < Cut::kCopyTiles; ++m) tiles[m] = of.tiles[m];
    stage_at = of.stage_at;
    columns_to = of.base + stage_at + first + 16 * lane;
    weights_to = of.base + stage_at + S::kWeightsAt + of.tile_in_block * S::kTileBytes + 16 * lane;
    asm volatile("" : "+r"(columns_to), "+r"(weights_to));
    num_runs = ((num_columns + 7) / 8 * 8 * Cut::kRowBytes - first) / kRunBytes;
    units_left = of.num_units - of.next_unit;
  }
  static constexpr int kParts = 2 * Cut::kCopyTiles + kRuns;
  /// Part i of kParts, the weights first.
  __device__ __forceinline__ void copy(int i) const {
    const bool is_more = units_left > 0;
    if (i < 2 * Cut::kCopyTiles) {
      const int m = i / 2, at = i % 2 * 512;
      static_assert(S::kTileBytes == 544);
      const bool has = i % 2 == 0 || threadIdx.x % 32 < 2;
      copy_async_16_if(is_more && has, weights_to + 4 * m * S::kTileBytes + at,
                       weights + tiles[m] + at);
      return;
    }
    const int run = i - 2 * Cut::kCopyTiles;
    const bool is_sure = run < kRuns - kMissing;
    copy_async_16_if(is_more && (is_sure || run < num_runs), columns_to + kRunBytes * run,
                     columns + (kRunBytes * run - kBefore));
  }
  __device__ __forceinline__ void finish_unit() {
    commit_copies();
    columns += columns_step, weights += S::kTileBytes;
    const uint32_t by =
        stage_at + S::kStageBytes == S::kBytes ? 0u - stage_at : uint32_t{S::kStageBytes};
    stage_at += by, columns_to += by, weights_to += by;
    --units_left;
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

/// sums += this warp's tiles of a unit times its columns, in groups up to the last token's, in
/// BF16. Activations are loaded one step of eight columns ahead of the products that use them.
/// Calls between() once the unit's weights are being loaded.
template <DType F, typename Cut, typename Between>
__device__ __forceinline__ void multiply_unit(Bf16Atom, uint32_t stage, int tile_in_block,
                                              int num_columns, Sums<Cut, Cut::kMostColumns>& sums,
                                              Between&& between) {
  using S = MmaShared<F, Cut>;
  constexpr int kTiles = Cut::kRowTiles, kSteps = Cut::kMostColumns / 8;
  // Matrix i of a load is chunk i of a block of 32 columns of K: the operands of two products.
  const uint32_t lane = threadIdx.x % 32, row = lane % 8;
  const uint32_t first = stage + row * Cut::kRowBytes;
  fragment::Unit<F> units[kTiles];
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
    units[m] = load_operand<F>(stage + S::kWeightsAt +
                               (tile_in_block + Cut::kTileStep * m) * S::kTileBytes);
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    const uint32_t at = first + staged_pair_offset(row, 16 * block + lane / 8);
    uint32_t b[2][4];
    load_matrices(at, b[0]);
    if (block == 0) between();
    uint32_t a[kTiles][8];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) make_operand<F>(units[m], block, a[m]);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (i > 0 && i % Cut::kStepsOfGroup == 0 && 8 * i >= num_columns) break;
      if (i + 1 < kSteps) load_matrices(at + 8 * (i + 1) * Cut::kRowBytes, b[(i + 1) % 2]);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          const uint32_t* of = &a[m][4 * k];
          mma_m16n8k16(reinterpret_cast<float(&)[4]>(sums[m][4 * i]), of[0], of[1], of[2], of[3],
                       b[i % 2][2 * k], b[i % 2][2 * k + 1]);
        }
      }
    }
  }
}

/// All units of an item, in BF16, for kSteps steps of 8 columns: no branch but the loop's. Loads
/// of activations run one or two pairs of steps ahead of their products. So a unit's last pairs are
/// multiplied behind the barrier, while the next unit's weights are decoded and the copies of a
/// later one start.
template <DType F, typename Cut, int kSteps, int kLess>
__device__ __forceinline__ void multiply_units(int num_columns, uint32_t ring, int num_units,
                                               const MmaCopies<F, Cut>& of,
                                               Sums<Cut, Cut::kWarpColumns>& sums) {
  using S = MmaShared<F, Cut>;
  constexpr int kTiles = Cut::kRowTiles, kAhead = kTiles > 2 ? 1 : 2;
  constexpr int kPairs = (kSteps + 1) / 2, kGroups = 2 * kPairs;  // of a block of 32 of K, of both
  const uint32_t lane = threadIdx.x % 32, row = lane % 8;
  const int warp = threadIdx.x / 32;
  uint32_t at = ring + first_column_of_warp<Cut>(warp, num_columns) * Cut::kRowBytes +
                row * Cut::kRowBytes + staged_pair_offset(row, lane / 8);
  uint32_t unit_at = ring + S::kWeightsAt + Cut::tile_of_warp(warp) * S::kTileBytes;
  MmaCopyParts<F, Cut, kSteps, kLess> copies(of, num_columns);
  constexpr int kParts = copies.kParts, kPartsAtOnce = kTiles > 2 ? 6 : 3;
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
      // Block 1's chunk of a row is block 0's with bit 2 flipped.
      const int first = 2 * (i % kPairs);
      const uint32_t from = (i < kPairs ? at : at ^ 64) + 8 * first * Cut::kRowBytes;
#pragma unroll
      for (int s = 0; s < 2 && first + s < kSteps; ++s)
        load_matrices(from + 8 * s * Cut::kRowBytes, b[kAhead][s]);
      // Copies between loads, which so are not all moved to the front.
      const bool is_last = i + 1 == kGroups || kPartsAtOnce * (i + 1) >= kParts;
      if (kPartsAtOnce * i < kParts) {
#pragma unroll
        for (int part = kPartsAtOnce * i; part < (is_last ? kParts : kPartsAtOnce * (i + 1));
             ++part)
          copies.copy(part);
        if (is_last) copies.finish_unit();
      }
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
template <DType F, typename Cut, int kLess = 0>
__device__ __forceinline__ void multiply_units_of(int num_columns, uint32_t ring, int num_units,
                                                  const MmaCopies<F, Cut>& copies,
                                                  Sums<Cut, Cut::kWarpColumns>& sums) {
  constexpr int kMost = Cut::kWarpColumns / 8;
  constexpr int kFew = kMost > 9 ? 4 : 2;  // up to 2 kFew in steps of two
  constexpr int kSteps = kLess == 0 ? kFew : kLess < 2 * kFew ? kLess + 2 : kLess + 1;
  if constexpr (kSteps < kMost) {
    if (num_columns > 8 * kSteps * Cut::kColumnGroups)
      return multiply_units_of<F, Cut, kSteps>(num_columns, ring, num_units, copies, sums);
  }
  multiply_units<F, Cut, kSteps, kLess>(num_columns, ring, num_units, copies, sums);
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

/// The same in an MX format, two products of a block of 32 columns.
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

/// The kernel: block i takes item i. Task: as of product_kernel, with `element` for MX atoms, and
///   template <Cut, int kColumns> void finish(const Item&, int tile, sums, void* shared)
/// which all warps call at once, and whose kSharedBytes<Cut> lie where the ring was.
template <DType F, typename Cut, typename Task>
__global__ void __launch_bounds__(Cut::kThreads, Cut::kBlocks)
    product_mma_kernel(const __grid_constant__ Task task) {
  using S = MmaShared<F, Cut>;
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  wait_for_previous();
  launch_next();
  Item item;
  if (!task.item(blockIdx.x, item)) return;
  const int warp = threadIdx.x / 32;
  const int tile_in_block = Cut::tile_of_warp(warp);
  const int copied_in_block = Cut::copied_tile_of_warp(warp);
  const int tile = item.first_tile + tile_in_block, copied = item.first_tile + copied_in_block;
  const int num_units = (task.weight.cols + kStagedColumns - 1) / kStagedColumns;
  // Kept in a register: the compiler would compute it anew for each unit.
  uint32_t ring = shared_address(shared_bytes);
  asm volatile("" : "+r"(ring));
  const int first_byte = 16 * threadIdx.x, num_columns = (item.num_columns + 7) / 8 * 8;
  MmaCopies<F, Cut> copies{
      .base = ring,
      .columns = task.staged.data + Cut::kRowBytes * int64_t{item.first_column} + first_byte,
      .columns_step = Cut::kRowBytes * int64_t{task.staged.capacity},
      .num_column_bytes = Cut::kRowBytes * num_columns - first_byte,
      .scales =
          task.staged.scales + Cut::Atom::kScaleBytes * int64_t{item.first_column} + first_byte,
      .scales_step = Cut::Atom::kScaleBytes * int64_t{task.staged.capacity},
      .num_scale_bytes = Cut::Atom::kScaleBytes * num_columns - first_byte,
      .weights = tile_of<F>(task.weight, num_units, item.expert, copied) + 16 * (threadIdx.x % 32),
      .tiles = {},
      .tile_in_block = copied_in_block,
      .num_units = num_units};
#pragma unroll
  for (int m = 1; m < Cut::kCopyTiles; ++m)
    copies.tiles[m] =
        static_cast<int32_t>(tile_of<F>(task.weight, num_units, item.expert, copied + 4 * m) -
                             tile_of<F>(task.weight, num_units, item.expert, copied));
  Sums<Cut, Cut::kWarpColumns> sums;
#pragma unroll
  for (int m = 0; m < Cut::kRowTiles; ++m) {
#pragma unroll
    for (int i = 0; i < Cut::kWarpColumns / 2; ++i) sums[m][i] = 0;
  }
#pragma unroll 1
  for (int u = 0; u < S::kStages - 1; ++u) copies.fill();
  if constexpr (kRunsAhead<F, Cut>) {
    multiply_units_of<F, Cut>(item.num_columns, ring, num_units, copies, sums);
  } else {
    uint32_t stage = 0;
#pragma unroll 1
    for (int u = 0; u < num_units; ++u) {
      wait_for_copies<S::kStages - 2>();
      __syncthreads();  // all copies of this unit are there, and all have read the unit before
      if constexpr (std::is_same_v<typename Cut::Atom, Bf16Atom>) {
        multiply_unit<F, Cut>(Bf16Atom(), ring + stage, tile_in_block, item.num_columns, sums,
                              [&] { copies.fill(); });
      } else {
        copies.fill();
        multiply_unit<F, Cut>(task.element, typename Cut::Atom(), shared_bytes + stage,
                              tile_in_block, item.num_columns, sums);
      }
      stage += S::kStageBytes;
      if (stage == S::kBytes) stage = 0;
    }
  }
  wait_for_copies<0>();
  __syncthreads();  // the ring's memory is the end's now
  task.template finish<Cut, Cut::kWarpColumns>(item, tile, sums, shared_bytes);
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
