// What products with many tokens share on Hopper: items end while the next ones are multiplied.
//
// A block has 128 rows of the weights and 256 columns (tokens). One warp copies operands, two
// warpgroups multiply, and three warps end items. They read an item's sums from shared memory, in
// 16 bits, a column at a time: lanes side by side read and write what lies side by side in memory.
// All blocks would end their items at the same time and wait for memory together: if the warps that
// multiply ended them, a third of the time.
#pragma once

#include "kernels/gemm/dense.cuh"

namespace moxie::gemm {

/// How a block is cut.
struct WideBlock {
  static constexpr int kWarpgroups = 2;  ///< that multiply 64 rows each
  static constexpr int kRows = 128, kColumns = 256;
  // A warp that copies and three that end items; then two warpgroups that multiply. With a fourth
  // warpgroup ptxas has no registers for 256 columns.
  static constexpr int kThreads = 384, kFirstEnd = 32, kFirstMath = 128, kEndWarps = 3;
  static constexpr int kLaunchRegisters = 168;
  static constexpr int kSumsBytes = kColumns * kRows * 2;
};

/// What ends need to know of a block's columns.
struct WideColumns {
  float scale[WideBlock::kColumns];       // of sums in BF16
  int32_t position[WideBlock::kColumns];  // of qkv
  int64_t place[WideBlock::kColumns];     // in the cache, of a head; of qkv
};

/// Sums that wait for their end, and their barriers.
struct WideEnds {
  alignas(1024) std::byte sums[WideBlock::kSumsBytes];
  WideColumns columns;
  uint64_t full, empty;
};

/// How sums wait for their end; in FP16 kHalfScale of their values.
enum class SumsAs : uint8_t { kBf16, kF16 };

/// The sums of a block. A column's rows are 256 bytes, chunks of eight rows exclusive-or'd with the
/// column modulo 8.
template <SumsAs kAs>
struct WideSums {
  std::byte* sums;
  const float* scales;  // of the columns; of sums in BF16

#ifdef __CUDACC__
  /// Rows `row`, a multiple of 2, and row + 1.
  __device__ __forceinline__ float2 two(int column, int row) const {
    const float2 v = values(*reinterpret_cast<const uint32_t*>(at(column, row)));
    const float scale = scale_of(column);
    return make_float2(v.x * scale, v.y * scale);
  }
  /// Rows `row`, a multiple of 4, to row + 3.
  __device__ __forceinline__ float4 four(int column, int row) const {
    const uint2 pairs = *reinterpret_cast<const uint2*>(at(column, row));
    const float2 a = values(pairs.x), b = values(pairs.y);
    const float scale = scale_of(column);
    return make_float4(a.x * scale, a.y * scale, b.x * scale, b.y * scale);
  }

  /// A column's 256 bytes, where an end that has read them may put what it leaves.
  __device__ __forceinline__ std::byte* line(int column) const { return sums + 256 * column; }

 private:
  __device__ __forceinline__ float scale_of(int column) const {
    return kAs == SumsAs::kF16 ? 1.0f / kHalfScale : scales[column];
  }
  __device__ __forceinline__ const std::byte* at(int column, int row) const {
    return line(column) + 16 * (row / 8 ^ column % 8) + 2 * (row % 8);
  }
  __device__ __forceinline__ static float2 values(uint32_t pair) {
    if constexpr (kAs == SumsAs::kF16) return __half22float2(*reinterpret_cast<__half2*>(&pair));
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & ~0xFFFFu));
  }
#endif
};
/// What the ends of a block's item take. Rows and columns are the matrix's.
template <SumsAs kAs>
struct WideEnded {
  /// Beside operands in registers ends have fewer.
  static constexpr bool kIsTight = kAs == SumsAs::kF16;
  WideSums<kAs> sums;
  const WideColumns& columns;
  int expert, first_row, first_column, num_columns;
  int warp;  // of WideBlock::kEndWarps that share the columns
};
/// Where an item is.
struct WidePlace {
  int32_t expert, row, column, num_columns;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/// Leaves a warp's sums of tile `tile` of the block; kWidth columns. value(row_half, sum): what is
/// left of a sum of row g (0) or g + 8 (1).
template <SumsAs kAs, int kWidth, typename Sum, typename Value>
__device__ __forceinline__ void leave_sums(WideEnds& ends, uint32_t tile, const Sum* sums,
                                           const Value& value) {
  // Where this lane's row of an 8 x 8 matrix goes: the four matrices are two blocks of eight
  // columns times both halves of the tile.
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t in_block = lane % 8, half_of_lane = lane / 8 % 2, block_of_lane = lane / 16;
  const uint32_t lane_at = shared_address(ends.sums) + (8 * block_of_lane + in_block) * 256 +
                           16 * ((2 * tile + half_of_lane) ^ in_block);
#pragma unroll
  for (int block = 0; block < kWidth / 8; block += 2) {
    uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const Sum* d = &sums[4 * (block + j / 2) + 2 * (j % 2)];
      const float low = value(j % 2, d[0]), high = value(j % 2, d[1]);
      if constexpr (kAs == SumsAs::kF16) {
        const __half2 pair = __floats2half2_rn(low, high);
        words[j] = *reinterpret_cast<const uint32_t*>(&pair);
      } else {
        words[j] = pack_bf16(low, high);
      }
    }
    store_transposed(lane_at + 8 * block * 256, words);
  }
}

/// Ends items first, first + step, ... End: void look_up(WideColumns&, int column, int token, int
/// first_row) for a column of the block, then store(const WideEnded&). place(i): of an item;
/// scale(column): of a column of the matrix; not asked for where sums are in FP16.
template <SumsAs kAs, typename End, typename Place, typename ScaleOf>
__device__ __forceinline__ void end_items(const End& end, WideEnds& ends, int32_t first,
                                          int32_t step, int32_t num_items, int32_t rows,
                                          const Place& place, const ScaleOf& scale) {
  using W = WideBlock;
  constexpr int kEndBarrier = 1, kEndThreads = 32 * W::kEndWarps;
  const int thread = static_cast<int>(threadIdx.x) - W::kFirstEnd;
  uint32_t parity = 0;
  for (int32_t i = first; i < num_items; i += step, parity ^= 1) {
    const WidePlace at = place(i);
    barrier_wait(kEndBarrier, kEndThreads);  // all have ended the previous item
    for (int column = thread; column < at.num_columns; column += kEndThreads) {
      if constexpr (kAs == SumsAs::kBf16) ends.columns.scale[column] = scale(at.column + column);
      end.look_up(ends.columns, column, at.column + column, at.row);
    }
    barrier_wait(kEndBarrier, kEndThreads);
    wait_barrier(&ends.full, parity);
    if (at.row < rows) {
      end.store(WideEnded<kAs>{.sums = {ends.sums, ends.columns.scale},
                               .columns = ends.columns,
                               .expert = at.expert,
                               .first_row = at.row,
                               .first_column = at.column,
                               .num_columns = at.num_columns,
                               .warp = thread / 32});
    }
    arrive_barrier(&ends.empty);
  }
}

#endif

}  // namespace moxie::gemm
