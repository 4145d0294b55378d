// Powers of two that bring values into FP16's range: what the kernels for few tokens and for many
// share. Exponents are those of F32, biased.
#pragma once

#include <cstdint>

namespace moxie::moe_fp8 {

// FP16 holds the greatest of some values as 2^14 to 2^15.
inline constexpr int kTop = 14, kLeastExponent = 16, kMostExponent = 254;

__device__ __forceinline__ float power_of_two(int exponent) {
  return __uint_as_float(static_cast<uint32_t>(exponent) << 23);
}
/// Of the greatest of some magnitudes, as bits of F32: its exponent, within limits.
__device__ __forceinline__ int exponent_of(uint32_t greatest) {
  return min(max(static_cast<int>(greatest >> 23), kLeastExponent), kMostExponent);
}
/// What takes values of that exponent to kTop.
__device__ __forceinline__ float power_to_top(int exponent) {
  return power_of_two(2 * 127 + kTop - exponent);
}
/// Raises the greatest of some magnitudes, as bits of F32, to that of a value; what is not finite
/// counts for nothing.
__device__ __forceinline__ void raise_to(uint32_t& greatest, float value) {
  const uint32_t bits = __float_as_uint(value) & 0x7FFFFFFFu;
  if (bits < 0x7F800000u) greatest = max(greatest, bits);
}

}  // namespace moxie::moe_fp8
