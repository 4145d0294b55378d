// The attend tile for AVX2 with FMA and F16C: 8 lanes, 16 registers.
#include <immintrin.h>

#include "kernels/attend/attend_tile_body.h"

namespace moxie {
namespace {

struct Avx2 {
  using Vec = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kScoreRows = 4, kScoreVecs = 2;
  static constexpr int kSumRows = 4, kSumVecs = 2;

  static Vec zero() { return _mm256_setzero_ps(); }
  static Vec set(float x) { return _mm256_set1_ps(x); }
  static Vec load(const float* at) { return _mm256_load_ps(at); }
  static void store(float* at, Vec x) { _mm256_store_ps(at, x); }
  static void storeu(float* at, Vec x) { _mm256_storeu_ps(at, x); }
  static Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  static Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  static Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
  static bool exceeds(Vec x, Vec limit) {
    return _mm256_movemask_ps(_mm256_cmp_ps(x, limit, _CMP_GT_OQ)) != 0;
  }
  static float greatest(Vec x) {
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
  }
  static float sum(Vec x) {
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
  }
  static float first(Vec x) { return _mm256_cvtss_f32(x); }

  // x in the lanes for which begin <= base + lane < end, y in the others.
  static Vec where_between(Vec x, int base, int begin, int end, Vec y) {
    const __m256i lane =
        _mm256_add_epi32(_mm256_set1_epi32(base), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    const __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(begin), lane);
    const __m256i inside =
        _mm256_andnot_si256(below, _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane));
    return _mm256_blendv_ps(y, x, _mm256_castsi256_ps(inside));
  }

  // As in the AVX-512 file: Taylor to r^7, exactly 0 below -87.3.
  static Vec exp(Vec x) {
    const Vec tiny = _mm256_cmp_ps(x, set(-87.3f), _CMP_LT_OQ);
    x = _mm256_max_ps(set(-87.3f), x);  // gives the second operand if one is NaN, so that NaN stays
    const Vec n =
        _mm256_round_ps(mul(x, set(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
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
    const __m256i power =
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_andnot_ps(tiny, mul(p, _mm256_castsi256_ps(power)));
  }

  // 8 elements from `i` of a row.
  static Vec widen8(const unsigned char* row, AttendKvType type, int i) {
    if (type == AttendKvType::kF32) return _mm256_loadu_ps(reinterpret_cast<const float*>(row) + i);
    if (type == AttendKvType::kBF16) {
      const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 2 * i));
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
    }
    // E4M3 bits as FP16 bits are the value / 256 (subnormals too); 0x7F becomes an FP16 NaN.
    const __m128i code =
        _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(row + i)));
    const __m128i magnitude = _mm_and_si128(code, _mm_set1_epi16(0x7F));
    const __m128i nan =
        _mm_and_si128(_mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7F)), _mm_set1_epi16(0x7C00));
    const __m128i sign = _mm_slli_epi16(_mm_and_si128(code, _mm_set1_epi16(0x80)), 8);
    const __m128i half = _mm_or_si128(_mm_or_si128(sign, nan), _mm_slli_epi16(magnitude, 7));
    return mul(_mm256_cvtph_ps(half), set(256.0f));
  }
  static void widen(const unsigned char* row, AttendKvType type, int head_dim, float* out) {
    for (int i = 0; i < head_dim; i += 8) store(out + i, widen8(row, type, i));
  }

  // r[i] lane j becomes r[j] lane i.
  static void transpose(__m256 r[8]) {
    __m256 t[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
      t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      r[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
      r[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xEE);
      r[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
      r[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xEE);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      t[i] = _mm256_permute2f128_ps(r[i], r[4 + i], 0x20);
      t[4 + i] = _mm256_permute2f128_ps(r[i], r[4 + i], 0x31);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) r[i] = t[i];
  }
  static void load_keys(const unsigned char* const* rows, AttendKvType type, int head_dim,
                        float* columns) {
    for (int key = 0; key < kAttendChunk; key += 8) {
      for (int d = 0; d < head_dim; d += 8) {
        __m256 r[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) r[i] = widen8(rows[key + i], type, d);
        transpose(r);
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) store(columns + (d + i) * kAttendChunk + key, r[i]);
      }
    }
  }
};

}  // namespace

extern const AttendTileCode kAttendTileAvx2 = AttendTileBody<Avx2>::code();

}  // namespace moxie
