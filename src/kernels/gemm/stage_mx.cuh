// How eight activations of a block of 32 are rounded to an MX format and stored in a staged row
// (staged.cuh).
#pragma once

#include "core/formats.h"
#include "kernels/gemm/staged.cuh"

namespace moxie::gemm {

#ifdef __CUDACC__

/// Columns 8q .. 8q + 7 of a block (0 or 1) of a unit; `to`: the unit of row `row`. kActivation: as
/// nibbles (kMXFP4), or a byte each; E2M1 bytes have their code in bits 5:2.
template <DType kActivation>
__device__ __forceinline__ void store_eight(std::byte* to, uint32_t row, uint32_t block, uint32_t q,
                                            MxElement element, uint8_t scale, float4 low,
                                            float4 high) {
  const float values[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  if constexpr (kActivation == DType::kMXFP4) {
    uint32_t word = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      word |= static_cast<uint32_t>(mx_activation_code(MxElement::kE2M1, values[j], scale))
              << (4 * staged_nibble(j));
    }
    *reinterpret_cast<uint32_t*>(to + staged_nibble_chunk(row, block) + 4 * q) = word;
  } else {
    const int up = element == MxElement::kE2M1 ? 2 : 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t word = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        word |= static_cast<uint32_t>(mx_activation_code(element, values[4 * half + j], scale))
                << (8 * j + up);
      }
      *reinterpret_cast<uint32_t*>(to + staged_quad_chunk(row, 2 * block + half) + 4 * q) = word;
    }
  }
}

#endif  // __CUDACC__

}  // namespace moxie::gemm
