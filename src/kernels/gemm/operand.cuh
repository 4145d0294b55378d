// The operand that all products over many tokens make of packed weights: read in the order of their
// fragments and converted to BF16 in registers, as mma.m16n8k16 and wgmma take their first operand.
#pragma once

#include "kernels/gemv/fragment_gemv.cuh"

namespace moxie::gemm {

/// One piece of work: `num_columns` staged rows from first_column (a multiple of 8) on, times the
/// rows of a block, of one expert, from tile first_tile on.
struct Item {
  int expert, first_tile, first_column, num_columns;
};

/// How each format's weights enter the products.
template <DType F>
struct Operand;
template <>
struct Operand<DType::kMXFP4> {
  // Codes are 2^-126 of their values; scales above 2^33 make infinities.
  static constexpr int kShift = 32, kBias = 126 - kShift;
};
template <>
struct Operand<DType::kMXFP8> {
  static constexpr int kShift = 32, kBias = 120 - kShift;
};
template <>
struct Operand<DType::kBF16> {
  static constexpr int kShift = 0, kBias = 0;
};
template <DType F>
inline constexpr float kProductScale = fragment::power_of_two(Operand<F>::kShift);

/// Folding scales into E5M2 operands: the exponent field of the greatest FP16 factor, 2^15. The
/// operand of a code with the greatest scale is the code times 2^kFoldedTop. With a scale
/// kFoldedOctaves (greatest_scales_cuda.h) below it, 0.5 is still E5M2's least value, 2^-16.
inline constexpr int kGreatestFold = 30, kFoldedTop = 1;

#ifdef __CUDACC__

/// A lane's sums of kColumns columns.
template <typename Cut, int kColumns>
using Sums = float[Cut::kRowTiles][kColumns / 2];

/// Unit 0 of a tile of an expert; of the last tile for tiles past the end.
template <DType F>
__device__ __forceinline__ const std::byte* tile_of(const PackedMatrix& weight, int num_units,
                                                    int expert, int tile) {
  constexpr int kBytes = fragment::kUnitBytes<F>;
  const int num_tiles = (weight.rows + 15) / 16;
  const int64_t expert_bytes = (int64_t{num_tiles} * num_units * kBytes + 255) / 256 * 256;
  return weight.data + expert * expert_bytes +
         int64_t{min(tile, num_tiles - 1)} * num_units * kBytes;
}

/// A warp copies a unit to shared memory, without waiting; both addresses are the lane's first 16
/// bytes.
template <DType F>
__device__ __forceinline__ void copy_unit(uint32_t to, const std::byte* from) {
  constexpr int kBytes = fragment::kUnitBytes<F>, kWhole = kBytes / 512 * 512;
#pragma unroll
  for (int i = 0; i < kBytes / 512; ++i) copy_async_16(to + 512 * i, from + 512 * i);
  if (kWhole < kBytes && 16 * (threadIdx.x % 32) < kBytes - kWhole)
    copy_async_16(to + kWhole, from + kWhole);
}
/// A lane's share of a unit.
template <DType F>
__device__ __forceinline__ fragment::Unit<F> read_operand(const std::byte* unit_at) {
  const uint32_t lane = threadIdx.x % 32;
  fragment::Unit<F> unit;
  fragment::read_codes<F>(unit, unit_at + 16 * lane);
  if constexpr (fragment::Format<F>::kScaleWords == 1) {
    unit.scales[0] =
        *reinterpret_cast<const uint32_t*>(unit_at + fragment::kCodeBytes<F> + lane / 4 * 4);
  }
  return unit;
}
/// Rows g and g + 8 of a block of 32 columns of a unit as two operands of 16 columns each.
template <DType F>
__device__ __forceinline__ void make_operand(const fragment::Unit<F>& unit, int block,
                                             uint32_t (&a)[8]) {
  // The scales of both rows, their exponents raised by kBias; beyond 255 an infinity.
  [[maybe_unused]] __nv_bfloat162 scales;
  if constexpr (fragment::Format<F>::kScaleWords == 1) {
    constexpr uint32_t kBoth = 0x00010001u;
    const uint32_t exponents = __byte_perm(unit.scales[0], 0, block == 0 ? 0x4140 : 0x4342);
    const uint32_t bits =
        __vminu2(exponents * 128u + kBoth * (Operand<F>::kBias << 7), kBoth * (255u << 7));
    scales = *reinterpret_cast<const __nv_bfloat162*>(&bits);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t pairs[4];
    fragment::decode<F>(unit, block, half, 0, pairs);
    if constexpr (fragment::Format<F>::kScaleWords == 1) {
      const __nv_bfloat162 scale = half == 0 ? __low2bfloat162(scales) : __high2bfloat162(scales);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const __nv_bfloat162 scaled =
            __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&pairs[i]), scale);
        pairs[i] = *reinterpret_cast<const uint32_t*>(&scaled);
      }
    }
    a[half] = pairs[0], a[2 + half] = pairs[1];
    a[4 + half] = pairs[2], a[6 + half] = pairs[3];
  }
}
/// A whole unit as four operands.
template <DType F>
__device__ __forceinline__ void make_operand(const fragment::Unit<F>& unit, uint32_t (&a)[16]) {
#pragma unroll
  for (int block = 0; block < 2; ++block)
    make_operand<F>(unit, block, reinterpret_cast<uint32_t(&)[8]>(a[8 * block]));
}

/// The greatest scales of rows g and g + 8 of a tile of an expert; of the last tile past the end.
__device__ __forceinline__ int2 greatest_scales_of(const PackedMatrix& weight, int expert,
                                                   int tile) {
  const int num_tiles = (weight.rows + 15) / 16, g = threadIdx.x % 32 / 4;
  const uint8_t* rows =
      weight.greatest_scales + (int64_t{expert} * num_tiles + min(tile, num_tiles - 1)) * 16 + g;
  return make_int2(__ldg(rows), __ldg(rows + 8));
}

#endif  // __CUDACC__

}  // namespace moxie::gemm
