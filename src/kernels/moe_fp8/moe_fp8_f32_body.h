// What the variants of MoeFp8Kernels with F32 products share: groups of tokens. Include this file
// only in files compiled for one instruction set (gemv/lanes.h says why).
#pragma once

#include "kernels/moe_fp8/moe_fp8_body.h"

namespace moxie {
namespace {

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
