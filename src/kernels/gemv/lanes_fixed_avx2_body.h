// The products in fixed point over vectors of 32 bytes: AVX2, or AVX-VNNI if the including file is
// compiled for it. A tile is two halves of 8 rows.
//
// Weights become unsigned bytes as in lanes_avx512_vnni.cpp. AVX2's vpmaddubsw adds two products in
// 16 bits: at most 2 * 24 * 128, so that four such sums (24,576) still fit before they are widened.
#pragma once

#include <immintrin.h>

#include "kernels/gemv/lanes_fixed_body.h"

namespace moxie {
namespace {

MOXIE_INLINE __m256i spread(const int8_t* four) { return _mm256_set1_epi32(four_bytes(four)); }

template <int32_t W, int32_t N>
MOXIE_INLINE void add_block(const std::byte* block, const float* const* x, int32_t i, Vec* sums) {
  const __m256i nibble = _mm256_set1_epi8(0x0F);
  const __m256i table = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
#if !defined(__AVXVNNI__)
  const __m256i ones = _mm256_set1_epi16(1);
#endif
#pragma GCC unroll 2
  for (int32_t part = 0; part < kParts; ++part) {
    __m256i sum[N][W];
#pragma GCC unroll 4
    for (int32_t n = 0; n < N; ++n) {
      const auto& from = reinterpret_cast<const PreparedBlock<W>*>(x[n])[i];
      if constexpr (W == 2) sum[n][0] = _mm256_setzero_si256();
      sum[n][W - 1] = _mm256_set1_epi32(from.correction);
    }
#pragma GCC unroll 2
    for (int32_t pair = 0; pair < 2; ++pair) {
      // Two vectors of codes: 16 columns of 8 rows.
      __m256i low[2], high[2];
#pragma GCC unroll 2
      for (int32_t j = 0; j < 2; ++j) {
        const __m256i codes = _mm256_loadu_si256(
            reinterpret_cast<const __m256i*>(block + 16 + 64 * (2 * pair + j) + 32 * part));
        low[j] = _mm256_shuffle_epi8(table, _mm256_and_si256(codes, nibble));
        high[j] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(codes, 4), nibble));
      }
#pragma GCC unroll 4
      for (int32_t n = 0; n < N; ++n) {
        const auto& from = reinterpret_cast<const PreparedBlock<W>*>(x[n])[i];
#pragma GCC unroll 2
        for (int32_t w = 0; w < W; ++w) {
          const int8_t* at = from.bytes[w] + 16 * pair;
#if defined(__AVXVNNI__)
          sum[n][w] = _mm256_dpbusd_avx_epi32(sum[n][w], low[0], spread(at));
          sum[n][w] = _mm256_dpbusd_avx_epi32(sum[n][w], high[0], spread(at + 4));
          sum[n][w] = _mm256_dpbusd_avx_epi32(sum[n][w], low[1], spread(at + 8));
          sum[n][w] = _mm256_dpbusd_avx_epi32(sum[n][w], high[1], spread(at + 12));
#else
          const __m256i first = _mm256_add_epi16(_mm256_maddubs_epi16(low[0], spread(at)),
                                                 _mm256_maddubs_epi16(high[0], spread(at + 4)));
          const __m256i second = _mm256_add_epi16(_mm256_maddubs_epi16(low[1], spread(at + 8)),
                                                  _mm256_maddubs_epi16(high[1], spread(at + 12)));
          sum[n][w] =
              _mm256_add_epi32(sum[n][w], _mm256_madd_epi16(_mm256_add_epi16(first, second), ones));
#endif
        }
      }
    }
    const __m256 factor = _mm256_castsi256_ps(_mm256_slli_epi32(
        _mm256_cvtepu8_epi32(
            _mm_loadl_epi64(reinterpret_cast<const __m128i*>(block + kLanes * part))),
        23));
#pragma GCC unroll 4
    for (int32_t n = 0; n < N; ++n) {
      const auto& from = reinterpret_cast<const PreparedBlock<W>*>(x[n])[i];
      __m256i total = sum[n][0];
      if constexpr (W == 2) total = _mm256_add_epi32(_mm256_slli_epi32(total, 8), sum[n][1]);
      const __m256 scale = _mm256_mul_ps(factor, _mm256_set1_ps(from.half_scale));
      Vec& into = sums[n * kParts + part];
      into = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total), scale, into);
    }
  }
}

}  // namespace
}  // namespace moxie
