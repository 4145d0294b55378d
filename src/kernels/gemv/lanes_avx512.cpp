// LaneKernels for AVX-512 (F, BW, DQ, VL): a row is a lane of one vector.
#include <immintrin.h>

#include "kernels/gemv/lanes_body.h"

namespace moxie {
namespace {

// The byte with its sign bit flipped, in the mantissa of 2^23, is 2^23 + 128 + value: exact, and
// with less work for the shift port than two shifts and a conversion.
void Q8Format::decode(const std::byte* block, int32_t group, int32_t, Vec* w) {
  const __m512i bytes =
      _mm512_xor_si512(_mm512_loadu_si512(block + 32 + 64 * group), _mm512_set1_epi8(-128));
  const __m512i byte_mask = _mm512_set1_epi32(0xFF);
  const __m512i exponent = _mm512_set1_epi32(0x4B000000);
  const __m512 offset = _mm512_set1_ps(8388608.0f + 128.0f);
  constexpr int kAndOr = 0xEA;  // (a & b) | c
#pragma GCC unroll 4
  for (int32_t c = 0; c < 4; ++c) {
    const __m512i shifted = c == 0 ? bytes : _mm512_srli_epi32(bytes, 8 * c);
    const __m512i bits = _mm512_ternarylogic_epi32(shifted, byte_mask, exponent, kAndOr);
    w[c] = _mm512_sub_ps(_mm512_castsi512_ps(bits), offset);
  }
}

void Q8Format::scale(const std::byte* block, int32_t, Vec& factor) {
  factor = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(block)));
}

// vpermps uses only the low four bits of a lane: a shift puts the code there, without a mask.
void Mxfp4Format::decode(const std::byte* block, int32_t group, int32_t, Vec* w) {
  const __m512 values = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f,
                                       -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
  const __m512i codes = _mm512_loadu_si512(block + 16 + 64 * group);
#pragma GCC unroll 8
  for (int32_t c = 0; c < 8; ++c) {
    const int shift = 8 * (c % 4) + 4 * (c / 4);
    const __m512i index = shift == 0 ? codes : _mm512_srli_epi32(codes, shift);
    w[c] = _mm512_permutexvar_ps(index, values);
  }
}

}  // namespace

const LaneKernels kLanesAvx512 = {
    .name = "avx512",
    .prepare = nullptr,
    .f32 = {tile_product<F32Format>, streams_product<F32Format>},
    .bf16 = {tile_product<Bf16Format>, streams_product<Bf16Format>},
    .q8_0 = {tile_product<Q8Format>, streams_product<Q8Format>},
    .mxfp4 = {tile_product<Mxfp4Format>, nullptr},  // limited by decoding
    .rms_norm = rms_norm,
    .swiglu = swiglu,
    .add_scaled = add_scaled,
    .decode_ns = 0.02,
    .apply_ns = 0.018};

}  // namespace moxie
