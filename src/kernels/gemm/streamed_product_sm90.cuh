// Products on Hopper of the experts, and of dense layers with many tokens. For few columns they are
// limited by reading the weights from memory, and almost as much by the instructions that make
// operands of them. In 8 bits wgmma keeps some 13 bits of a sum after the first of its greatest
// addend.
//
// As product_sm90.cuh, but one warpgroup copies both operands, a batch of units at a time. These
// units of a tile are contiguous for each of the block's tiles. The warps that multiply only wait,
// make operands and start products. What a tile's end reads is loaded when the item begins: at its
// end all warps would wait for the same memory.
//
// A warp that starts products stands still until the tensor cores have taken the last of them: it
// makes an operand while the other warpgroups' products run. So with two warpgroups the products of
// one operand should take at least as long as making it, some 250 clocks: 128 columns or more.
//
// Items of at most 16 columns can be multiplied by mma.sync (kHasFew): the codes enter as BF16 of
// 2^-126 of their values, the activations, staged so, times 2^96, and the sums of each block of 32
// columns are multiplied by the block's scale in F32. That is some 60 instructions of a warp a unit
// for 8 columns and 75 for 16, where wgmma, whose operand the scale is part of, takes 93 for 16.
//
// Per unit of 64 columns and SM: 8.5 KiB of MXFP4, which memory delivers in 450 clocks; 16 warps of
// these instructions, 240 or 300 issue slots of four schedulers.
#pragma once

#include <algorithm>
#include <utility>

#include "kernels/gemm/product_sm90.cuh"
#include "kernels/matrices.cuh"

namespace moxie::gemm {

/// How a block is cut: four tiles of 16 rows for each warpgroup, kColumns columns. kHasFew: as
/// above; the activations are 2^96 of their values. kIsWide: two warpgroups, whose threads have
/// registers for 256 columns and two operands.
template <int kColumns, bool kHasFew_, DType kActivation = DType::kBF16, int kWarpgroups = 4>
struct StreamedCut : CutOf<kWarpgroups, false, kColumns, kActivation> {
  static constexpr bool kHasFew = kHasFew_;
  static constexpr int kTiles = 4 * kWarpgroups;
  static constexpr bool kIsWide = kActivation == DType::kBF16 && kWarpgroups == 2;
  /// Units of a batch: 45 units of 2,880 columns are nine batches of five.
  static constexpr int kBatchUnits = kColumns <= 16 ? 5 : kIsWide && kColumns > 128 ? 1 : 3;
};
/// Of a matrix of very many rows, up to kColumns at a time.
template <int kColumns>
using ManyRowsCut = StreamedCut<kColumns, false, DType::kBF16, 2>;
using WideCut = ManyRowsCut<256>;
static_assert(WideCut::kMathRegisters == 240, "two warpgroups of 128 sums a thread");
/// What raises the activations of a cut, and what restores the sums.
template <DType F, typename Cut>
inline constexpr float kStreamedRaise = Cut::kHasFew ? fragment::kActivationScale<F> : 1.0f;
template <DType F, typename Cut>
inline constexpr float kStreamedScale = kProductScale<F> / kStreamedRaise<F, Cut>;
template <typename Cut>
inline constexpr bool kIsStreamed = false;
template <int kColumns, bool kHasFew, DType kActivation, int kWarpgroups>
inline constexpr bool kIsStreamed<StreamedCut<kColumns, kHasFew, kActivation, kWarpgroups>> = true;

/// From the scale of sums whose operand is codes to that of wgmma's sums.
template <DType F>
inline constexpr float kFewToOthers = fragment::power_of_two(fragment::Format<F>::kUnit -
                                                             Operand<F>::kShift);

template <DType F, typename Cut>
struct StreamedShared {
  static constexpr int kUnits = Cut::kBatchUnits, kColumns = Cut::kMostColumns;
  static constexpr bool kHasLines = true;  ///< a batch's copy starts at a line of 128 bytes
  // A batch with what is before it in its line of 128 bytes.
  static constexpr int kBatchBytes = kUnits * fragment::kUnitBytes<F>;
  static constexpr int kTileBytes =
      (kBatchBytes + (kBatchBytes % 128 > 0 ? 96 : 0) + 127) / 128 * 128;
  static constexpr bool kIsLarge = kColumns > (Cut::kActivation == DType::kBF16 ? 64 : 144);
  // With kHasFew a column of zeros follows, for those that an item lacks.
  static constexpr int kUnitColumns = kColumns + (Cut::kHasFew ? 1 : 0);
  static constexpr int kStageBytes =
      kUnits * Cut::kRowBytes * kUnitColumns + Cut::kTiles * kTileBytes;
  static constexpr int kStages = Cut::kIsWide ? std::min(5, 192 * 1024 / kStageBytes)
                                 : kIsLarge   ? 3
                                              : 4;
  alignas(1024) std::byte columns[kStages][kUnits][Cut::kRowBytes * kUnitColumns];
  alignas(128) std::byte weights[kStages][Cut::kTiles][kTileBytes];
  uint64_t full[kStages], empty[kStages];
  // Items that are copied or multiplied, since they are at most kStages batches apart.
  static constexpr int kItems = 2 * kStages;
  Item items[kItems];
  int widths[kItems];  // if the kernel has several
};

#ifdef __CUDACC__

/// Offsets that turn the codes of the scales of rows g and g + 8 into the exponent fields of FP16
/// factors, in the halves of a word: blocks whose scale is their row's greatest get the greatest
/// factor.
__device__ __forceinline__ uint32_t folding_offsets(int2 greatest) {
  return __byte_perm(static_cast<uint32_t>(kGreatestFold - greatest.x),
                     static_cast<uint32_t>(kGreatestFold - greatest.y), 0x5410);
}
/// Rows g and g + 8 of a unit of MXFP4 as two operands of 32 columns in E5M2: 2^-kFoldedTop of
/// their values over their row's greatest scale. Bit operations make codes FP16 of 2^-14 of their
/// values. These are multiplied by the scale, an exact power of two; the high byte of the product
/// is E5M2. Scales more than kFoldedOctaves below the greatest lose bits, and still lower ones
/// become zero.
__device__ __forceinline__ void make_operand_e5m2(const fragment::Unit<DType::kMXFP4>& unit,
                                                  uint32_t offsets, uint32_t (&a)[8]) {
  constexpr uint32_t kMagnitude = 0x0E000E00u, kSigns = 0x80808080u;
  constexpr uint32_t kBoth = 0x00010001u, kHighBytes = 0x7531;
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    const uint32_t exponents = __byte_perm(unit.scales[0], 0, block == 0 ? 0x4140 : 0x4342);
    const uint32_t bits = __viaddmin_s16x2_relu(exponents, offsets, kBoth * kGreatestFold) << 10;
    const __half2 scales = *reinterpret_cast<const __half2*>(&bits);
    const uint4& c = unit.codes[0];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t w = block == 0 ? (half == 0 ? c.x : c.y) : (half == 0 ? c.z : c.w);
      const __half2 scale = half == 0 ? __low2half2(scales) : __high2half2(scales);
      const auto scaled = [&](uint32_t magnitude) {
        const __half2 value = __hmul2(*reinterpret_cast<const __half2*>(&magnitude), scale);
        return *reinterpret_cast<const uint32_t*>(&value);
      };
      const uint32_t by3 = w << 3, by6 = w << 6;
      const uint32_t first =
          __byte_perm(scaled(by3 & kMagnitude), scaled(by6 & kMagnitude), kHighBytes);
      const uint32_t second =
          __byte_perm(scaled(w << 9 & kMagnitude),
                      scaled((w & 0x0C000C00u) | (w >> 5 & 0x02000200u)), kHighBytes);
      a[4 * block + half] = first | (__byte_perm(w, by3, kHighBytes) & kSigns);
      a[4 * block + 2 + half] = second | (__byte_perm(by6, w << 2, kHighBytes) & kSigns);
    }
  }
}

/// One unit of a tile as wgmma's operand, and its products.
template <DType F, typename Cut, int kColumns>
struct StreamedOperand {
  static constexpr bool kIsE4m3 = Cut::kActivation == DType::kF8E4M3;
  uint32_t a[kIsE4m3 ? 8 : 16];

  /// offsets: E4M3 only, folding_offsets of the tile.
  __device__ __forceinline__ void make(const std::byte* unit, [[maybe_unused]] uint32_t offsets) {
    if constexpr (kIsE4m3) {
      make_operand_e5m2(read_operand<F>(unit), offsets, a);
    } else {
      make_operand<F>(read_operand<F>(unit), a);
    }
  }
  /// columns: the descriptor of the unit's columns.
  __device__ __forceinline__ void multiply(float* sums, uint64_t columns) {
    wgmma_fence();
    if constexpr (kIsE4m3) {
      // More columns than one wgmma takes are two wgmma with the same operand.
      constexpr int kParts = kColumns > 256 ? 2 : 1, kPart = kColumns / kParts;
      static_assert(kColumns % (8 * kParts) == 0);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          wgmma_fp8<kPart>(&sums[part * kPart / 2], &a[4 * k],
                           columns + 32 / 16 * k + part * kPart * Cut::kRowBytes / 16);
        }
      }
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k) wgmma_bf16<kColumns>(sums, &a[4 * k], columns + 32 / 16 * k);
    }
    wgmma_commit();
  }
};

/// A stage of the ring and the phase of its barriers. `place`: batches before. It must be computed
/// alike on all paths, since the compiler has wgmma's descriptors in uniform registers only then.
template <typename S>
struct RingPlace {
  uint32_t stage, phase;
  __device__ __forceinline__ explicit RingPlace(uint32_t place)
      : stage(place % S::kStages), phase(place / S::kStages % 2) {}
};
/// How far weights are behind the start of their line of 128 bytes, where their copy starts: bulk
/// copies from other addresses lose a tenth of the memory's rate.
__device__ __forceinline__ uint32_t over_line(const std::byte* weights) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(weights)) % 128;
}
template <typename S>
__device__ __forceinline__ void give_back(S& shared, uint32_t stage) {
  // Each lane arrives for itself: race checkers accept no other lane's arrival for its reads.
  fence_bulk_copies();
  arrive_barrier(&shared.empty[stage]);
}

/// A tile's products with up to kColumns columns by wgmma; its warpgroup's other warps do theirs. A
/// warp whose tile the item lacks multiplies what is in the ring. `place`: batches before the item;
/// `over`: over_line of the tile; `offsets`: E4M3 only, folding_offsets of the tile.
template <DType F, int kColumns, typename S, typename Cut>
__device__ __forceinline__ void multiply_streamed(S& shared, uint32_t place, int num_units,
                                                  int block_tile, uint32_t over, uint32_t offsets,
                                                  Sums<Cut, kColumns>& sums) {
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) sums[0][i] = 0;
  // Two alternating operands if registers allow it: one is made while the products of the other
  // run.
  using UnitOperand = StreamedOperand<F, Cut, kColumns>;
  constexpr int kBatch = S::kUnits;
  constexpr int kOperands = kColumns <= 32 || UnitOperand::kIsE4m3 || Cut::kIsWide ? 2 : 1;
  UnitOperand operands[kOperands];
  int last_stage = -1;
  const auto multiply = [&](const std::byte* unit, uint64_t columns, UnitOperand& operand) {
    operand.make(unit, offsets);
    operand.multiply(sums[0], columns);
  };
  constexpr int kUnit = fragment::kUnitBytes<F>;
  constexpr uint64_t kUnitOfColumns = sizeof(shared.columns[0][0]) / 16;
  // A whole batch, whose first operand is a[kFirst].
  const auto multiply_batch = [&]<int kFirst>() {
    const RingPlace<S> at(place);
    const std::byte* units = shared.weights[at.stage][block_tile] + over;
    const uint64_t columns = tile_descriptor<Cut::kRowBytes>(shared.columns[at.stage][0]);
    wait_barrier(&shared.full[at.stage], at.phase);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      wgmma_wait<kOperands - 1>();  // the previous products with this operand
      // All of the previous batch is read.
      if (i == kOperands - 1 && last_stage >= 0) give_back(shared, last_stage);
      multiply(units + i * kUnit, columns + i * kUnitOfColumns, operands[(kFirst + i) % kOperands]);
    }
    if constexpr (kBatch < kOperands) {
      wgmma_wait<1>();
      if (last_stage >= 0) give_back(shared, last_stage);
    }
    last_stage = static_cast<int>(at.stage);
    ++place;
    if constexpr (S::kHasLines) over = (over + kBatch * kUnit) % 128;
  };
  const int batches = num_units / kBatch, rest = num_units % kBatch;
#pragma unroll 1
  for (int pair = 0; pair < batches / 2; ++pair) {
    multiply_batch.template operator()<0>();
    multiply_batch.template operator()<kBatch % kOperands>();
  }
  if (batches % 2 == 1) multiply_batch.template operator()<0>();
  wgmma_wait<0>();
  if (last_stage >= 0) give_back(shared, last_stage);
  if (rest > 0) {
    const RingPlace<S> at(place);
    wait_barrier(&shared.full[at.stage], at.phase);
#pragma unroll 1
    for (int i = 0; i < rest; ++i) {
      multiply(shared.weights[at.stage][block_tile] + over + i * kUnit,
               tile_descriptor<Cut::kRowBytes>(shared.columns[at.stage][i]), operands[0]);
      wgmma_wait<0>();
    }
    give_back(shared, at.stage);
  }
}

/// The same by mma.sync, of num_columns columns. has_tile: whether the item has this warp's tile.
template <DType F, int kColumns, typename S, typename Cut>
__device__ __forceinline__ void multiply_few(S& shared, uint32_t place, int num_units,
                                             int num_columns, int block_tile, uint32_t over,
                                             bool has_tile, Sums<Cut, kColumns>& sums) {
  constexpr int kBatch = S::kUnits, kUnit = fragment::kUnitBytes<F>;
  constexpr int kUnitOfColumns = sizeof(shared.columns[0][0]);
  const uint32_t lane = threadIdx.x % 32, row = lane % 8, matrix = lane / 8;
  // Where a lane's part of eight columns and a block of 32 rows is: products of zeros take less
  // energy than those of what earlier items left.
  uint32_t parts[kColumns / 8][2];
#pragma unroll
  for (int i = 0; i < kColumns / 8; ++i) {
    const bool has_column = 8 * i + static_cast<int>(row) < num_columns;
    const uint32_t column = has_column ? 8 * i + row : Cut::kMostColumns;
#pragma unroll
    for (int block = 0; block < 2; ++block)
      parts[i][block] = column * kStagedRowBytes + 16 * ((4 * block + matrix) ^ row);
  }
#pragma unroll
  for (float& sum : sums[0]) sum = 0;
  const auto multiply = [&](const std::byte* at, uint32_t columns) {
    const fragment::Unit<F> unit = read_operand<F>(at);
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      uint32_t top[4], bottom[4];
      fragment::decode<F>(unit, block, 0, 0, top);
      fragment::decode<F>(unit, block, 1, 0, bottom);
      const float of_top = fragment::scale_of<F>(unit, block, 0),
                  of_bottom = fragment::scale_of<F>(unit, block, 1);
#pragma unroll
      for (int i = 0; i < kColumns / 8; ++i) {
        uint32_t b[4];
        load_matrices(columns + parts[i][block], b);
        float products[4] = {};
        mma_m16n8k16(products, top[0], bottom[0], top[1], bottom[1], b[0], b[1]);
        mma_m16n8k16(products, top[2], bottom[2], top[3], bottom[3], b[2], b[3]);
        float* d = &sums[0][4 * i];
        d[0] += products[0] * of_top;
        d[1] += products[1] * of_top;
        d[2] += products[2] * of_bottom;
        d[3] += products[3] * of_bottom;
      }
    }
  };
#pragma unroll 1
  for (int u = 0; u < num_units; u += kBatch, ++place) {
    const RingPlace<S> at(place);
    const std::byte* units = shared.weights[at.stage][block_tile] + over;
    const uint32_t columns = shared_address(shared.columns[at.stage][0]);
    wait_barrier(&shared.full[at.stage], at.phase);
    if (has_tile && u + kBatch <= num_units) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) multiply(units + i * kUnit, columns + i * kUnitOfColumns);
    } else if (has_tile) {
#pragma unroll 1
      for (int i = 0; i < num_units - u; ++i)
        multiply(units + i * kUnit, columns + i * kUnitOfColumns);
    }
    give_back(shared, at.stage);
    over = (over + kBatch * kUnit) % 128;
  }
  // To the scale that wgmma's sums have, whose operand is 2^-kShift of its values.
#pragma unroll
  for (float& sum : sums[0]) sum *= kFewToOthers<F>;
}

/// What stands for the columns that an item lacks: products of zeros take less energy than those of
/// what earlier items left, and long prompts are limited by power.
struct ZeroColumns {
  static constexpr int kBytes = 256 * 128;
  uint4 zeros[kBytes / sizeof(uint4)];
};
static __device__ const ZeroColumns kZeroColumns = {};

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

/// The kernel. kWidths ascend; the last is the most columns of an item. With several, each item
/// takes the least that its width fits, and items come from the widest to the narrowest. A Task as
/// product_kernel's, that also has
///   items.count(), items.at(i)    the launch's items
///   items.width(i)                at least an item's columns, if there are several widths
///   items.tiles_a_block           of an item, at most 16
///   auto begin<kColumns>(const Item&, int tile)   loads what the tile's end reads
///   finish<Cut, kColumns>(const Item&, tile, sums, shared, what begin() gave)
///   kEndsAlone    finish() waits for no other warp, and is not called for tiles that an item lacks
template <DType F, typename Cut, typename Task, int... kWidths>
__global__ void __launch_bounds__(Cut::kThreads, 1)
    streamed_product_kernel(const __grid_constant__ Task task) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using S = StreamedShared<F, Cut>;
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<S*>(shared_bytes);
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      init_barrier(&shared.full[i], Cut::kTiles + S::kUnits);
      init_barrier(&shared.empty[i], 32 * Cut::kTiles);
    }
  }
  constexpr int kUnit = fragment::kUnitBytes<F>, kBatch = S::kUnits, kColumns = Cut::kMostColumns;
  constexpr bool kHasWidths = sizeof...(kWidths) > 1;
  if constexpr (Cut::kHasFew) {
    constexpr int kChunks = Cut::kRowBytes / sizeof(uint4);
    for (int i = threadIdx.x; i < S::kStages * kBatch * kChunks; i += Cut::kThreads) {
      auto* unit = shared.columns[i / (kBatch * kChunks)][i / kChunks % kBatch];
      reinterpret_cast<uint4*>(unit + Cut::kRowBytes * kColumns)[i % kChunks] = {};
    }
  }
  __syncthreads();
  const int num_units = (task.weight.cols + 63) / 64, all_tiles = (task.weight.rows + 15) / 16;
  const int num_items = task.items.count(), step = static_cast<int>(gridDim.x);
  const auto tiles_of = [&](const Item& item) {
    return min(task.items.tiles_a_block, all_tiles - item.first_tile);
  };
  const int first = static_cast<int>(blockIdx.x);
  uint32_t place = 0;
  if (threadIdx.x < 128) {
    give_registers<Cut::kCopyRegisters>();
    // Three warps start the copies of four to six tiles each (one warp could not start copies fast
    // enough), a fourth those of the activations. Only the fourth waits for the previous kernel:
    // the items were known when that kernel began, and weights never change.
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool has_columns = warp == 3;
    constexpr int kOthers = Cut::kTiles / 3, kFirst = Cut::kTiles - 2 * kOthers;
    const int of_warp = has_columns ? kBatch : warp == 0 ? kFirst : kOthers;
    const int number = lane + (warp == 1 ? kFirst : warp == 2 ? kFirst + kOthers : 0);
    if (lane >= of_warp) return;
    if (has_columns) {
      wait_for_previous();
      launch_next();
    }
    constexpr int64_t kRowBytes = Cut::kRowBytes;
    constexpr uint32_t kAllBytes = sizeof(shared.columns[0][0]);
    static_assert(kHasWidths || kAllBytes <= ZeroColumns::kBytes);
    const int64_t unit_stride = kRowBytes * task.staged.capacity;
    uint32_t number_of_item = 0;
    for (int i = first; i < num_items; i += step, ++number_of_item) {
      const Item item = task.items.at(i);
      const bool has_copy = has_columns || number < tiles_of(item);
      const uint32_t column_bytes = kRowBytes * ((item.num_columns + 7) / 8 * 8);
      const std::byte* from =
          has_columns ? task.staged.data + kRowBytes * item.first_column + number * unit_stride
                      : tile_of<F>(task.weight, num_units, item.expert, item.first_tile + number);
#pragma unroll 1
      for (int u = 0; u < num_units; u += kBatch, ++place) {
        const RingPlace<S> at(place);
        const int count = min(kBatch, num_units - u);
        wait_barrier(&shared.empty[at.stage], at.phase ^ 1);  // empty from the start
        uint64_t* full = &shared.full[at.stage];
        // Each thread counts its own bytes.
        if (has_columns) {
          if (lane == 0 && u == 0) {
            shared.items[number_of_item % S::kItems] = item;
            if constexpr (kHasWidths)
              shared.widths[number_of_item % S::kItems] = task.items.width(i);
          }
          const uint32_t bytes = number < count ? column_bytes : 0;
          // Each stage once. For few columns the copies take more energy than they save, and where
          // there are several widths an item lacks few columns.
          const bool clears = !Cut::kHasFew && !kHasWidths && bytes > 0 && u < S::kStages * kBatch;
          const uint32_t cleared = clears ? kAllBytes - bytes : 0;
          expect_bytes(full, bytes + cleared);
          std::byte* to = shared.columns[at.stage][number];
          if (bytes > 0) copy_bulk(to, from, bytes, full);
          if (cleared > 0)
            copy_bulk(to + bytes, reinterpret_cast<const std::byte*>(&kZeroColumns), cleared, full);
          from += kBatch * unit_stride;
        } else {
          const uint32_t over = over_line(from), bytes = has_copy ? count * kUnit + over : 0;
          expect_bytes(full, bytes);
          if (bytes > 0) copy_bulk(shared.weights[at.stage][number], from - over, bytes, full);
          from += kBatch * kUnit;
        }
      }
    }
    return;
  }
  take_registers<Cut::kMathRegisters>();
  const int block_tile = threadIdx.x / 32 - 4;
  uint32_t number_of_item = 0;
  // An item is known when its first batch is there.
  const auto wait_for_item = [&] {
    const RingPlace<S> at(place);
    wait_barrier(&shared.full[at.stage], at.phase);
    return number_of_item % S::kItems;
  };
  const auto run = [&]<int kWidth>(const Item& item, int tile, bool has_tile)
      __attribute__((always_inline)) {
    const uint32_t over = over_line(tile_of<F>(task.weight, num_units, item.expert, tile));
    const auto ends = task.template begin<kWidth>(item, tile);
    Sums<Cut, kWidth> sums;
    if constexpr (Cut::kHasFew) {
      multiply_few<F, kWidth, S, Cut>(shared, place, num_units, item.num_columns, block_tile, over,
                                      has_tile, sums);
    } else {
      uint32_t offsets = 0;
      if constexpr (Cut::kActivation == DType::kF8E4M3)
        offsets = folding_offsets(greatest_scales_of(task.weight, item.expert, tile));
      multiply_streamed<F, kWidth, S, Cut>(shared, place, num_units, block_tile, over, offsets,
                                           sums);
    }
    if (has_tile || !Task::kEndsAlone)
      task.template finish<Cut, kWidth>(item, tile, sums, shared_bytes + sizeof(S), ends);
  };
  const int batches = (num_units + kBatch - 1) / kBatch;
  if constexpr (kHasWidths) {
    int i = first;
    for_each_width<kWidths...>([&]<int kWidth, int kBelow>() __attribute__((always_inline)) {
      for (; i < num_items; i += step, ++number_of_item, place += batches) {
        const uint32_t number = wait_for_item();
        if (shared.widths[number] <= kBelow) break;
        const Item item = shared.items[number];
        run.template operator()<kWidth>(item, item.first_tile + block_tile,
                                        block_tile < tiles_of(item));
      }
    });
  } else {
    for (int i = first; i < num_items; i += step, ++number_of_item) {
      const Item item = shared.items[wait_for_item()];
      const int tile = item.first_tile + block_tile;
      const bool has_tile = block_tile < tiles_of(item);
      if constexpr (Cut::kHasFew && kColumns > 8) {
        item.num_columns <= 8 ? run.template operator()<8>(item, tile, has_tile)
                              : run.template operator()<kColumns>(item, tile, has_tile);
      } else {
        run.template operator()<kColumns>(item, tile, has_tile);
      }
      place += batches;
    }
  }
  task.drain();
#endif
}

#endif  // __CUDACC__

}  // namespace moxie::gemm
