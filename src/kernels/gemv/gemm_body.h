// What the variants of GemmKernels share: packing, decoding and the use of the sums. Needs AVX-512
// F, BW, DQ, VL and BF16. Include this file only in gemm_<variant>.cpp, which defines multiply; all
// its code is in an anonymous namespace, for the reason that lanes.h gives.
#pragma once

#include <immintrin.h>

#include "kernels/gemv/gemm.h"
#include "kernels/gemv/lanes_body.h"

namespace moxie {
namespace {

constexpr int32_t kBlockValues = 512;  // 16 x 32 BF16

// ---- Packing ------------------------------------------------------------------------------------

void pack_group(const float* const* rows, int32_t num_rows, int32_t cols, uint16_t* out) {
  for (int32_t k = 0; k < cols; k += 32, out += kBlockValues) {
    const int32_t left = cols - k;
    const __mmask16 low = left >= 16 ? 0xFFFF : static_cast<__mmask16>((1u << left) - 1);
    const __mmask16 high = left >= 32   ? 0xFFFF
                           : left <= 16 ? 0
                                        : static_cast<__mmask16>((1u << (left - 16)) - 1);
    for (int32_t row = 0; row < kGroupTokens; ++row) {
      __m512i pair = _mm512_setzero_si512();
      if (row < num_rows) {
        pair = reinterpret_cast<__m512i>(
            _mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(high, rows[row] + k + 16),
                                _mm512_maskz_loadu_ps(low, rows[row] + k)));
      }
      _mm512_storeu_si512(out + 32 * row, pair);
    }
  }
}

// The BF16 values of the codes, their exponents raised by `raise`.
struct alignas(64) Mxfp4Values {
  uint16_t of[32];
};
constexpr Mxfp4Values mxfp4_values(int raise) {
  constexpr uint16_t kMagnitudes[8] = {0, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0};
  Mxfp4Values values = {};
  for (int i = 0; i < 32; ++i) {
    const int magnitude = kMagnitudes[i % 8];
    if (magnitude == 0) continue;
    values.of[i] = static_cast<uint16_t>(magnitude + (raise << 7) + (i / 8 % 2 << 15));
  }
  return values;
}

// A word's bytes are the codes of four columns (low nibbles) and of the four after (high). A byte
// shuffle puts the byte of column 2j into the low half and that of 2j + 1 into the high half. A
// lookup of 32 BF16 values by the low five bits of each half decodes either nibble; it ignores the
// fifth bit. Then the scale changes the exponent, except of zeros: the values in the table are
// 2^125 times too great, and a saturating subtraction lowers them. This is exact for scales of
// 2^-125 to 2^125. For others (kAnyScale) the exponent is added and zeros are masked: scales below
// 2^-125 give zeros, above 2^126 infinities.
template <bool kAnyScale>
MOXIE_INLINE void decode_mxfp4_block(const std::byte* tile, __m128i scales, uint16_t* out) {
  static constexpr Mxfp4Values kValues = mxfp4_values(kAnyScale ? 0 : 125);
  const __m512i values = _mm512_load_si512(kValues.of);
  const __m512i first = _mm512_broadcast_i32x4(
      _mm_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1));
  const __m512i second = _mm512_broadcast_i32x4(
      _mm_setr_epi8(2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1));
  const __m512i codes = _mm512_min_epi32(_mm512_cvtepu8_epi32(scales), _mm512_set1_epi32(253));
  const __m512i both = _mm512_or_si512(codes, _mm512_slli_epi32(codes, 16));
  const __mmask32 usable =
      kAnyScale ? _mm512_cmpge_epi16_mask(both, _mm512_set1_epi16(2)) : __mmask32{0};
  const __m512i shift =
      _mm512_slli_epi16(kAnyScale ? _mm512_sub_epi16(both, _mm512_set1_epi16(127))
                                  : _mm512_sub_epi16(_mm512_set1_epi16(127 + 125), both),
                        7);
#pragma GCC unroll 4
  for (int32_t j = 0; j < 4; ++j) {
    const __m512i bytes = _mm512_loadu_si512(tile + 16 + 64 * j);
    const __m512i low[2] = {_mm512_shuffle_epi8(bytes, first), _mm512_shuffle_epi8(bytes, second)};
#pragma GCC unroll 4
    for (int32_t pair = 0; pair < 4; ++pair) {
      const __m512i index = pair < 2 ? low[pair] : _mm512_srli_epi16(low[pair - 2], 4);
      __m512i value = _mm512_permutexvar_epi16(index, values);
      if constexpr (kAnyScale) {
        const __mmask32 scaled = _mm512_mask_test_epi16_mask(usable, value, value);
        value = _mm512_maskz_add_epi16(scaled, value, shift);
      } else {
        value = _mm512_subs_epu16(value, shift);
      }
      _mm512_storeu_si512(out + 32 * (4 * j + pair), value);
    }
  }
}

void decode_mxfp4(const std::byte* tile, int32_t cols, uint16_t* out) {
  for (int32_t k = 0; k < cols; k += 32, tile += Mxfp4Format::kBlockBytes, out += kBlockValues) {
    const __m128i scales = _mm_loadu_si128(reinterpret_cast<const __m128i*>(tile));
    // Nonzero if a scale's code is outside 2..252.
    const __m128i outside = _mm_subs_epu8(_mm_sub_epi8(scales, _mm_set1_epi8(2)),
                                          _mm_set1_epi8(static_cast<char>(250)));
    if (_mm_testz_si128(outside, outside) != 0) [[likely]] {
      decode_mxfp4_block<false>(tile, scales, out);
    } else {
      decode_mxfp4_block<true>(tile, scales, out);
    }
  }
}

// A last, partial block, padded with zeros. `cols` is even.
void pad_bf16(const std::byte* tile, int32_t cols, uint16_t* out) {
  const int32_t padded = (cols + 31) / 32 * 32;
  for (int32_t k = 0; k < padded; k += 2) {
    const __m512i pair = k < cols ? _mm512_loadu_si512(tile + 32 * k) : _mm512_setzero_si512();
    _mm512_storeu_si512(out + 16 * k, pair);
  }
}

// ---- Panels -------------------------------------------------------------------------------------

// Prefetches a share of `bytes` each time.
struct Ahead {
  const std::byte* at;
  const std::byte* end;
  int32_t lines_per_step;
};

MOXIE_INLINE void read_ahead(Ahead& ahead) {
  for (int32_t i = 0; i < ahead.lines_per_step && ahead.at < ahead.end; ++i, ahead.at += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(ahead.at), _MM_HINT_T1);
  }
}

// Spreads the prefetches over `num_steps` calls.
MOXIE_INLINE Ahead ahead_of(const GemmTiles& tiles, int64_t num_steps) {
  return {tiles.next, tiles.next + tiles.next_bytes,
          static_cast<int32_t>((tiles.next_bytes / 64 + num_steps - 1) / num_steps)};
}

// `num_blocks` blocks of a tile from `block` on as a panel: in place if the packed layout is a
// panel, otherwise in `memory`.
const uint16_t* panel_of(const std::byte* tile, bool is_mxfp4, int32_t cols, int32_t block,
                         int32_t num_blocks, uint16_t* memory) {
  if (tile == nullptr) {
    for (int32_t i = 0; i < num_blocks * kBlockValues; i += 32) {
      _mm512_store_si512(memory + i, _mm512_setzero_si512());
    }
    return memory;
  }
  const int32_t left = cols - 32 * block;
  const int32_t num_cols = left < 32 * num_blocks ? left : 32 * num_blocks;
  if (is_mxfp4) {
    decode_mxfp4(tile + Mxfp4Format::kBlockBytes * block, num_cols, memory);
    return memory;
  }
  const std::byte* at = tile + Bf16Format::kBlockBytes * block;
  if (num_cols % 32 == 0) return reinterpret_cast<const uint16_t*>(at);
  pad_bf16(at, num_cols, memory);
  return memory;
}

void find_panels(const GemmTiles& tiles, int32_t block, int32_t num_blocks, uint16_t* memory0,
                 uint16_t* memory1, const uint16_t* panels[2]) {
  panels[0] = panel_of(tiles.tile[0], tiles.is_mxfp4, tiles.cols, block, num_blocks, memory0);
  panels[1] = panel_of(tiles.tile[1], tiles.is_mxfp4, tiles.cols, block, num_blocks, memory1);
}

// ---- Around the product -------------------------------------------------------------------------

void swiglu_group(const float* sums, int32_t num_tokens, const float* gate_bias,
                  const float* up_bias, float alpha, float limit, int32_t first, uint16_t* group) {
  const __m512 gate_add = _mm512_loadu_ps(gate_bias), up_add = _mm512_loadu_ps(up_bias);
  uint16_t* block = group + first / 32 * kBlockValues + first % 32;
  for (int32_t token = 0; token < num_tokens; ++token, sums += 32, block += 32) {
    alignas(64) float gate[16], up[16], act[16];
    _mm512_store_ps(gate, _mm512_add_ps(_mm512_loadu_ps(sums), gate_add));
    _mm512_store_ps(up, _mm512_add_ps(_mm512_loadu_ps(sums + 16), up_add));
    swiglu(gate, up, alpha, limit, act);
    const __m256i rounded = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_load_ps(act)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(block), rounded);
  }
}

}  // namespace
}  // namespace moxie
