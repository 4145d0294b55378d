// AVX-512 BF16: dot products of pairs of BF16 into FP32 sums.
#include <immintrin.h>

#include "lab/machine_loops.h"

namespace moxie {
namespace {

constexpr int kSums = 16;

float multiply_add_bf16(int64_t num_iterations) {
  __m512 sums[kSums] = {};
  __m512bh left = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5f), _mm512_set1_ps(0.25f));
  const __m512bh right = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.125f), _mm512_set1_ps(-0.25f));
  for (int64_t i = 0; i < num_iterations; ++i) {
#pragma GCC unroll 16
    for (int k = 0; k < kSums; ++k) {
      asm volatile("" : "+v"(left));  // it may change: else all chains are one
      sums[k] = _mm512_dpbf16_ps(sums[k], left, right);
    }
  }
  for (int k = 1; k < kSums; ++k) sums[0] = _mm512_add_ps(sums[0], sums[k]);
  return _mm512_cvtss_f32(sums[0]);
}

constexpr ArithmeticLoop kArithmeticLoops[] = {{NumberFormat::kBF16, "avx512_bf16 vdpbf16ps",
                                                kAvx512 | kAvx512Bf16, 2.0 * 32 * kSums,
                                                multiply_add_bf16}};

}  // namespace

std::span<const ArithmeticLoop> arithmetic_loops_avx512_bf16() { return kArithmeticLoops; }

}  // namespace moxie
