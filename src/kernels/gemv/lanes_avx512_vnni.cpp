// LaneKernels for AVX-512 with VNNI: MXFP4 weights times activations in 16-bit fixed point.
//
// lanes_fixed_body.h says what becomes of activations. A weight becomes the unsigned byte 12 + 2 w
// (0..24). vpdpbusd multiplies four unsigned by four signed bytes and adds them to a 32-bit sum:
//   2 sum w v = sum (12 + 2 w) v - 12 sum v
// About 20 cycles a block of 512 weights for one token, where F32 takes 48; with many tokens the
// F32 product does as well.
#include <immintrin.h>

#include "kernels/gemv/lanes_fixed_body.h"

namespace moxie {
namespace {

void prepare(const float* x, int32_t cols, float* out) {
  auto* block = reinterpret_cast<PreparedBlock*>(out);
  for (int32_t k = 0; k < cols; k += 32, ++block) {
    const __m512 a = _mm512_loadu_ps(x + k), b = _mm512_loadu_ps(x + k + 16);
    const float amax = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
    const __m512 inverse = _mm512_set1_ps(amax > 0 ? kGreatestFixed / amax : 0.0f);
    block->half_scale = amax * (0.5f / kGreatestFixed);
    int32_t sum = 0;
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(half == 0 ? a : b, inverse));
      const __m512i lo = _mm512_srai_epi32(_mm512_slli_epi32(v, 24), 24);
      const __m512i hi = _mm512_srai_epi32(_mm512_sub_epi32(v, lo), 8);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(block->hi + 16 * half), _mm512_cvtepi32_epi8(hi));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(block->lo + 16 * half), _mm512_cvtepi32_epi8(lo));
      sum += _mm512_reduce_add_epi32(v);
    }
    block->correction = -12 * sum;
  }
}

// sum += the products of each lane's four unsigned bytes and the four signed bytes at `at`.
MOXIE_INLINE void add_products(const __m512i& weights, const int8_t* at, __m512i& sum) {
  int32_t word;
  __builtin_memcpy(&word, at, 4);
  sum = _mm512_dpbusd_epi32(sum, weights, _mm512_set1_epi32(word));
}

template <int32_t N>
void add_block(const std::byte* block, const float* const* x, int32_t i, Vec* sums) {
  const __m512i nibble = _mm512_set1_epi8(0x0F);
  const __m512i table = _mm512_broadcast_i32x4(
      _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  // For few tokens sums of the low and of the high nibbles apart: half the latency, and integers
  // add in any order.
  constexpr int32_t kHigh = N <= 2 ? 1 : 0;
  __m512i hi[N][2], lo[N][2];
#pragma GCC unroll 8
  for (int32_t n = 0; n < N; ++n) {
    const auto& from = reinterpret_cast<const PreparedBlock*>(x[n])[i];
    hi[n][kHigh] = lo[n][kHigh] = _mm512_setzero_si512();
    hi[n][0] = _mm512_setzero_si512();
    lo[n][0] = _mm512_set1_epi32(from.correction);
  }
#pragma GCC unroll 4
  for (int32_t j = 0; j < 4; ++j) {
    const __m512i codes = _mm512_loadu_si512(block + 16 + 64 * j);
    const __m512i low = _mm512_shuffle_epi8(table, _mm512_and_si512(codes, nibble));
    const __m512i high =
        _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(codes, 4), nibble));
#pragma GCC unroll 8
    for (int32_t n = 0; n < N; ++n) {
      const auto& from = reinterpret_cast<const PreparedBlock*>(x[n])[i];
      const int8_t *hi_bytes = from.hi + 8 * j, *lo_bytes = from.lo + 8 * j;
      add_products(low, hi_bytes, hi[n][0]);
      add_products(low, lo_bytes, lo[n][0]);
      add_products(high, hi_bytes + 4, hi[n][kHigh]);
      add_products(high, lo_bytes + 4, lo[n][kHigh]);
    }
  }
  const __m512 factor = _mm512_castsi512_ps(_mm512_slli_epi32(
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block))), 23));
#pragma GCC unroll 8
  for (int32_t n = 0; n < N; ++n) {
    const auto& from = reinterpret_cast<const PreparedBlock*>(x[n])[i];
    if constexpr (kHigh != 0) {
      hi[n][0] = _mm512_add_epi32(hi[n][0], hi[n][kHigh]);
      lo[n][0] = _mm512_add_epi32(lo[n][0], lo[n][kHigh]);
    }
    const __m512i total = _mm512_add_epi32(_mm512_slli_epi32(hi[n][0], 8), lo[n][0]);
    const __m512 scale = _mm512_mul_ps(factor, _mm512_set1_ps(from.half_scale));
    sums[n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(total), scale, sums[n]);
  }
}

}  // namespace

const LaneKernels kLanesAvx512Vnni = {.name = "avx512_vnni",
                                      .prepare = prepare,
                                      .f32 = {},
                                      .bf16 = {},
                                      .q8_0 = {},
                                      .mxfp4 = {fixed_product, fixed_streams, 2},
                                      .rms_norm = rms_norm,
                                      .swiglu = swiglu,
                                      .decode_ns = 0.004,
                                      .apply_ns = 0.014};

}  // namespace moxie
