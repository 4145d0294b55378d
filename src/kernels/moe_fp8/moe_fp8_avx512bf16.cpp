// MoeFp8Kernels for AVX-512 BF16: a lane of the sums is a token, a pair of weights is broadcast.
#include "kernels/moe_fp8/moe_fp8_bf16_body.h"

namespace moxie {
namespace {

void add_group(const MoeFp8Strip& strip, const MoeFp8Groups& groups, int32_t group, int32_t block,
               const uint16_t* weights, float* sums) {
  constexpr int32_t kRows = 16;
  Vec of_tokens;
  token_scales(groups, strip.cols, group, block, of_tokens);
  for (int32_t half = 0; half < 2; ++half) {
    __m512 sum[kRows];
    for (__m512& s : sum) s = _mm512_setzero_ps();
    for (int32_t part = 0; part < groups.num_parts; ++part) {
      const uint16_t* x = packed_block(groups, strip.cols, group, part, block);
      const uint16_t* w = weights + half * kRows * kBlock;
      for (int32_t k = 0; k < kBlock; k += 2) {
        const auto v = reinterpret_cast<__m512bh>(_mm512_loadu_si512(x + k * kMoeFp8Group));
#pragma GCC unroll 16
        for (int32_t r = 0; r < kRows; ++r) {
          int32_t pair;
          __builtin_memcpy(&pair, w + r * kBlock + k, 4);
          sum[r] = _mm512_dpbf16_ps(sum[r], v, reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair)));
        }
      }
    }
    for (int32_t r = 0; r < kRows; ++r)
      add_scaled_row(reinterpret_cast<Vec>(sum[r]), of_tokens, strip.scales[half][block],
                     sums + (half * kRows + r) * kMoeFp8Group);
  }
}

void multiply(const MoeFp8Strip& strip, const MoeFp8Groups& groups, float* sums) {
  alignas(64) uint16_t weights[kMoeFp8Strip * kBlock];
  const int32_t num_groups = (groups.num_tokens + kMoeFp8Group - 1) / kMoeFp8Group;
  __builtin_memset(sums, 0, sizeof(float) * kMoeFp8GroupSums * static_cast<size_t>(num_groups));
  for (int32_t block = 0; block < strip.cols / kBlock; ++block) {
    decode_strip(strip, block, weights);
    for (int32_t group = 0; group < num_groups; ++group)
      add_group(strip, groups, group, block, weights, sums + group * kMoeFp8GroupSums);
  }
}

}  // namespace

const MoeFp8Kernels kMoeFp8Avx512Bf16 = {.name = "avx512bf16",
                                         .is_bf16 = true,
                                         .is_dot = true,
                                         .most_few = kMoeFp8MostFew,
                                         .multiply = multiply,
                                         .multiply_few = multiply_few_bf16,
                                         .swiglu = swiglu_bf16x2,
                                         .add_outputs = add_outputs,
                                         .decode_ns = 0.045,
                                         .apply_ns = 0.008};

}  // namespace moxie
