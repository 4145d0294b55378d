// What the reference rows of rotate and qkv do with a head, in double precision.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/formats.h"
#include "kernels/step.h"

namespace moxie {

/// Half-split: pair (i, i + d/2) is rotated by the angle of i.
inline void reference_rotate(const Rotary& rotary, int32_t head_dim, int32_t position,
                             double* head) {
  const int32_t half = head_dim / 2;
  const float* cos = rotary.table + int64_t{position} * head_dim;
  const float* sin = cos + half;
  for (int32_t i = 0; i < half; ++i) {
    const double a = head[i], b = head[i + half];
    head[i] = a * cos[i] - b * sin[i];
    head[i + half] = b * cos[i] + a * sin[i];
  }
}

/// Writes n values at `at`, a place of the cache.
inline void reference_append(DType dtype, std::byte* at, const double* values, int32_t n) {
  for (int32_t i = 0; i < n; ++i) {
    const auto value = static_cast<float>(values[i]);
    if (dtype == DType::kF32) {
      std::memcpy(at + 4 * i, &value, 4);
    } else if (dtype == DType::kBF16) {
      const uint16_t bits = f32_to_bf16(value);
      std::memcpy(at + 2 * i, &bits, 2);
    } else {
      at[i] = static_cast<std::byte>(f32_to_e4m3(value));
    }
  }
}

}  // namespace moxie
