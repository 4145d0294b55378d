// What the variants of MoeFp8Kernels with BF16 products share: decoding E4M3 to BF16, which is
// exact, and the activation in two BF16 parts. Needs AVX-512 F, BW, DQ, VL and BF16. Include this
// file only in files compiled for one instruction set (gemv/lanes.h says why).
#pragma once

#include "kernels/moe_fp8/moe_fp8_body.h"

namespace moxie {
namespace {

// The BF16 of the 128 codes without a sign.
struct alignas(64) Bf16OfCodes {
  uint16_t of[128] = {};
  constexpr Bf16OfCodes() {
    for (int32_t code = 0; code < 128; ++code) {
      const int32_t exponent = code >> 3, mantissa = code & 7;
      if (code == 127)
        of[code] = 0x7FC0;
      else if (exponent > 0)
        of[code] = static_cast<uint16_t>(((exponent + 120) << 7) | (mantissa << 4));
      else if (mantissa > 0)  // mantissa * 2^-9: 2^-9, 2^-8 and 2^-7 times 1 to 1.75
        of[code] = static_cast<uint16_t>(mantissa == 1  ? 118 << 7
                                         : mantissa < 4 ? (119 << 7) | ((mantissa - 2) << 6)
                                                        : (120 << 7) | ((mantissa - 4) << 5));
    }
  }
};
constexpr Bf16OfCodes kBf16OfCodes;

// Decodes one block of the 32 rows of a strip to [row][128] BF16.
void decode_strip(const MoeFp8Strip& strip, int32_t block, uint16_t* weights) {
  const __m512i t0 = _mm512_load_si512(kBf16OfCodes.of),
                t1 = _mm512_load_si512(kBf16OfCodes.of + 32);
  const __m512i t2 = _mm512_load_si512(kBf16OfCodes.of + 64),
                t3 = _mm512_load_si512(kBf16OfCodes.of + 96);
  const __m512i bit6 = _mm512_set1_epi16(0x40),
                sign = _mm512_set1_epi16(static_cast<int16_t>(0x8000));
#pragma GCC unroll 2
  for (int32_t half = 0; half < 2; ++half) {
    for (int32_t row = 0; row < 16; ++row) {
      const uint8_t* codes = strip.half[half] + int64_t{row} * strip.cols + block * kBlock;
      const uint8_t* ahead = codes + int64_t{strip.rows_ahead} * strip.cols;
      __builtin_prefetch(ahead, 0, 2);
      __builtin_prefetch(ahead + 64, 0, 2);
#pragma GCC unroll 4
      for (int32_t k = 0; k < kBlock; k += 32) {
        const __m512i index =
            _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + k)));
        // The permutes use the low six bits of an index alone.
        const __m512i magnitude = _mm512_mask_blend_epi16(_mm512_test_epi16_mask(index, bit6),
                                                          _mm512_permutex2var_epi16(t0, index, t1),
                                                          _mm512_permutex2var_epi16(t2, index, t3));
        const __m512i value =
            _mm512_or_si512(magnitude, _mm512_and_si512(_mm512_slli_epi16(index, 8), sign));
        _mm512_store_si512(weights + (half * 16 + row) * kBlock + k, value);
      }
    }
  }
}

// Adds products of a block, which have all scales but these, to the sums of one row.
MOXIE_INLINE void add_scaled_row(const Vec& products, const Vec& of_tokens, float of_weights,
                                 float* sums) {
  Vec total;
  load(sums, total);
  store(sums, total + products * of_tokens * of_weights);
}

// h in two BF16 parts, high and the rest, for 16 outputs of 16 tokens.
void swiglu_bf16x2(const float* sums, int32_t first, int32_t cols, std::byte* packed) {
  auto* high = reinterpret_cast<uint16_t*>(packed) + int64_t{first} * kMoeFp8Group;
  uint16_t* low = high + int64_t{cols} * kMoeFp8Group;
  for (int32_t row = 0; row < 16; row += 2) {
    __m512i words[2][2];  // [part][row], in the low half of each lane
    for (int32_t i = 0; i < 2; ++i) {
      Vec up, gate, h;
      load(sums + (row + i) * kMoeFp8Group, up);
      load(sums + (16 + row + i) * kMoeFp8Group, gate);
      silu_times(gate, up, h);
      const __m256i of_high =
          reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(reinterpret_cast<__m512>(h)));
      words[0][i] = _mm512_cvtepu16_epi32(of_high);
      const Vec rest = h - reinterpret_cast<Vec>(_mm512_slli_epi32(words[0][i], 16));
      words[1][i] = _mm512_cvtepu16_epi32(
          reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(reinterpret_cast<__m512>(rest))));
    }
    const int32_t at = row * kMoeFp8Group;
    _mm512_storeu_si512(high + at,
                        _mm512_or_si512(words[0][0], _mm512_slli_epi32(words[0][1], 16)));
    _mm512_storeu_si512(low + at, _mm512_or_si512(words[1][0], _mm512_slli_epi32(words[1][1], 16)));
  }
}

// A group's part: columns of blocks, in uint16_t.
MOXIE_INLINE const uint16_t* packed_block(const MoeFp8Groups& groups, int32_t cols, int32_t group,
                                          int32_t part, int32_t block) {
  return reinterpret_cast<const uint16_t*>(groups.packed + group * groups.group_bytes) +
         (int64_t{part} * cols + int64_t{block} * kBlock) * kMoeFp8Group;
}
MOXIE_INLINE void token_scales(const MoeFp8Groups& groups, int32_t cols, int32_t group,
                               int32_t block, Vec& scales) {
  scales = Vec{} + 1.0f;
  if (groups.scales != nullptr)
    load(groups.scales + (int64_t{group} * (cols / kBlock) + block) * kMoeFp8Group, scales);
}

}  // namespace
}  // namespace moxie
