// Operands in MX formats as sm_100's block-scaled products read them, and the kernels that make
// them: weights unpacked from kFragment16x32, activations rounded to MXFP8.
//
// Codes are rows of `columns` values (K, padded with zeros to a multiple of 128): in MXFP8 a byte
// each, in MXFP4 a nibble each, the even column in the low one. Scales (E8M0, one for 32 columns)
// lie in blocks of 128 rows x 4 scales, 512 bytes each, those of a block of rows one after another.
// In a block, row r's four scales are the word at 16 (r % 32) + 4 (r / 32).
//
// A group is a run of the sorted pairs (sort_cuda.h). Its scales begin at a block of their own,
// while its codes lie in the rows of its slots. Scales of rows up to the end of a group's last
// block are not written: products of these rows are not stored.
#pragma once

#include "core/tensor.h"
#include "kernels/gemm/sort_cuda.h"
#include "kernels/gemm/stage_cuda.h"
#include "kernels/step.h"

namespace moxie::gemm {

inline constexpr int32_t kBlockedColumns = 128;     ///< codes of a row: a multiple
inline constexpr int32_t kBlockedRows = 128;        ///< of a block of scales
inline constexpr int32_t kBlockedScaleBytes = 512;  ///< of 128 rows x 128 columns

MOXIE_HOST_DEVICE constexpr int32_t blocked_columns(int32_t width) {
  return (width + kBlockedColumns - 1) / kBlockedColumns * kBlockedColumns;
}
/// The byte of the scale of columns 32 * block .. 32 * block + 31 of a row.
MOXIE_HOST_DEVICE constexpr int64_t blocked_scale_offset(int32_t row, int32_t block,
                                                         int32_t columns) {
  const int32_t in_block = row % kBlockedRows;
  const int64_t number =
      int64_t{row / kBlockedRows} * (columns / kBlockedColumns) + block / (kBlockedColumns / 32);
  return number * kBlockedScaleBytes + in_block % 32 * 16 + in_block / 32 * 4 + block % 4;
}
constexpr int64_t blocked_scale_bytes(int32_t rows, int32_t columns) {
  return int64_t{ceil_div(rows, kBlockedRows)} * (columns / kBlockedColumns) * kBlockedScaleBytes;
}

/// Operands of several groups.
struct BlockedView {
  std::byte* codes = nullptr;  ///< aligned to 128
  uint8_t* scales = nullptr;   ///< aligned to 128
  int32_t columns = 0;         ///< a multiple of 128
};

/// Of eight slots, 8 i .. 8 i + 7: the first num_slots (0 to 8) have a pair. Row j of the scales of
/// slot 8 i + j is first_row + j.
struct SlotGroup {
  int32_t expert, first_row, num_slots;
};
/// The first row of the scales of group number `group`. A group of n slots needs ceil(n / 128)
/// blocks of rows, and the next one begins floor((first_slot + n) / 128) - floor(first_slot / 128)
/// + 1 blocks later, which is no less.
MOXIE_HOST_DEVICE constexpr int32_t first_scale_row(int32_t group, int32_t first_slot) {
  return (first_slot / kBlockedRows + group) * kBlockedRows;
}
/// Rows of scales of all groups.
inline int32_t scale_rows(const SortShape& shape) {
  return first_scale_row(shape.num_runs(), shape.capacity());
}

/// A sort whose groups have one tile each, whatever their size.
inline int32_t whole_groups(int32_t num_tokens, int32_t top_k) {
  return std::max(kSlotsAlign, round_up(num_tokens * top_k, kSlotsAlign));
}

/// groups: [capacity / 8], written. The tiles are whole groups.
void find_slot_groups(const SortedPairs& sorted, const SortShape& shape, SlotGroup* groups,
                      Stream* stream);

/// Bytes of one group's unpacked weights: codes and scales.
inline int64_t blocked_code_bytes(const PackedMatrix& matrix) {
  return int64_t{matrix.rows} * blocked_columns(matrix.cols) / 2;
}
inline int64_t blocked_scale_bytes(const PackedMatrix& matrix) {
  return blocked_scale_bytes(matrix.rows, blocked_columns(matrix.cols));
}

/// Weights of each group's expert, of an MXFP4 matrix in kFragment16x32 whose rows are a multiple
/// of 8. Group g's codes, [rows, columns / 2], begin at g * blocked_code_bytes(matrix), its scales
/// at g * blocked_scale_bytes(matrix).
struct UnpackWeights {
  PackedMatrix matrix;
  const SlotTile* tiles = nullptr;     ///< [num_tiles], whole groups
  const int32_t* num_tiles = nullptr;  ///< [1]
  int32_t most_groups = 0;
  BlockedView to;
};
void unpack_weights(const UnpackWeights& step, Stream* stream);

/// StageSlots in MXFP8 (OCP MX v1.0) as rows of slots: codes [slots, columns]. `slots.to` is not
/// read but for its width.
struct StageBlocked {
  StageSlots slots;
  const SlotGroup* groups = nullptr;
  BlockedView to;
};
void stage_blocked(const StageBlocked& step, Stream* stream);

/// The experts' hidden values: a slot's row = SwiGLU(products + bias), rounded to MXFP8.
/// products: [slots, rows] in BF16, of gate/up in packed order; rows = 2 * round_up(intermediate,
/// 16), bias: [experts, rows]. SwiGLU is clamped as experts.h has it.
struct StageSwiglu {
  int32_t intermediate = 0, rows = 0, capacity = 0;
  float alpha = 0, limit = 0;
  const uint16_t* products = nullptr;
  const float* bias = nullptr;
  const SlotGroup* groups = nullptr;  ///< [capacity / 8]
  BlockedView to;
};
void stage_swiglu(const StageSwiglu& step, Stream* stream);

}  // namespace moxie::gemm
