// The passes of sample for AVX-512 (F, BW, DQ, VL).
#include <immintrin.h>

#include "kernels/sample/sample_scan_body.h"

namespace moxie {
namespace {

struct Avx512 {
  static constexpr int kLanes = 16;
  typedef float F __attribute__((vector_size(64)));
  typedef float H __attribute__((vector_size(32)));
  typedef double D __attribute__((vector_size(64)));
  typedef int64_t L __attribute__((vector_size(64)));
  typedef int32_t I __attribute__((vector_size(64)));
  typedef uint32_t U __attribute__((vector_size(64)));

  static bool any(I x) { return _mm512_movepi32_mask(reinterpret_cast<__m512i>(x)) != 0; }

  // Products of 32 by 32 bits, even and odd lanes apart.
  static void multiply(U x, uint32_t factor, U& high, U& low) {
    const __m512i a = reinterpret_cast<__m512i>(x), f = _mm512_set1_epi32(static_cast<int>(factor));
    const __m512i even = _mm512_mul_epu32(a, f);
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), f);
    high = reinterpret_cast<U>(_mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd));
    low = reinterpret_cast<U>(_mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32)));
  }
};

}  // namespace

extern const SampleScanCode kSampleScanAvx512 = SampleScanBody<Avx512>::code();

}  // namespace moxie
