// What kernels of sample compare: keys of logits and ids, and the noise of an id.
#pragma once

#include <cfloat>

#include "core/formats.h"
#include "kernels/sample/philox.h"

namespace moxie::sampling {

inline constexpr int kIdBits = 20;
inline constexpr int32_t kMaxVocab = 1 << kIdBits;
inline constexpr uint32_t kIdMask = kMaxVocab - 1;
// Noise is in -3.2 .. 22.9, so that an id this far below the best cannot win, in units of (logit -
// best) / temperature.
inline constexpr float kHopeless = -27.0f;

__device__ inline float clean(float raw) {
  if (isnan(raw)) return -INFINITY;
  if (raw > FLT_MAX) return FLT_MAX;
  return fabsf(raw) < FLT_MIN ? 0.0f : raw;
}

// Keys compare as (logit, -id) does: a greater key comes first.
__device__ inline uint64_t key_of(float value, int32_t id) {
  const uint32_t bits = f32_to_bits(value);
  const uint32_t ordered = bits ^ (bits & 0x80000000u ? 0xFFFFFFFFu : 0x80000000u);
  return (static_cast<uint64_t>(ordered) << kIdBits) | (kIdMask - static_cast<uint32_t>(id));
}
__device__ inline int32_t id_of(uint64_t key) {
  return static_cast<int32_t>(kIdMask - static_cast<uint32_t>(key & kIdMask));
}
__device__ inline float value_of(uint64_t key) {
  const auto ordered = static_cast<uint32_t>(key >> kIdBits);
  return bits_to_f32(ordered ^ (ordered & 0x80000000u ? 0x80000000u : 0xFFFFFFFFu));
}

struct Max {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a > b ? a : b; }
};
struct Sum {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a + b; }
};

// -log(-log(u)), u = (w + 0.5) / 2^32. In the upper half computed from 1 - u, which F32 represents
// more finely there.
__device__ inline float gumbel_of(uint32_t word) {
  constexpr float kUnit = 2.3283064365386963e-10f;  // 2^-32
  const float u = (static_cast<float>(word) + 0.5f) * kUnit;
  const float rest = (static_cast<float>(~word) + 0.5f) * kUnit;
  return -logf(word < 0x80000000u ? -logf(u) : -log1pf(-rest));
}

__device__ inline float gumbel(uint64_t seed, uint64_t step, int32_t id) {
  return gumbel_of(sample_word(seed, step, id));
}

}  // namespace moxie::sampling
