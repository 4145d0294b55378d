// Activations as blocks of 32 in an MX format: how a block of threads loads a token's values, the
// scale of a block of 32, and how eight values are rounded and stored in a staged row (staged.cuh).
#pragma once

#include "core/cuda_launch.cuh"
#include "core/formats.h"
#include "kernels/gemm/stage_cuda.h"
#include "kernels/ptx.cuh"
#include "kernels/residual.cuh"

namespace moxie::gemm {

inline constexpr int kMaxMxWarps = 16;  ///< of a block of threads that stages a token

#ifdef __CUDACC__

/// A thread has every blockDim.x-th group of eight columns, so that four neighbouring lanes have a
/// block of 32. Loads the values of the block's token, normed if kIsNormed; zeros past the width.
template <int kCount, bool kIsNormed>
__device__ __forceinline__ void load_eights(const StageSlots& p, float4 (&values)[kCount][2]) {
  __shared__ float squares[kMaxMxWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_warps = blockDim.x / 32;
  const auto group = [](int i) { return static_cast<int>(threadIdx.x + i * blockDim.x); };
  const auto load_weight = [&](int column) {
    return column < p.to.width ? *reinterpret_cast<const float4*>(p.norm_weight + column)
                               : float4{};
  };
  const int64_t token = blockIdx.x;
  const auto load = [&]<bool kIsSingle>() {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        ResidualFour<kIsSingle> four = {};
        const int column = 8 * group(i) + 4 * half;
        if (column < p.to.width) four.load(p.values, token * p.to.width + column);
        values[i][half] = four.values();
      }
    }
  };
  if constexpr (kIsNormed) {
    with_single(p.x_is_single, load);
    float square = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      for (const float4& v : values[i]) square += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    square = warp_sum(square);
    if (lane == 0) squares[warp] = square;
    __syncthreads();
    square = warp_sum(lane < num_warps ? squares[lane] : 0.0f);
    const float factor = 1.0f / sqrtf(square / static_cast<float>(p.to.width) + p.rms_eps);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float4& v = values[i][half];
        const float4 w = load_weight(8 * group(i) + 4 * half);
        v = {v.x * factor * w.x, v.y * factor * w.y, v.z * factor * w.z, v.w * factor * w.w};
      }
    }
  } else {
    load.template operator()<true>();
  }
}

/// The scale of a block of 32, of which four neighbouring lanes have eight values each.
__device__ __forceinline__ uint8_t scale_of_eights(const float4 (&eight)[2], MxElement element) {
  uint32_t amax_bits = 0;
  for (const float4& v : eight) {
    for (const float value : {v.x, v.y, v.z, v.w})
      amax_bits = max(amax_bits, __float_as_uint(value) & 0x7FFFFFFFu);
  }
  amax_bits = max(amax_bits, __shfl_xor_sync(~0u, amax_bits, 1));
  amax_bits = max(amax_bits, __shfl_xor_sync(~0u, amax_bits, 2));
  return mx_activation_scale(amax_bits, mx_emax(element));
}

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
