// Vectors of floats, as wide as the including file's flags allow, for the files that are compiled
// for one instruction set. All its code is in an anonymous namespace, since each such file needs a
// copy of its own (gemv/lanes.h says why).
#pragma once

#include <cstdint>

#if defined(__AVX512F__)
#define MOXIE_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define MOXIE_VECTOR_BYTES 32
#else
#define MOXIE_VECTOR_BYTES 16
#endif

namespace moxie {
namespace {

typedef float Vec __attribute__((vector_size(MOXIE_VECTOR_BYTES)));
typedef int32_t IntVec __attribute__((vector_size(MOXIE_VECTOR_BYTES)));
typedef float StoredVec __attribute__((vector_size(MOXIE_VECTOR_BYTES), aligned(1), may_alias));
typedef int32_t StoredIntVec
    __attribute__((vector_size(MOXIE_VECTOR_BYTES), aligned(1), may_alias));
#undef MOXIE_VECTOR_BYTES

constexpr int32_t kLanes = static_cast<int32_t>(sizeof(Vec) / 4);

#define MOXIE_INLINE static inline __attribute__((always_inline))

// By reference: passing wide vectors by value would depend on the calling convention.
MOXIE_INLINE void load(const void* at, Vec& out) { out = *static_cast<const StoredVec*>(at); }
MOXIE_INLINE void load(const void* at, IntVec& out) { out = *static_cast<const StoredIntVec*>(at); }
MOXIE_INLINE void store(float* at, const Vec& value) { *reinterpret_cast<StoredVec*>(at) = value; }

// The lesser of a and b in each lane; b if unordered.
MOXIE_INLINE void lesser(const Vec& a, const Vec& b, Vec& out) { out = a < b ? a : b; }

// e^x for x clamped to +-87, to about 2 ulp: 2^n times a polynomial in r = x - n ln 2 of degree 6
// (Taylor to 1/720; |r| <= 0.347 leaves 1.3e-7 relative).
MOXIE_INLINE void exp_lanes(const Vec& x, Vec& out) {
  const Vec limit = Vec{} + 87.0f;
  Vec clamped;
  lesser(x, limit, clamped);
  clamped = -clamped;
  lesser(clamped, limit, clamped);
  clamped = -clamped;
  const float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const Vec shifted = clamped * 1.44269504088896341f + kRounder;
  const Vec n = shifted - kRounder;
  const Vec r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  Vec p = Vec{} + 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const IntVec exponent = (reinterpret_cast<IntVec>(shifted) + (127 - 0x4B400000)) << 23;
  out = p * reinterpret_cast<Vec>(exponent);
}

}  // namespace
}  // namespace moxie
