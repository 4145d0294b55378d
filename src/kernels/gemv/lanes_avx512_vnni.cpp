// LaneKernels for AVX-512 with VNNI: MXFP4 weights times activations in fixed point of 16 or 8
// bits.
//
// lanes_fixed_body.h describes the activations. A weight becomes the unsigned byte 12 + 2 w
// (0..24). vpdpbusd multiplies four unsigned by four signed bytes and adds the products to a 32-bit
// sum:
//   2 sum w v = sum (12 + 2 w) v - 12 sum v
// About 25 cycles a block of 512 weights for one token in 16 bits and 20 in 8, where F32 takes 48.
#include <immintrin.h>

#include "kernels/gemv/lanes_fixed_body.h"

namespace moxie {
namespace {

// sum += the products of each lane's four unsigned bytes and the four signed bytes at `at`.
MOXIE_INLINE void add_products(const __m512i& weights, const int8_t* at, __m512i& sum) {
  sum = _mm512_dpbusd_epi32(sum, weights, _mm512_set1_epi32(four_bytes(at)));
}

template <int32_t W, int32_t N>
void add_block(const std::byte* block, const float* const* x, int32_t i, Vec* sums) {
  const __m512i nibble = _mm512_set1_epi8(0x0F);
  const __m512i table = _mm512_broadcast_i32x4(
      _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  // For few tokens the sums of low and of high nibbles are separate: half the latency, and integers
  // add in any order.
  constexpr int32_t kHigh = N <= 2 ? 1 : 0;
  __m512i sum[N][W][2];
#pragma GCC unroll 8
  for (int32_t n = 0; n < N; ++n) {
    const auto& from = reinterpret_cast<const PreparedBlock<W>*>(x[n])[i];
#pragma GCC unroll 2
    for (int32_t w = 0; w < W; ++w) {
      sum[n][w][kHigh] = _mm512_setzero_si512();
      sum[n][w][0] = _mm512_setzero_si512();
    }
    sum[n][W - 1][0] = _mm512_set1_epi32(from.correction);
  }
#pragma GCC unroll 4
  for (int32_t j = 0; j < 4; ++j) {
    const __m512i codes = _mm512_loadu_si512(block + 16 + 64 * j);
    const __m512i low = _mm512_shuffle_epi8(table, _mm512_and_si512(codes, nibble));
    const __m512i high =
        _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(codes, 4), nibble));
#pragma GCC unroll 8
    for (int32_t n = 0; n < N; ++n) {
      const auto& from = reinterpret_cast<const PreparedBlock<W>*>(x[n])[i];
#pragma GCC unroll 2
      for (int32_t w = 0; w < W; ++w) add_products(low, from.bytes[w] + 8 * j, sum[n][w][0]);
#pragma GCC unroll 2
      for (int32_t w = 0; w < W; ++w) {
        add_products(high, from.bytes[w] + 8 * j + 4, sum[n][w][kHigh]);
      }
    }
  }
  const __m512 factor = _mm512_castsi512_ps(_mm512_slli_epi32(
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block))), 23));
#pragma GCC unroll 8
  for (int32_t n = 0; n < N; ++n) {
    const auto& from = reinterpret_cast<const PreparedBlock<W>*>(x[n])[i];
    if constexpr (kHigh != 0) {
#pragma GCC unroll 2
      for (int32_t w = 0; w < W; ++w) {
        sum[n][w][0] = _mm512_add_epi32(sum[n][w][0], sum[n][w][kHigh]);
      }
    }
    __m512i total = sum[n][0][0];
    if constexpr (W == 2) total = _mm512_add_epi32(_mm512_slli_epi32(total, 8), sum[n][1][0]);
    const __m512 scale = _mm512_mul_ps(factor, _mm512_set1_ps(from.half_scale));
    sums[n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(total), scale, sums[n]);
  }
}

}  // namespace

const LaneKernels kLanesAvx512VnniI16 = fixed_lanes<2, 12>("avx512vnni_i16", 2, 0.004, 0.014);
const LaneKernels kLanesAvx512VnniI8 = fixed_lanes<1, 12>("avx512vnni_i8", 2, 0.008, 0.006);

}  // namespace moxie
