// AVX-VNNI: 256-bit INT8 dot products of four, for CPUs with or without AVX-512.
#include <immintrin.h>

#include "lab/machine_loops.h"

namespace moxie {
namespace {

constexpr int kSums = 12;

float multiply_add_int8(int64_t num_iterations) {
  __m256i sums[kSums] = {};
  __m256i left = _mm256_set1_epi8(3);
  const __m256i right = _mm256_set1_epi8(-2);
  for (int64_t i = 0; i < num_iterations; ++i) {
#pragma GCC unroll 12
    for (int k = 0; k < kSums; ++k) {
      asm volatile("" : "+x"(left));  // it may change: else all chains are one
      sums[k] = _mm256_dpbusd_avx_epi32(sums[k], left, right);
    }
  }
  for (int k = 1; k < kSums; ++k) sums[0] = _mm256_xor_si256(sums[0], sums[k]);
  return static_cast<float>(_mm256_cvtsi256_si32(sums[0]));
}

constexpr ArithmeticLoop kArithmeticLoops[] = {{NumberFormat::kInt8, "avx_vnni vpdpbusd",
                                                kAvx2 | kAvxVnni, 2.0 * 32 * kSums,
                                                multiply_add_int8}};

}  // namespace

std::span<const ArithmeticLoop> arithmetic_loops_avx_vnni() { return kArithmeticLoops; }

}  // namespace moxie
