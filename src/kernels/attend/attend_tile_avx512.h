// The vector type of the attend tiles for AVX-512 (F, BW, DQ, VL): 16 lanes, 32 registers. Include
// this file only in files compiled for these; all its code is in an anonymous namespace, for the
// reason that gemv/lanes.h gives.
#pragma once

#include <immintrin.h>

#include "kernels/attend/attend_tile_body.h"

namespace moxie {
namespace {

struct Avx512 {
  using Vec = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kScoreRows = 8, kScoreVecs = 2;
  static constexpr int kSumRows = 4, kSumVecs = 4;

  static Vec zero() { return _mm512_setzero_ps(); }
  static Vec set(float x) { return _mm512_set1_ps(x); }
  static Vec load(const float* at) { return _mm512_load_ps(at); }
  static void store(float* at, Vec x) { _mm512_store_ps(at, x); }
  static void storeu(float* at, Vec x) { _mm512_storeu_ps(at, x); }
  static Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  static Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
  static float greatest(Vec x) { return _mm512_reduce_max_ps(x); }
  static bool exceeds(Vec x, Vec limit) { return _mm512_cmp_ps_mask(x, limit, _CMP_GT_OQ) != 0; }
  static float sum(Vec x) { return _mm512_reduce_add_ps(x); }
  static float first(Vec x) { return _mm512_cvtss_f32(x); }

  // x in the lanes for which begin <= base + lane < end, y in the others.
  static Vec where_between(Vec x, int base, int begin, int end, Vec y) {
    const __m512i lane =
        _mm512_add_epi32(_mm512_set1_epi32(base),
                         _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    const __mmask16 inside = _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(begin)) &
                             _mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(end));
    return _mm512_mask_blend_ps(inside, y, x);
  }

  // x <= 0. exp(x) = 2^n exp(r), |r| <= ln 2 / 2. exp(r) is Taylor's polynomial up to r^7
  // (remainder below 6e-9). Below -87.3, where the result would be subnormal, it is exactly 0.
  static Vec exp(Vec x) {
    const Vec n = _mm512_roundscale_ps(mul(x, set(1.44269504f)), 0);
    Vec r = fma(n, set(-0.693359375f), x);
    r = fma(n, set(2.12194440e-4f), r);
    Vec p = set(1.0f / 5040);
    p = fma(p, r, set(1.0f / 720));
    p = fma(p, r, set(1.0f / 120));
    p = fma(p, r, set(1.0f / 24));
    p = fma(p, r, set(1.0f / 6));
    p = fma(p, r, set(0.5f));
    p = fma(p, r, set(1.0f));
    p = fma(p, r, set(1.0f));
    const __mmask16 tiny = _mm512_cmp_ps_mask(x, set(-87.3f), _CMP_LT_OQ);
    return _mm512_mask_mov_ps(_mm512_scalef_ps(p, n), tiny, zero());
  }

  // 16 elements from `i` of a row.
  static Vec widen16(const unsigned char* row, AttendKvType type, int i) {
    if (type == AttendKvType::kF32) return _mm512_loadu_ps(reinterpret_cast<const float*>(row) + i);
    if (type == AttendKvType::kBF16) {
      const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 2 * i));
      return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
    }
    // E4M3 bits as FP16 bits are the value / 256 (subnormals too); 0x7F becomes an FP16 NaN.
    const __m256i code =
        _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + i)));
    const __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi16(0x7F));
    const __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7F)),
                                         _mm256_set1_epi16(0x7C00));
    const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(code, _mm256_set1_epi16(0x80)), 8);
    const __m256i half =
        _mm256_or_si256(_mm256_or_si256(sign, nan), _mm256_slli_epi16(magnitude, 7));
    return mul(_mm512_cvtph_ps(half), set(256.0f));
  }
  static void widen(const unsigned char* row, AttendKvType type, int head_dim, float* out) {
    for (int i = 0; i < head_dim; i += 16) store(out + i, widen16(row, type, i));
  }

  // r[i] lane j becomes r[j] lane i.
  static void transpose(__m512i r[16]) {
    __m512i t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
      t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
      r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
      r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
      r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
      t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xDD);
      t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
      t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xDD);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
      r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xDD);
    }
  }

  // BF16 as words of two dimensions, which halves the shuffles.
  static void load_keys_bf16(const unsigned char* const* rows, int head_dim, float* columns) {
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
    for (int half = 0; half < 2; ++half) {
      for (int d = 0; d < head_dim; d += 32) {
        __m512i words[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) words[i] = _mm512_loadu_si512(rows[16 * half + i] + 2 * d);
        transpose(words);
        float* out = columns + d * kAttendChunk + 16 * half;
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) {
          store(out + (2 * i) * kAttendChunk, _mm512_castsi512_ps(_mm512_slli_epi32(words[i], 16)));
          store(out + (2 * i + 1) * kAttendChunk,
                _mm512_castsi512_ps(_mm512_and_si512(words[i], high)));
        }
      }
    }
  }
  static void load_keys(const unsigned char* const* rows, AttendKvType type, int head_dim,
                        float* columns) {
    if (type == AttendKvType::kBF16 && head_dim % 32 == 0) {
      load_keys_bf16(rows, head_dim, columns);
      return;
    }
    for (int half = 0; half < 2; ++half) {
      for (int d = 0; d < head_dim; d += 16) {
        __m512i words[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i)
          words[i] = _mm512_castps_si512(widen16(rows[16 * half + i], type, d));
        transpose(words);
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i)
          store(columns + (d + i) * kAttendChunk + 16 * half, _mm512_castsi512_ps(words[i]));
      }
    }
  }
};

}  // namespace
}  // namespace moxie
