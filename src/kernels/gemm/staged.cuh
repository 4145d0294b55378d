// Staged activations: the BF16 or E4M3 operand of a product over many tokens, as wgmma reads it
// from shared memory.
//
// Rows are tokens, or slots (sort_cuda.h); columns are K, cut into units of 64, padded with zeros.
// Unit u of row r is the 128 bytes at (u * capacity + r) * 128, so that a tile of rows of one unit
// is contiguous. In a unit, columns are in the order of the weights' fragments (core/fragment.h):
// of each block of 32 columns, chunk i (16 bytes, i < 4) holds the pairs of columns 8q + 2i, 8q +
// 2i + 1 for q = 0..3. Chunk c of the unit is stored at place c ^ (r % 8): the 128-byte swizzle of
// tiles that start at multiples of 8 rows.
//
// In E4M3 a unit of a row is 64 bytes: of each block of 32 columns, chunk i (16 bytes, i < 2) holds
// columns 8q + 4i .. 8q + 4i + 3 for q = 0..3; chunk c of the unit is stored at place
// c ^ (r / 2 % 4), the 64-byte swizzle.
//
// In MX formats each block of 32 columns has a scale (E8M0), in memory of its own: byte block of
// the two at (u * capacity + r) * 2. Elements of MXFP8 and MXFP6 lie as in E4M3, six bits in bits
// 5:0 of a byte. In MXFP4 a unit of a row is 32 bytes: chunk c, block c of 32 columns, is stored at
// place c ^ (r / 4 % 2); its word q holds columns 8q .. 8q + 7 as nibbles: 0, 2, 4, 6, then 1, 3,
// 5, 7.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base.h"
#include "core/formats.h"
#include "core/tensor.h"

namespace moxie::gemm {

inline constexpr int32_t kStagedColumns = 64;    ///< of a unit
inline constexpr int32_t kStagedRowBytes = 128;  ///< of a unit of one row in BF16
inline constexpr int32_t kStagedRows = 8;  ///< tiles and capacities are multiples of kStagedRows

inline constexpr int32_t kStagedScaleBytes = 2;  ///< of a unit of one row in MX formats

/// Bytes of a unit of one row in BF16, E4M3 or an MX format, without scales.
MOXIE_HOST_DEVICE constexpr int32_t staged_row_bytes(DType format) {
  return format == DType::kBF16    ? kStagedRowBytes
         : format == DType::kMXFP4 ? kStagedColumns / 2
                                   : kStagedColumns;
}
constexpr bool is_staged_mx(DType format) {
  return format != DType::kBF16 && format != DType::kF8E4M3;
}

/// Where staged rows are. `capacity`: rows of the memory, a multiple of kStagedRows.
struct StagedView {
  std::byte* data = nullptr;  ///< [units, capacity] of staged_row_bytes, aligned to 1,024
  int32_t capacity = 0, width = 0;
  std::byte* scales = nullptr;  ///< MX formats: [units, capacity] of kStagedScaleBytes
};

MOXIE_HOST_DEVICE constexpr int32_t staged_units(int32_t width) {
  return (width + kStagedColumns - 1) / kStagedColumns;
}
/// Bytes for `rows` rows, rounded up to a multiple of kStagedRows.
constexpr uint64_t staged_bytes(int32_t rows, int32_t width, DType format = DType::kBF16) {
  return static_cast<uint64_t>(round_up(rows, kStagedRows)) *
         static_cast<uint64_t>(staged_units(width)) *
         static_cast<uint64_t>(staged_row_bytes(format));
}

/// The byte of a pair of columns (2 * pair, 2 * pair + 1 of the unit; pair < 32) in the 128 bytes
/// of a row.
MOXIE_HOST_DEVICE constexpr uint32_t staged_pair_offset(uint32_t row, uint32_t pair) {
  const uint32_t block = pair / 16, q = pair / 4 % 4, i = pair % 4;
  return 16 * ((4 * block + i) ^ (row % 8)) + 4 * q;
}
/// In E4M3, the byte of four columns (4 * quad .. 4 * quad + 3 of the unit, quad < 16) in the 64
/// bytes of a row.
MOXIE_HOST_DEVICE constexpr uint32_t staged_quad_offset(uint32_t row, uint32_t quad) {
  const uint32_t block = quad / 8, q = quad / 2 % 4, i = quad % 2;
  return 16 * ((2 * block + i) ^ (row / 2 % 4)) + 4 * q;
}
/// Where chunk c (16 bytes, c < 4) of a row's 64 bytes is.
MOXIE_HOST_DEVICE constexpr uint32_t staged_quad_chunk(uint32_t row, uint32_t c) {
  return 16 * (c ^ (row / 2 % 4));
}
/// In MXFP4, where chunk c (16 bytes, c < 2) of a row's 32 bytes is.
MOXIE_HOST_DEVICE constexpr uint32_t staged_nibble_chunk(uint32_t row, uint32_t c) {
  return 16 * (c ^ (row / 4 % 2));
}
/// In MXFP4, the place of column j (< 8) among a word's nibbles.
MOXIE_HOST_DEVICE constexpr uint32_t staged_nibble(uint32_t j) { return j / 2 + j % 2 * 4; }
/// The byte of an even column of a row in the whole memory, in BF16.
MOXIE_HOST_DEVICE constexpr int64_t staged_offset(int32_t capacity, int32_t row, int32_t column) {
  return (static_cast<int64_t>(column / kStagedColumns) * capacity + row) * kStagedRowBytes +
         staged_pair_offset(static_cast<uint32_t>(row),
                            static_cast<uint32_t>(column % kStagedColumns / 2));
}

}  // namespace moxie::gemm
