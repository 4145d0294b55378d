// AVX-512 VNNI: 512-bit INT8 dot products of four.
#include <immintrin.h>

#include "lab/machine_loops.h"

namespace moxie {
namespace {

constexpr int kSums = 16;

float multiply_add_int8(int64_t num_iterations) {
  __m512i sums[kSums] = {};
  __m512i left = _mm512_set1_epi8(3);
  const __m512i right = _mm512_set1_epi8(-2);
  for (int64_t i = 0; i < num_iterations; ++i) {
#pragma GCC unroll 16
    for (int k = 0; k < kSums; ++k) {
      asm volatile("" : "+v"(left));  // it may change: else all chains are one
      sums[k] = _mm512_dpbusd_epi32(sums[k], left, right);
    }
  }
  for (int k = 1; k < kSums; ++k) sums[0] = _mm512_xor_si512(sums[0], sums[k]);
  return static_cast<float>(_mm512_cvtsi512_si32(sums[0]));
}

constexpr ArithmeticLoop kArithmeticLoops[] = {{NumberFormat::kInt8, "avx512_vnni vpdpbusd",
                                                kAvx512 | kAvx512Vnni, 2.0 * 64 * kSums,
                                                multiply_add_int8}};

}  // namespace

std::span<const ArithmeticLoop> arithmetic_loops_avx512_vnni() { return kArithmeticLoops; }

}  // namespace moxie
