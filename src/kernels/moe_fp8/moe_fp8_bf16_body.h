// What the variants of MoeFp8Kernels with BF16 products share: decoding E4M3 to BF16, which is
// exact, a few tokens, and the activation in two BF16 parts. Needs AVX-512 F, BW, DQ, VL, VBMI and
// BF16. Include this file only in files compiled for one instruction set (gemv/lanes.h says why).
#pragma once

#include "kernels/moe_fp8/moe_fp8_body.h"

namespace moxie {
namespace {

// The two bytes of the BF16 of the 128 codes without a sign.
struct alignas(64) Bf16OfCodes {
  uint8_t low[128] = {}, high[128] = {};
  constexpr Bf16OfCodes() {
    for (int32_t code = 0; code < 128; ++code) {
      const int32_t exponent = code >> 3, mantissa = code & 7;
      int32_t bits = 0;
      if (code == 127)
        bits = 0x7FC0;
      else if (exponent > 0)
        bits = ((exponent + 120) << 7) | (mantissa << 4);
      else if (mantissa > 0)  // mantissa * 2^-9: 2^-9, 2^-8 and 2^-7 times 1 to 1.75
        bits = mantissa == 1  ? 118 << 7
               : mantissa < 4 ? (119 << 7) | ((mantissa - 2) << 6)
                              : (120 << 7) | ((mantissa - 4) << 5);
      low[code] = static_cast<uint8_t>(bits);
      high[code] = static_cast<uint8_t>(bits >> 8);
    }
  }
};
constexpr Bf16OfCodes kBf16OfCodes;

// The tables in registers.
struct Decoder {
  __m512i low[2], high[2], order, sign;
};
MOXIE_INLINE void load_tables(Decoder& d) {
  for (int32_t i = 0; i < 2; ++i) {
    d.low[i] = _mm512_load_si512(kBf16OfCodes.low + 64 * i);
    d.high[i] = _mm512_load_si512(kBf16OfCodes.high + 64 * i);
  }
  // Unpacking takes the lower eight bytes of each 16, then the upper ones.
  d.order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  d.sign = _mm512_set1_epi8(static_cast<char>(0x80));
}
// 64 codes: columns 0..31 into out[0], 32..63 into out[1]. A permute of bytes takes the low seven
// bits of an index.
MOXIE_INLINE void decode(const Decoder& d, const uint8_t* codes, __m512i* out) {
  const __m512i index = _mm512_permutexvar_epi64(d.order, _mm512_loadu_si512(codes));
  const __m512i lows = _mm512_permutex2var_epi8(d.low[0], index, d.low[1]);
  const __m512i highs = _mm512_or_si512(_mm512_permutex2var_epi8(d.high[0], index, d.high[1]),
                                        _mm512_and_si512(index, d.sign));
  out[0] = _mm512_unpacklo_epi8(lows, highs);
  out[1] = _mm512_unpackhi_epi8(lows, highs);
}

// Decodes one block of the 32 rows of a strip to [row][128] BF16.
void decode_strip(const MoeFp8Strip& strip, int32_t block, uint16_t* weights) {
  Decoder decoder;
  load_tables(decoder);
  for (int32_t half = 0; half < 2; ++half) {
    for (int32_t row = 0; row < 16; ++row) {
      const uint8_t* codes = strip.half[half] + int64_t{row} * strip.cols + block * kBlock;
      const uint8_t* ahead = codes + int64_t{strip.rows_ahead} * strip.cols;
      uint16_t* to = weights + (half * 16 + row) * kBlock;
      for (int32_t k = 0; k < kBlock; k += 64) {
        __m512i values[2];
        __builtin_prefetch(ahead + k, 0, 2);
        decode(decoder, codes + k, values);
        _mm512_store_si512(to + k, values[0]);
        _mm512_store_si512(to + k + 32, values[1]);
      }
    }
  }
}

// ---- A few tokens -------------------------------------------------------------------------------

// N tokens in P parts each.
template <int N, int P>
void multiply_few_of(const uint8_t* rows, const float* scales, int32_t cols, const MoeFp8Few& few,
                     const uint8_t* next, float* y) {
  constexpr int32_t kRows = kMoeFp8FewRows;
  Decoder decoder;
  load_tables(decoder);
  const auto* x = reinterpret_cast<const uint16_t*>(few.packed);
  Vec total[kRows][N] = {};
  for (int32_t block = 0; block < cols / kBlock; ++block) {
    __m512 sum[kRows][N];
    for (auto& of_row : sum)
      for (__m512& s : of_row) s = _mm512_setzero_ps();
    for (int32_t k = block * kBlock; k < (block + 1) * kBlock; k += 64) {
#pragma GCC unroll 4
      for (int32_t r = 0; r < kRows; ++r) {
        __m512i w[2];
        __builtin_prefetch(next + int64_t{r} * cols + k, 0, 2);
        decode(decoder, rows + int64_t{r} * cols + k, w);
#pragma GCC unroll 4
        for (int32_t n = 0; n < N; ++n) {
#pragma GCC unroll 2
          for (int32_t part = 0; part < P; ++part) {
            const uint16_t* v = x + int64_t{n * P + part} * cols + k;
#pragma GCC unroll 2
            for (int32_t i = 0; i < 2; ++i)
              sum[r][n] =
                  _mm512_dpbf16_ps(sum[r][n], reinterpret_cast<__m512bh>(w[i]),
                                   reinterpret_cast<__m512bh>(_mm512_loadu_si512(v + 32 * i)));
          }
        }
      }
    }
    for (int32_t n = 0; n < N; ++n) {
      const float of_token = few.scales == nullptr ? 1.0f : few.scales[n * (cols / kBlock) + block];
      for (int32_t r = 0; r < kRows; ++r)
        total[r][n] += reinterpret_cast<Vec>(sum[r][n]) * of_token * scales[block];
    }
  }
  store_few(total, y);
}

template <int P>
void multiply_few_parts(const uint8_t* rows, const float* scales, int32_t cols,
                        const MoeFp8Few& few, const uint8_t* next, float* y) {
  switch (few.num_tokens) {
    case 1:
      return multiply_few_of<1, P>(rows, scales, cols, few, next, y);
    case 2:
      return multiply_few_of<2, P>(rows, scales, cols, few, next, y);
    case 3:
      return multiply_few_of<3, P>(rows, scales, cols, few, next, y);
    default:
      return multiply_few_of<4, P>(rows, scales, cols, few, next, y);
  }
}
void multiply_few_bf16(const uint8_t* rows, const float* scales, int32_t cols, const MoeFp8Few& few,
                       const uint8_t* next, float* y) {
  if (few.num_parts == 1)
    multiply_few_parts<1>(rows, scales, cols, few, next, y);
  else
    multiply_few_parts<2>(rows, scales, cols, few, next, y);
}

// ---- Groups of tokens ---------------------------------------------------------------------------

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
