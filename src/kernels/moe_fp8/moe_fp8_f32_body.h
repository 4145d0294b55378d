// What the variants of MoeFp8Kernels with F32 products share: decoding, a few tokens, and groups of
// tokens. Include this file only in files compiled for one instruction set (gemv/lanes.h says why).
//
// E4M3 to F32: the code's exponent and mantissa, seven bits further up, are an FP16 of 2^-8 times
// the value, subnormals included. The one exception is the NaN code, found by a compare.
#pragma once

#include "kernels/moe_fp8/moe_fp8_body.h"

namespace moxie {
namespace {

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
void multiply_few_of(const uint8_t* rows, const float* scales, int32_t cols, const MoeFp8Few& few,
                     const uint8_t* next, float* y) {
  constexpr int32_t kRows = kMoeFp8FewRows;
  const auto* x = reinterpret_cast<const float*>(few.packed);
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
              load(x + int64_t{n} * cols + k + 16 * half + kLanes * part, v);
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
  store_few(total, y);
}

void multiply_few_f32(const uint8_t* rows, const float* scales, int32_t cols, const MoeFp8Few& few,
                      const uint8_t* next, float* y) {
  if (few.num_tokens == 1)
    multiply_few_of<1>(rows, scales, cols, few, next, y);
  else
    multiply_few_of<2>(rows, scales, cols, few, next, y);
}

// ---- Groups of tokens ---------------------------------------------------------------------------

// halves_of() with NaN for NaN codes.
MOXIE_INLINE __m256i halves_or_nan(const uint8_t* codes) {
  const __m256i halves = halves_of(codes);
  const __m256i is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(halves, _mm256_set1_epi16(0x7FFF)),
                                            _mm256_set1_epi16(0x7F << 7));
  return _mm256_or_si256(halves, _mm256_and_si256(is_nan, _mm256_set1_epi16(0x7E00)));
}
// Adds scale * (rows of decoded weights times a block of a group) to the sums, R rows at a time.
// kVecs vectors of tokens: the others stay as they are.
template <int R, int kVecs>
MOXIE_INLINE void add_block(const float* weights, const float* x, const float* scales,
                            float* sums) {
  for (int32_t first = 0; first < kMoeFp8Strip; first += R) {
    Vec sum[R][kVecs] = {};
    const float* w = weights + first * kBlock;
    for (int32_t k = 0; k < kBlock; ++k) {
      Vec v[kVecs];
#pragma GCC unroll 2
      for (int32_t part = 0; part < kVecs; ++part)
        load(x + k * kMoeFp8Group + kLanes * part, v[part]);
#pragma GCC unroll 8
      for (int32_t r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int32_t part = 0; part < kVecs; ++part) sum[r][part] += v[part] * w[r * kBlock + k];
      }
    }
    const float scale = scales[first / 16];
    for (int32_t r = 0; r < R; ++r) {
      for (int32_t part = 0; part < kVecs; ++part) {
        float* at = sums + (first + r) * kMoeFp8Group + kLanes * part;
        Vec total;
        load(at, total);
        store(at, total + sum[r][part] * scale);
      }
    }
  }
}

void multiply_f32(const MoeFp8Strip& strip, const MoeFp8Groups& groups, float* sums) {
  alignas(64) float weights[kMoeFp8Strip * kBlock];
  const int32_t num_groups = (groups.num_tokens + kMoeFp8Group - 1) / kMoeFp8Group;
  __builtin_memset(sums, 0, sizeof(float) * kMoeFp8GroupSums * static_cast<size_t>(num_groups));
  for (int32_t block = 0; block < strip.cols / kBlock; ++block) {
    for (int32_t row = 0; row < kMoeFp8Strip; ++row) {
      const uint8_t* codes = strip.half[row / 16] + int64_t{row % 16} * strip.cols + block * kBlock;
      const uint8_t* ahead = codes + int64_t{strip.rows_ahead} * strip.cols;
      __builtin_prefetch(ahead, 0, 2);
      __builtin_prefetch(ahead + 64, 0, 2);
      for (int32_t k = 0; k < kBlock; k += 16) {
        Vec w[kBlocksOfVecs];
        floats_of(halves_or_nan(codes + k), w);
        for (int32_t part = 0; part < kBlocksOfVecs; ++part)
          store(weights + row * kBlock + k + kLanes * part, w[part] * kOfHalf);
      }
    }
    const float scales[2] = {strip.scales[0][block], strip.scales[1][block]};
    for (int32_t group = 0; group < num_groups; ++group) {
      const auto* x = reinterpret_cast<const float*>(groups.packed + group * groups.group_bytes) +
                      int64_t{block} * kBlock * kMoeFp8Group;
      float* of_group = sums + group * kMoeFp8GroupSums;
      // 13 of AVX2's 16 registers hold sums, activations and a weight.
      if (groups.num_tokens - group * kMoeFp8Group <= kLanes)
        add_block<8, 1>(weights, x, scales, of_group);
      else
        add_block<kLanes == 16 ? 8 : 4, kBlocksOfVecs>(weights, x, scales, of_group);
    }
  }
}

void swiglu_f32(const float* sums, int32_t first, int32_t, std::byte* packed) {
  float* out = reinterpret_cast<float*>(packed) + int64_t{first} * kMoeFp8Group;
  for (int32_t i = 0; i < 16 * kMoeFp8Group; i += kLanes) {
    Vec up, gate, h;
    load(sums + i, up);
    load(sums + 16 * kMoeFp8Group + i, gate);
    silu_times(gate, up, h);
    store(out + i, h);
  }
}

}  // namespace
}  // namespace moxie
