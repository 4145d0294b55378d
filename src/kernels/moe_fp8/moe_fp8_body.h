// What the variants of MoeFp8Kernels share: decoding E4M3 to F32, products with a few
// tokens, the activation and the sum of outputs. Include this file only in files compiled for one
// instruction set; all its code is in an anonymous namespace, for the reason that gemv/lanes.h
// gives.
//
// E4M3 to F32: the code's exponent and mantissa, seven bits further up, are an FP16 of 2^-8 times
// the value, subnormals included. The one exception is the NaN code, found by a compare.
#pragma once

#include <immintrin.h>

#include "kernels/moe_fp8/moe_fp8_lanes.h"
#include "kernels/vectors_body.h"

namespace moxie {
namespace {

constexpr int32_t kBlock = 128, kBlocksOfVecs = 16 / kLanes;  // vectors of 16 values
constexpr float kOfHalf = 256.0f;

// 16 codes, in FP16, times 2^-8. NaN codes give numbers.
MOXIE_INLINE __m256i halves_of(const uint8_t* codes) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  // The sign is in bits 15 and 14 after the shift.
  return _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7),
                          _mm256_set1_epi16(static_cast<int16_t>(0xBFFF)));
}
MOXIE_INLINE void floats_of(__m256i halves, Vec* out) {
#if defined(__AVX512F__)
  out[0] = reinterpret_cast<Vec>(_mm512_cvtph_ps(halves));
#else
  out[0] = reinterpret_cast<Vec>(_mm256_cvtph_ps(_mm256_castsi256_si128(halves)));
  out[1] = reinterpret_cast<Vec>(_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)));
#endif
}

// Adds the NaN codes of 32 codes to a mask.
MOXIE_INLINE void find_nans(const uint8_t* codes, __m256i& found) {
  const __m256i magnitude = _mm256_set1_epi8(0x7F);
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
  found = _mm256_or_si256(found, _mm256_cmpeq_epi8(_mm256_and_si256(bytes, magnitude), magnitude));
}
bool has_nan(const uint8_t* codes) {
  for (int32_t k = 0; k < kBlock; ++k)
    if ((codes[k] & 0x7F) == 0x7F) return true;
  return false;
}

// ---- A few tokens -------------------------------------------------------------------------------

template <int N>
void multiply_few_of(const uint8_t* rows, const float* scales, int32_t cols, const float* const* x,
                     const uint8_t* next, float* y) {
  constexpr int32_t kRows = kMoeFp8FewRows;
  Vec total[kRows][N] = {};
  for (int32_t block = 0; block < cols; block += kBlock) {
    Vec sum[kRows][N] = {};
    __m256i nans = _mm256_setzero_si256();
    for (int32_t k = block; k < block + kBlock; k += 32) {
#pragma GCC unroll 4
      for (int32_t r = 0; r < kRows; ++r) {
        const uint8_t* codes = rows + int64_t{r} * cols + k;
        if (k % 64 == 0) __builtin_prefetch(next + int64_t{r} * cols + k, 0, 2);
        find_nans(codes, nans);
#pragma GCC unroll 2
        for (int32_t half = 0; half < 2; ++half) {
          Vec w[kBlocksOfVecs];
          floats_of(halves_of(codes + 16 * half), w);
#pragma GCC unroll 2
          for (int32_t n = 0; n < N; ++n) {
#pragma GCC unroll 2
            for (int32_t part = 0; part < kBlocksOfVecs; ++part) {
              Vec v;
              load(x[n] + k + 16 * half + kLanes * part, v);
              sum[r][n] += w[part] * v;
            }
          }
        }
      }
    }
    const float scale = scales[block / kBlock];
    const bool any_nan = _mm256_testz_si256(nans, nans) == 0;
    for (int32_t r = 0; r < kRows; ++r) {
      const bool is_nan = any_nan && has_nan(rows + int64_t{r} * cols + block);
      for (int32_t n = 0; n < N; ++n) {
        total[r][n] += sum[r][n] * kOfHalf * scale;
        if (is_nan) total[r][n] += __builtin_nanf("");
      }
    }
  }
  for (int32_t r = 0; r < kRows; ++r) {
    for (int32_t n = 0; n < N; ++n) {
      float sum = 0;
      for (int32_t lane = 0; lane < kLanes; ++lane) sum += total[r][n][lane];
      y[r * N + n] = sum;
    }
  }
}

void multiply_few(const uint8_t* rows, const float* scales, int32_t cols, const float* const* x,
                  int32_t num_tokens, const uint8_t* next, float* y) {
  if (num_tokens == 1)
    multiply_few_of<1>(rows, scales, cols, x, next, y);
  else
    multiply_few_of<2>(rows, scales, cols, x, next, y);
}

// ---- Activation and outputs ---------------------------------------------------------------------

MOXIE_INLINE void silu_times(const Vec& gate, const Vec& up, Vec& out) {
  Vec e;
  exp_lanes(-gate, e);
  out = gate / (e + 1.0f) * up;
}

void add_outputs(const float* sums, const float* weights, int32_t num_tokens, float* const* out) {
  for (int32_t token = 0; token < num_tokens; ++token) {
    float of_token[kMoeFp8Strip];
    for (int32_t row = 0; row < kMoeFp8Strip; ++row)
      of_token[row] = sums[row * kMoeFp8Group + token];
    for (int32_t row = 0; row < kMoeFp8Strip; row += kLanes) {
      Vec y, total;
      load(of_token + row, y);
      load(out[token] + row, total);
      store(out[token] + row, total + y * weights[token]);
    }
  }
}

}  // namespace
}  // namespace moxie
