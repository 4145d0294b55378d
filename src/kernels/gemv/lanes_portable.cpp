// LaneKernels in plain C++ with vectors of 16 bytes: SSE2, NEON, or what the compiler has.
#include "kernels/gemv/lanes_body.h"

namespace moxie {
namespace {

void Q8Format::decode(const std::byte* block, int32_t group, int32_t part, Vec* w) {
  IntVec bytes;
  load(block + 32 + 64 * group + sizeof(Vec) * part, bytes);
  w[0] = __builtin_convertvector((bytes << 24) >> 24, Vec);
  w[1] = __builtin_convertvector((bytes << 16) >> 24, Vec);
  w[2] = __builtin_convertvector((bytes << 8) >> 24, Vec);
  w[3] = __builtin_convertvector(bytes >> 24, Vec);
}

// FP16 to F32 without a subnormal in between, since flush-to-zero is on: subnormals are integers
// times 2^-24.
void Q8Format::scale(const std::byte* block, int32_t part, Vec& factor) {
  const auto* halves = reinterpret_cast<const uint8_t*>(block) + 2 * kLanes * part;
  IntVec half;
#pragma GCC unroll 4
  for (int32_t lane = 0; lane < kLanes; ++lane) {
    half[lane] = halves[2 * lane] | (halves[2 * lane + 1] << 8);
  }
  const IntVec magnitude = half & 0x7FFF;
  const Vec subnormal = __builtin_convertvector(magnitude, Vec) * 5.9604644775390625e-8f;
  const IntVec normal = (magnitude << 13) + (112 << 23);
  const IntVec is_subnormal = magnitude < 0x400;
  factor = reinterpret_cast<Vec>((is_subnormal & reinterpret_cast<IntVec>(subnormal)) |
                                 (~is_subnormal & normal) | ((half & 0x8000) << 16));
}

// Arithmetic instead of a table: with the code's three low bits as exponent and mantissa, and an
// implicit one for every code, v is 0.5, 0.75, 1, 1.5, ...; the lesser of v and 2v - 1 makes the
// first two 0 and 0.5 and leaves the others unchanged.
void Mxfp4Format::decode(const std::byte* block, int32_t group, int32_t part, Vec* w) {
  IntVec codes;
  load(block + 16 + 64 * group + sizeof(Vec) * part, codes);
#pragma GCC unroll 8
  for (int32_t c = 0; c < 8; ++c) {
    const IntVec code = codes >> (8 * (c % 4) + 4 * (c / 4));
    const Vec v = reinterpret_cast<Vec>(((code & 7) << 22) + (126 << 23));
    const Vec lower = v + v - 1.0f;
    Vec magnitude;
    lesser(lower, v, magnitude);
    w[c] = reinterpret_cast<Vec>(reinterpret_cast<IntVec>(magnitude) | ((code & 8) << 28));
  }
}

}  // namespace

const LaneKernels kLanesPortable = {
    .name = "portable",
    .prepare = nullptr,
    .f32 = {tile_product<F32Format>, streams_product<F32Format>},
    .bf16 = {tile_product<Bf16Format>, streams_product<Bf16Format>},
    .q8_0 = {tile_product<Q8Format>, streams_product<Q8Format>},
    .mxfp4 = {tile_product<Mxfp4Format>, nullptr},  // limited by decoding
    .rms_norm = rms_norm,
    .swiglu = swiglu,
    .add_scaled = add_scaled,
    .decode_ns = 0.24,
    .apply_ns = 0.17};

}  // namespace moxie
