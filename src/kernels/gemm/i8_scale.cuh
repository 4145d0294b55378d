// How values become 8-bit integers, a row at a time (i8_rows_cuda.h).
#pragma once

#include <cstdint>

namespace moxie::gemm {

/// The nearest integers of four values in -127.5 .. 127.5.
__device__ __forceinline__ uint32_t pack_four(float a, float b, float c, float d) {
  // Added to 1.5 * 2^23, an integer stands in the lowest bits.
  const auto integer = [](float value) { return __float_as_uint(value + 12582912.0f); };
  return __byte_perm(__byte_perm(integer(a), integer(b), 0x0040),
                     __byte_perm(integer(c), integer(d), 0x0040), 0x5410);
}

/// How a row's values become integers: times `factor`; times `scale` they are values again.
struct Scale {
  float factor, scale;
};
/// By the bits of the row's greatest magnitude. Without finite values the row is NaN.
template <bool kIsPowerOfTwo = false>
__device__ __forceinline__ Scale scale_for(uint32_t greatest) {
  constexpr uint32_t kInfinity = 0x7F800000u, kLeast = 20u << 23;
  if (greatest >= kInfinity) return {0.0f, __uint_as_float(0x7FFFFFFFu)};
  if (greatest < kLeast) return {0.0f, 0.0f};  // less than 2^-106
  if constexpr (kIsPowerOfTwo) {
    const uint32_t exponent = greatest >> 23;
    return {__uint_as_float((127 + 127 + 6 - exponent) << 23),
            __uint_as_float((exponent - 6) << 23)};
  } else {
    return {127.0f / __uint_as_float(greatest), __uint_as_float(greatest) * (1.0f / 127.0f)};
  }
}

}  // namespace moxie::gemm
