// LaneKernels for AVX2 with FMA and F16C: a tile is two halves of 8 rows.
#include <immintrin.h>

#include "kernels/gemv/lanes_body.h"

namespace moxie {
namespace {

void Q8Format::decode(const std::byte* block, int32_t group, int32_t part, Vec* w) {
  IntVec bytes;
  load(block + 32 + 64 * group + sizeof(Vec) * part, bytes);
  w[0] = __builtin_convertvector((bytes << 24) >> 24, Vec);
  w[1] = __builtin_convertvector((bytes << 16) >> 24, Vec);
  w[2] = __builtin_convertvector((bytes << 8) >> 24, Vec);
  w[3] = __builtin_convertvector(bytes >> 24, Vec);
}

void Q8Format::scale(const std::byte* block, int32_t part, Vec& factor) {
  const auto* halves = reinterpret_cast<const __m128i*>(block + 16 * part);
  factor = _mm256_cvtph_ps(_mm_loadu_si128(halves));
}

// An E2M1 value in BF16 is two bytes, each from a table of 16 (vpshufb); the bytes of two columns
// are joined into words, and a word in the upper half of a lane is an F32. With the multiply-adds
// this takes 35 instructions for 64 weights; a lookup of 8 entries and a sign for each column would
// take 48.
void Mxfp4Format::decode(const std::byte* block, int32_t group, int32_t part, Vec* w) {
  const __m256i high_bytes = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0x00, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40, static_cast<char>(0x80),
                    static_cast<char>(0xBF), static_cast<char>(0xBF), static_cast<char>(0xBF),
                    static_cast<char>(0xC0), static_cast<char>(0xC0), static_cast<char>(0xC0),
                    static_cast<char>(0xC0)));
  const __m256i low_bytes = _mm256_broadcastsi128_si256(_mm_setr_epi8(
      0x00, 0x00, static_cast<char>(0x80), static_cast<char>(0xC0), 0x00, 0x40,
      static_cast<char>(0x80), static_cast<char>(0xC0), 0x00, 0x00, static_cast<char>(0x80),
      static_cast<char>(0xC0), 0x00, 0x40, static_cast<char>(0x80), static_cast<char>(0xC0)));
  const __m256i nibble = _mm256_set1_epi8(0x0F);
  const __m256i upper_half = _mm256_set1_epi32(static_cast<int32_t>(0xFFFF0000u));
  const __m256i even_byte = _mm256_set1_epi16(0x00FF);
  const __m256i codes =
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 16 + 64 * group + 32 * part));
#pragma GCC unroll 2
  for (int32_t half = 0; half < 2; ++half) {
    const __m256i four = _mm256_and_si256(half == 0 ? codes : _mm256_srli_epi16(codes, 4), nibble);
    const __m256i high = _mm256_shuffle_epi8(high_bytes, four);
    const __m256i low = _mm256_shuffle_epi8(low_bytes, four);
    const __m256i even =
        _mm256_or_si256(_mm256_slli_epi16(high, 8), _mm256_and_si256(low, even_byte));
    const __m256i odd =
        _mm256_or_si256(_mm256_andnot_si256(even_byte, high), _mm256_srli_epi16(low, 8));
    w[4 * half + 0] = _mm256_castsi256_ps(_mm256_slli_epi32(even, 16));
    w[4 * half + 1] = _mm256_castsi256_ps(_mm256_slli_epi32(odd, 16));
    w[4 * half + 2] = _mm256_castsi256_ps(_mm256_and_si256(even, upper_half));
    w[4 * half + 3] = _mm256_castsi256_ps(_mm256_and_si256(odd, upper_half));
  }
}

}  // namespace

const LaneKernels kLanesAvx2 = {
    .name = "avx2",
    .prepare = nullptr,
    .f32 = {tile_product<F32Format>, streams_product<F32Format>},
    .bf16 = {tile_product<Bf16Format>, streams_product<Bf16Format>},
    .q8_0 = {tile_product<Q8Format>, streams_product<Q8Format>},
    .mxfp4 = {tile_product<Mxfp4Format>, nullptr},  // limited by decoding
    .rms_norm = rms_norm,
    .swiglu = swiglu,
    .add_scaled = add_scaled,
    .decode_ns = 0.03,
    .apply_ns = 0.05};

}  // namespace moxie
