// The passes of sample for AVX2 with FMA.
#include <immintrin.h>

#include "kernels/sample/sample_scan_body.h"

namespace moxie {
namespace {

struct Avx2 {
  static constexpr int kLanes = 8;
  typedef float F __attribute__((vector_size(32)));
  typedef float H __attribute__((vector_size(16)));
  typedef double D __attribute__((vector_size(32)));
  typedef int64_t L __attribute__((vector_size(32)));
  typedef int32_t I __attribute__((vector_size(32)));
  typedef uint32_t U __attribute__((vector_size(32)));

  static bool any(I x) { return _mm256_movemask_ps(reinterpret_cast<__m256>(x)) != 0; }

  // Products of 32 by 32 bits, even and odd lanes apart.
  static void multiply(U x, uint32_t factor, U& high, U& low) {
    const __m256i a = reinterpret_cast<__m256i>(x), f = _mm256_set1_epi32(static_cast<int>(factor));
    const __m256i even = _mm256_mul_epu32(a, f);
    const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), f);
    high = reinterpret_cast<U>(_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA));
    low = reinterpret_cast<U>(_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA));
  }
};

}  // namespace

extern const SampleScanCode kSampleScanAvx2 = SampleScanBody<Avx2>::code();

}  // namespace moxie
