// One warp writes one unit of kFragment16x32 (core/fragment.h): each lane gives its eight columns
// of two rows in two blocks, as codes or as values that are quantised on the way. Shared by
// repacking and by making random weights.
#pragma once

#include "core/formats.h"
#include "core/fragment.h"

namespace moxie {

/// The parts of a PackedMatrix that device code needs, and where its expert lies.
struct UnitTarget {
  std::byte* units = nullptr;
  int32_t num_units = 0, cols = 0;
  DType format = DType::kBF16;
};
inline UnitTarget unit_target(const PackedMatrix& expert) {
  return {.units = const_cast<std::byte*>(expert.data),
          .num_units = expert.num_units(),
          .cols = expert.cols,
          .format = expert.format};
}

#ifdef __CUDACC__
/// OCP MX scale code of a block whose four lanes hold eight values each; see mx_block_amax.
__device__ inline uint8_t block_scale(const float values[8], int emax) {
  float amax = 0.0f;
  for (int j = 0; j < 8; ++j) {
    const uint32_t bits = f32_to_bits(values[j]) & 0x7FFFFFFFu;
    const float magnitude = bits >= 0x7F800000u ? 3.4028234663852886e38f : bits_to_f32(bits);
    amax = magnitude > amax ? magnitude : amax;
  }
  for (int lanes = 1; lanes < 4; lanes *= 2)
    amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, lanes));
  return mx_scale_code(amax, emax);
}

/// What a lane holds of a unit: part p = 2 * block + half is its columns of row g + 8 half.
struct LaneUnit {
  uint4 words[8];  ///< 16 bytes each, as many as the format has (MXFP4 1, MXFP8 2, BF16 4, F32 8)
  uint16_t scale[4];  ///< [part]; of the block, alike in its four lanes
};

/// Sets part p from values; for block formats all lanes of the warp call it alike.
template <DType kFormat>
__device__ inline void set_part(LaneUnit& unit, int p, const float values[8]) {
  static_assert(kFormat == DType::kF32 || kFormat == DType::kBF16 || kFormat == DType::kMXFP4 ||
                    kFormat == DType::kMXFP8,
                "Q8_0 is copied, never made");
  if constexpr (kFormat == DType::kF32) {
    memcpy(&unit.words[2 * p], values, 16);
    memcpy(&unit.words[2 * p + 1], values + 4, 16);
  } else if constexpr (kFormat == DType::kBF16) {
    uint16_t halves[8];
    for (int j = 0; j < 8; ++j) halves[j] = f32_to_bf16(values[j]);
    memcpy(&unit.words[p], halves, 16);
  } else {
    // In double, as quantize_mxfp4 and quantize_mxfp8 do, for the same bytes.
    const uint8_t scale = block_scale(values, kFormat == DType::kMXFP4 ? 2 : 8);
    const double reciprocal = static_cast<double>(e8m0_reciprocal(scale));
    uint8_t codes[8];
    for (int j = 0; j < 8; ++j) {
      const auto scaled = static_cast<float>(values[j] * reciprocal);
      codes[j] = kFormat == DType::kMXFP4 ? f32_to_e2m1(scaled) : f32_to_e4m3(scaled);
    }
    unit.scale[p] = scale;
    if constexpr (kFormat == DType::kMXFP4) {
      (&unit.words[0].x)[p] = fragment_mxfp4_word(codes);
    } else {
      memcpy(reinterpret_cast<std::byte*>(&unit.words[p % 2]) + 8 * (p / 2), codes, 8);
    }
  }
}

/// All 32 lanes together write the whole unit.
template <DType kFormat>
__device__ inline void store_unit(const UnitTarget& target, int64_t unit_idx, int lane,
                                  const LaneUnit& unit) {
  constexpr int kWords = kFormat == DType::kF32     ? 8
                         : kFormat == DType::kBF16  ? 4
                         : kFormat == DType::kMXFP4 ? 1
                                                    : 2;
  constexpr bool kIsMx = kFormat == DType::kMXFP4 || kFormat == DType::kMXFP8;
  constexpr int kCodeBytes = 512 * kWords;
  constexpr int kScaleBytes = kIsMx ? 32 : kFormat == DType::kQ8_0 ? 64 : 0;
  std::byte* at = target.units + unit_idx * (kCodeBytes + kScaleBytes);
  auto* codes = reinterpret_cast<uint4*>(at);
  for (int w = 0; w < kWords; ++w) codes[32 * w + lane] = unit.words[w];
  if (lane % 4 != 0) return;
  const int g = lane / 4;  // byte (or half) 4 g + p
  if constexpr (kIsMx) {
    uint32_t four = 0;
    for (int p = 0; p < 4; ++p) four |= static_cast<uint32_t>(unit.scale[p] & 0xFF) << (8 * p);
    reinterpret_cast<uint32_t*>(at + kCodeBytes)[g] = four;
  } else if constexpr (kFormat == DType::kQ8_0) {
    uint2 four;
    four.x = unit.scale[0] | static_cast<uint32_t>(unit.scale[1]) << 16;
    four.y = unit.scale[2] | static_cast<uint32_t>(unit.scale[3]) << 16;
    reinterpret_cast<uint2*>(at + kCodeBytes)[g] = four;
  }
}
#endif

}  // namespace moxie
