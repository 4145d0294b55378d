// The CPU's packed layout, kRows16: tiles of 16 rows in which a row is a SIMD lane.
//
// A tile is `cols` columns of 16 rows, stored so that a 64-byte vector holds the same columns of
// all 16 rows, one 32-bit word a row:
//   F32    word = column k                                    (64 B a column)
//   BF16   word = columns 2j (low half) and 2j + 1 (high)      (64 B for 2 columns)
//   Q8_0   block of 32 columns: 16 FP16 scales (32 B), then 8 vectors; vector j, word r =
//          int8 columns 4j..4j+3 of row r, lowest first       (544 B)
//   MXFP4  block of 32 columns: 16 E8M0 codes (16 B), then 4 vectors; vector j, word r, byte b =
//          E2M1 code of column 8j + b (low nibble) and 8j + 4 + b (high nibble)   (272 B)
// Rows past the end are zeros (scale code 127). docs/formats.md draws it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/formats.h"
#include "core/tensor.h"

namespace moxie {

/// The rows of a matrix as a file stores them: `row(r)` points at row r.
struct StoredRows {
  enum class Kind : uint8_t {
    kF32,
    kF16,
    kBF16,
    kQ8_0,        ///< GGUF blocks: FP16 scale, 32 int8 (34 B)
    kMxfp4Split,  ///< blocks [rows, cols/32, 16] and scales [rows, cols/32] apart, adjacent nibbles
    kMxfp4Gguf    ///< GGUF blocks: E8M0, then 16 bytes, halves (17 B)
  };
  Kind kind = Kind::kBF16;
  const std::byte* data = nullptr;    ///< row 0
  const std::byte* scales = nullptr;  ///< kMxfp4Split only
  int64_t row_stride_bytes = 0;
  int64_t scale_stride_bytes = 0;
  int32_t cols = 0;
  /// If set, the matrix is stored transposed ([cols, rows], element type F32, F16 or BF16):
  /// element (r, k) lies at data + k * row_stride_bytes + r * element size.
  bool transposed = false;

  /// Row r as F32, exactly; `out` holds cols floats.
  void read_row(int64_t r, float* out) const;
};

/// Packs one tile: rows[i] is the stored row of lane i, or -1 for padding. `target` is the format
/// to store (kF32, kBF16, kQ8_0, kMXFP4). A lossless path is taken where stored and target agree;
/// otherwise values go through F32 (BF16: nearest even, MXFP4: quantize_mxfp4, Q8_0: amax / 127).
void pack_tile_rows16(const StoredRows& source, const int64_t rows[16], DType target,
                      std::byte* tile);

/// Element (row, col) of one matrix of a packed tensor, exactly (as double): slow, for the
/// reference rows and tests.
double packed_value(const PackedMatrix& matrix, int32_t row, int32_t col);

/// A whole packed row as doubles, for the reference rows. `out` holds cols values.
void read_packed_row(const PackedMatrix& matrix, int32_t row, double* out);

/// In the gate/up matrix, tile 2j holds the gate rows of outputs 16j..16j+15 and tile 2j + 1 their
/// up rows, so that one pass has both in the same lanes. Packed row of gate (half = 0) or up
/// (half = 1) of output i:
constexpr int32_t gate_up_packed_row(int32_t output, int32_t half) {
  return (output / 16) * 32 + half * 16 + output % 16;
}

}  // namespace moxie
