// The power of two that brings a row of values into E4M3's range.
#pragma once

#include <cstdint>

namespace moxie::gemm {

/// The power of two that scales `greatest` to 224 (exclusive) .. 448; 1 for 0 and for values that
/// no such power scales there.
__device__ __forceinline__ float e4m3_scale(float greatest) {
  const uint32_t bits = __float_as_uint(greatest), exponent = bits >> 23;
  // 1.75 * 2^8 is the greatest E4M3.
  const uint32_t up = 127 + 8 + 127 - exponent - ((bits & 0x7FFFFFu) > 0x600000u ? 1 : 0);
  return exponent < 20 || exponent > 240 ? 1.0f : __uint_as_float(up << 23);
}

}  // namespace moxie::gemm
