// The packed layout of CUDA rows, kFragment16x32: units of 16 rows x 64 columns in the order in
// which a warp feeds them to mma.m16n8k16 (and wgmma with the weights as register operand).
//
// An expert is all its codes [tiles][units][unit_bytes], then all its scales [tiles][units]
// [unit_scale_bytes]. In a unit, lane l of a warp (g = l / 4, q = l % 4) owns rows g and g + 8 and,
// in each of the two blocks of 32 columns, columns 8q..8q+7: the order of K inside a block differs
// from the instruction's, alike for weights and activations, so that a lane's activations are
// consecutive.
//   MXFP4  512 B  lane l: 16 B at 16 l: words [block 0 row g][block 0 row g+8][block 1 row g]
//                 [block 1 row g+8]; a word is 8 weights (below)
//   MXFP8  1024 B two parts of 512 B, rows g then rows g + 8; lane l: 16 B at 16 l of each: 8 E4M3
//                 bytes of block 0, 8 of block 1 (Q8_0: the same with int8)
//   BF16   2048 B four parts of 512 B: [block 0 row g][block 0 row g+8][block 1 row g][block 1 row
//                 g+8]; lane l: 16 B at 16 l of each
//   F32    4096 B eight parts of 512 B: as BF16, each 32 B of a lane as two parts of 16 B
//   scales        MXFP4, MXFP8: 32 B, byte 4 g + 2 block + half of row g + 8 half; Q8_0: FP16 alike
// The two halves of an MXFP4 word hold columns k and k + 1 of four pairs, k = 0, 2, 4, 6; in a
// half, E2M1 codes (sign s, rest m) of the pairs lie where one shift and one mask make BF16 of
// them, each 2^-126 of its value:
//   bit 15 s0 | 14 s2 | 13 s3 | 12 s1 | 11-9 m3 | 8-6 m0 | 5-3 m1 | 2-0 m2
// Padding rows and columns are zeros (scale code 127). docs/formats.md draws it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/packing.h"

namespace moxie {

/// In the packed q, k, v matrix, the two values that rotary turns together lie in one lane: tile t
/// of a head holds its dimensions 8t..8t+7 and then head_dim / 2 + 8t..+7. head_dim is a multiple
/// of 16. The row of the model (q, k, v heads one after another) at a packed row:
constexpr int32_t fragment_qkv_row(int32_t packed_row, int32_t head_dim) {
  const int32_t head = packed_row / head_dim, in_head = packed_row % head_dim;
  const int32_t tile = in_head / 16, r = in_head % 16;
  return head * head_dim + r / 8 * (head_dim / 2) + 8 * tile + r % 8;
}

/// In the gate/up matrix, tile t holds the gate rows of outputs 8t..8t+7, then their up rows.
/// Packed row of gate (half = 0) or up (half = 1) of an output:
constexpr int32_t fragment_gate_up_row(int32_t output, int32_t half) {
  return output / 8 * 16 + half * 8 + output % 8;
}

/// The word of eight E2M1 codes, and back.
constexpr uint32_t fragment_mxfp4_word(const uint8_t codes[8]) {
  constexpr int kSign[4] = {15, 12, 14, 13}, kRest[4] = {6, 3, 0, 9};
  uint32_t word = 0;
  for (int j = 0; j < 8; ++j) {
    const uint32_t code = codes[j];
    word |= (code >> 3 & 1u) << (kSign[j / 2] + 16 * (j % 2));
    word |= (code & 7u) << (kRest[j / 2] + 16 * (j % 2));
  }
  return word;
}
constexpr uint8_t fragment_mxfp4_code(uint32_t word, int j) {
  constexpr int kSign[4] = {15, 12, 14, 13}, kRest[4] = {6, 3, 0, 9};
  const uint32_t half = word >> (16 * (j % 2));
  return static_cast<uint8_t>((half >> kSign[j / 2] & 1u) << 3 | (half >> kRest[j / 2] & 7u));
}

/// Packs tile `tile_idx` of one expert: `expert` is that expert's matrix in kFragment16x32 (its
/// data writable), rows[i] the stored row of the tile's row i, or -1 for padding. Stored and target
/// formats convert as in pack_tile_rows16; MXFP8 quantises as OCP MX with E4M3 elements.
void pack_tile_fragment(const StoredRows& source, const int64_t rows[16], int32_t tile_idx,
                        const PackedMatrix& expert);

/// Element (packed row, col) of one matrix in kFragment16x32, exactly: slow, for tests.
double fragment_value(const PackedMatrix& matrix, int32_t row, int32_t col);

}  // namespace moxie
