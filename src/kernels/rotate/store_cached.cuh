// Storing a value of k or v at its place in the cache, on CUDA.
#pragma once

#include <cuda_bf16.h>

#include "core/formats.h"
#include "core/tensor.h"

namespace moxie {

__device__ __forceinline__ void store_cached(std::byte* to, DType dtype, float value) {
  if (dtype == DType::kF32) {
    *reinterpret_cast<float*>(to) = value;
  } else if (dtype == DType::kBF16) {
    *reinterpret_cast<__nv_bfloat16*>(to) = __float2bfloat16_rn(value);
  } else {
    *reinterpret_cast<uint8_t*>(to) = f32_to_e4m3(value);
  }
}

}  // namespace moxie
