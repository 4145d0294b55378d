// The packed layout of CUDA rows, kFragment16x32: units of 16 rows x 64 columns in the order in
// which a warp feeds them to mma.m16n8k16 (and wgmma with the weights as register operand).
//
// An expert is its units [tiles][units][unit_bytes]; a unit is its codes, then its scales, so that
// a warp reads one stream. In a unit, lane l of a warp (g = l / 4, q = l % 4) owns rows g and g + 8
// and, in each of the two blocks of 32 columns, columns 8q..8q+7: the order of K inside a block
// differs from the instruction's, alike for weights and activations, so that a lane's activations
// are consecutive.
//   MXFP4  512 B  lane l: 16 B at 16 l: words [block 0 row g][block 0 row g+8][block 1 row g]
//                 [block 1 row g+8]; a word is 8 weights (below)
//   MXFP8  1024 B two runs of 512 B, rows g then rows g + 8; lane l: 16 B at 16 l of each: 8 E4M3
//                 bytes of block 0, 8 of block 1 (Q8_0: the same with int8)
//   BF16   2048 B four runs of 512 B: [block 0 row g][block 0 row g+8][block 1 row g][block 1 row
//                 g+8]; lane l: 16 B at 16 l of each
//   F32    4096 B eight runs of 512 B: as BF16, each 32 B of a lane as two halves of 16 B
//   scales        MXFP4, MXFP8: 32 B, byte 4 g + 2 block + half of row g + 8 half; Q8_0: FP16 alike
// The two halves of an MXFP4 word hold columns k and k + 1 of four pairs, k = 0, 2, 4, 6. In a
// half, the E2M1 codes (sign s, exponent e, mantissa bit m) of pairs 0, 1, 2 lie so that one shift
// left and one mask make them BF16, scaled by 2^-126. The code of pair 3 takes the bits that are
// left; one product moves them into place (fragment_gemv.cuh):
//   bit 15 s0 | 14 m3 | 13 s3 | 12 s1 | 11-10 e3 | 9 s2 | 8-6 e0 m0 | 5-3 e1 m1 | 2-0 e2 m2
// Padding rows and columns are zeros (scale code 127). docs/formats.md draws it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/formats.h"
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
  uint32_t word = 0;
  for (int j = 0; j < 8; ++j) {
    const uint32_t code = codes[j], sign = code >> 3 & 1u, rest = code & 7u;
    const int pair = j / 2;
    const uint32_t half = pair < 3 ? sign << (15 - 3 * pair) | rest << (6 - 3 * pair)
                                   : sign << 13 | (rest & 1u) << 14 | (rest >> 1) << 10;
    word |= half << (16 * (j % 2));
  }
  return word;
}
constexpr uint8_t fragment_mxfp4_code(uint32_t word, int j) {
  const uint32_t half = word >> (16 * (j % 2));
  const int pair = j / 2;
  const uint32_t sign = half >> (pair < 3 ? 15 - 3 * pair : 13) & 1u;
  const uint32_t rest =
      pair < 3 ? half >> (6 - 3 * pair) & 7u : (half >> 10 & 3u) << 1 | (half >> 14 & 1u);
  return static_cast<uint8_t>(sign << 3 | rest);
}

/// A word's four pairs as two BF16 each (column k in the low half), scaled by 2^-126. No two terms
/// of the product share a bit: bits 0, 1, 3, 4 of each half move by 7, by 2 and by 12.
MOXIE_HOST_DEVICE constexpr void fragment_mxfp4_pairs(uint32_t word, uint32_t pairs[4]) {
  constexpr uint32_t kBits = 0x81C081C0u;
  pairs[0] = word & kBits;
  pairs[1] = (word << 3) & kBits;
  pairs[2] = (word << 6) & kBits;
  pairs[3] = ((word >> 10) & 0x001B001Bu) * (1u << 7 | 1u << 2 | 1u << 12) & kBits;
}

/// Packs tile `tile_idx` of one expert: `expert` is that expert's matrix in kFragment16x32 (its
/// data writable), rows[i] the stored row of the tile's row i, or -1 for padding. Stored and target
/// formats convert as in pack_tile_rows16; MXFP8 quantises as OCP MX with E4M3 elements.
void pack_tile_fragment(const StoredRows& source, const int64_t rows[16], int32_t tile_idx,
                        const PackedMatrix& expert);

/// Element (packed row, col) of one matrix in kFragment16x32, exactly: slow, for tests.
double fragment_value(const PackedMatrix& matrix, int32_t row, int32_t col);

}  // namespace moxie
