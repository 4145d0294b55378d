// Number formats bit by bit: BF16, FP16, E4M3, E3M2, E2M3, E2M1, E8M0, and the MX and Q8_0 blocks
// of 32.
//
// These scalar codecs are the definition that every kernel is tested against. Sources: OCP
// Microscaling Formats (MX) v1.0 for E3M2, E2M3, E2M1, E8M0 and block quantising; OCP FP8 for E4M3
// (the "fn" kind: no infinity, 0x7F and 0xFF are NaN). Header-only so that CUDA code shares it.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define MOXIE_HOST_DEVICE __host__ __device__
#else
#define MOXIE_HOST_DEVICE
#endif

namespace moxie {

inline constexpr int kMxBlock = 32;  ///< elements that share one scale, along K

MOXIE_HOST_DEVICE inline float bits_to_f32(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
MOXIE_HOST_DEVICE inline uint32_t f32_to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}

// ---- BF16 -------------------------------------------------------------------------------------
MOXIE_HOST_DEVICE inline float bf16_to_f32(uint16_t bits) {
  return bits_to_f32(static_cast<uint32_t>(bits) << 16);
}
/// Round to nearest even; NaN stays NaN (quiet).
MOXIE_HOST_DEVICE inline uint16_t f32_to_bf16(float value) {
  const uint32_t bits = f32_to_bits(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// ---- FP16 -------------------------------------------------------------------------------------
MOXIE_HOST_DEVICE inline float f16_to_f32(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1Fu;
  const uint32_t mantissa = half & 0x3FFu;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24, exact in F32
    const float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
    return sign ? -magnitude : magnitude;
  }
  if (exponent == 31) return bits_to_f32(sign | 0x7F800000u | (mantissa << 13));
  return bits_to_f32(sign | ((exponent + 112) << 23) | (mantissa << 13));
}
/// Round to nearest even; overflow goes to infinity.
MOXIE_HOST_DEVICE inline uint16_t f32_to_f16(float value) {
  const uint32_t bits = f32_to_bits(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u);
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7C00u);  // 2^16 and above
  if (magnitude < 0x38800000u) {  // below 2^-14: a multiple of 2^-24
    // Adding 0.5 puts the multiples of 2^-24 into the low mantissa bits, rounded to nearest even.
    const float shifted = bits_to_f32(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (f32_to_bits(shifted) - 0x3F000000u));
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  const uint32_t half = (rounded - 0x38000000u) >> 13;
  return static_cast<uint16_t>(sign | (half > 0x7C00u ? 0x7C00u : half));
}

// ---- E4M3 (fn) --------------------------------------------------------------------------------
MOXIE_HOST_DEVICE inline float e4m3_to_f32(uint8_t code) {
  const uint32_t exponent = (code >> 3) & 0xFu;
  const uint32_t mantissa = code & 7u;
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  if ((code & 0x7Fu) == 0x7Fu) return bits_to_f32(sign | 0x7FC00000u);
  if (exponent == 0) {  // mantissa * 2^-9
    const float magnitude = static_cast<float>(mantissa) * 0.001953125f;
    return sign ? -magnitude : magnitude;
  }
  return bits_to_f32(sign | ((exponent + 120) << 23) | (mantissa << 20));
}
/// Round to nearest even, saturating to +-448; NaN gives 0x7F.
MOXIE_HOST_DEVICE inline uint8_t f32_to_e4m3(float value) {
  const uint32_t bits = f32_to_bits(value);
  const uint8_t sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint8_t>(sign | 0x7Fu);
  if (magnitude >= 0x43E00000u) return static_cast<uint8_t>(sign | 0x7Eu);  // 448 and above
  if (magnitude < 0x3C800000u) {  // below 2^-6: a multiple of 2^-9
    // Adding 2^14 puts the multiples of 2^-9 into the low mantissa bits, rounded to nearest even.
    const float shifted = bits_to_f32(magnitude) + 16384.0f;
    return static_cast<uint8_t>(sign | (f32_to_bits(shifted) - 0x46800000u));
  }
  const uint32_t rounded = magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u);
  const uint32_t code = (rounded - 0x3C000000u) >> 20;
  return static_cast<uint8_t>(sign | (code > 0x7Eu ? 0x7Eu : code));
}

// ---- E2M1 -------------------------------------------------------------------------------------
/// Codes 0..7: 0, 0.5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign (8 is -0).
MOXIE_HOST_DEVICE inline float e2m1_to_f32(uint8_t code) {
  const uint32_t magnitude = code & 7u;
  float value;
  if (magnitude < 2) {
    value = magnitude == 0 ? 0.0f : 0.5f;
  } else {
    value = bits_to_f32(((magnitude >> 1) + 126u) << 23 | (magnitude & 1u) << 22);
  }
  return (code & 8u) ? -value : value;
}
/// Round to nearest, ties to the even code, saturating to +-6. NaN gives +-6.
MOXIE_HOST_DEVICE inline uint8_t f32_to_e2m1(float value) {
  const uint8_t sign = (f32_to_bits(value) >> 31) ? 8 : 0;
  const float magnitude = bits_to_f32(f32_to_bits(value) & 0x7FFFFFFFu);
  uint8_t code;
  if (magnitude <= 0.25f)
    code = 0;
  else if (magnitude < 0.75f)
    code = 1;
  else if (magnitude <= 1.25f)
    code = 2;
  else if (magnitude < 1.75f)
    code = 3;
  else if (magnitude <= 2.5f)
    code = 4;
  else if (magnitude < 3.5f)
    code = 5;
  else if (magnitude <= 5.0f)
    code = 6;
  else
    code = 7;
  return static_cast<uint8_t>(sign | code);
}

// ---- E3M2 and E2M3 ----------------------------------------------------------------------------
/// A code of six bits: sign, kExponentBits, kMantissaBits; every code is finite.
template <int kExponentBits, int kMantissaBits>
MOXIE_HOST_DEVICE inline float six_bits_to_f32(uint8_t code) {
  static_assert(kExponentBits + kMantissaBits == 5);
  constexpr uint32_t kBias = (1u << (kExponentBits - 1)) - 1;
  const uint32_t exponent = (code & 0x1Fu) >> kMantissaBits;
  const uint32_t mantissa = code & ((1u << kMantissaBits) - 1);
  const uint32_t sign = static_cast<uint32_t>(code & 0x20u) << 26;
  if (exponent == 0) {  // mantissa * 2^(1 - bias - kMantissaBits)
    const float unit = bits_to_f32((128 - kBias - kMantissaBits) << 23);
    const float magnitude = static_cast<float>(mantissa) * unit;
    return sign ? -magnitude : magnitude;
  }
  return bits_to_f32(sign | (exponent + 127 - kBias) << 23 | mantissa << (23 - kMantissaBits));
}
/// Round to nearest even, saturating. NaN gives the greatest magnitude.
template <int kExponentBits, int kMantissaBits>
MOXIE_HOST_DEVICE inline uint8_t f32_to_six_bits(float value) {
  static_assert(kExponentBits + kMantissaBits == 5);
  constexpr uint32_t kBias = (1u << (kExponentBits - 1)) - 1;
  const uint32_t bits = f32_to_bits(value);
  const uint8_t sign = static_cast<uint8_t>((bits >> 26) & 0x20u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude < (128 - kBias) << 23) {  // below the least normal 2^(1 - bias)
    // Adding 2^(24 - bias - kMantissaBits) puts the multiples of the subnormals' unit into the low
    // mantissa bits, rounded to nearest even.
    constexpr uint32_t kShift = (127 + 24 - kBias - kMantissaBits) << 23;
    const float shifted = bits_to_f32(magnitude) + bits_to_f32(kShift);
    return static_cast<uint8_t>(sign | (f32_to_bits(shifted) - kShift));
  }
  constexpr int kDropped = 23 - kMantissaBits;
  if (magnitude >= (127 + 16u) << 23) return static_cast<uint8_t>(sign | 0x1Fu);
  const uint32_t rounded = magnitude + ((1u << (kDropped - 1)) - 1) + ((magnitude >> kDropped) & 1);
  const uint32_t code = (rounded >> kDropped) - ((127 - kBias) << kMantissaBits);
  return static_cast<uint8_t>(sign | (code > 0x1Fu ? 0x1Fu : code));
}
/// Magnitudes up to 28, in steps of 2^-4 below 2^-2.
MOXIE_HOST_DEVICE inline float e3m2_to_f32(uint8_t code) { return six_bits_to_f32<3, 2>(code); }
MOXIE_HOST_DEVICE inline uint8_t f32_to_e3m2(float value) { return f32_to_six_bits<3, 2>(value); }
/// Magnitudes up to 7.5, in steps of 2^-3 below 1.
MOXIE_HOST_DEVICE inline float e2m3_to_f32(uint8_t code) { return six_bits_to_f32<2, 3>(code); }
MOXIE_HOST_DEVICE inline uint8_t f32_to_e2m3(float value) { return f32_to_six_bits<2, 3>(value); }

// ---- E8M0 -------------------------------------------------------------------------------------
/// 2^(code - 127); code 0 is 2^-127 (an F32 subnormal), 255 is NaN.
MOXIE_HOST_DEVICE inline float e8m0_to_f32(uint8_t code) {
  if (code == 0) return bits_to_f32(0x00400000u);
  if (code == 255) return bits_to_f32(0x7FC00000u);
  return bits_to_f32(static_cast<uint32_t>(code) << 23);
}

/// floor(log2(x)) of a finite x > 0, subnormals included.
MOXIE_HOST_DEVICE inline int floor_log2(float x) {
  const uint32_t bits = f32_to_bits(x) & 0x7FFFFFFFu;
  const int exponent = static_cast<int>(bits >> 23);
  if (exponent != 0) return exponent - 127;
  int log = -150;
  for (uint32_t mantissa = bits; mantissa != 0; mantissa >>= 1) ++log;
  return log;
}

/// The E8M0 code of OCP MX v1.0 for a block: floor(log2(amax)) - emax, clamped to 0..254;
/// 127 for amax = 0. `emax` is 2 for E2M1 and E2M3, 4 for E3M2 and 8 for E4M3.
MOXIE_HOST_DEVICE inline uint8_t mx_scale_code(float amax, int emax) {
  if (!(amax > 0.0f)) return 127;
  const int code = floor_log2(amax) - emax + 127;
  return static_cast<uint8_t>(code < 0 ? 0 : code > 254 ? 254 : code);
}

/// 1 / e8m0_to_f32(code), exact: a power of two (code 254 gives the subnormal 2^-127).
MOXIE_HOST_DEVICE inline float e8m0_reciprocal(uint8_t code) {
  return code == 254 ? bits_to_f32(0x00400000u)
                     : bits_to_f32(static_cast<uint32_t>(254 - code) << 23);
}

// ---- Blocks -----------------------------------------------------------------------------------
/// Order of the two nibbles of a byte of an MXFP4 block of 16 bytes.
enum class NibbleOrder : uint8_t {
  kAdjacent,  ///< Hugging Face, original: byte j holds elements 2j (low) and 2j + 1 (high)
  kHalves     ///< GGUF: byte j holds elements j (low) and j + 16 (high)
};

/// Code of element `i` (0..31) in 16 bytes.
MOXIE_HOST_DEVICE inline uint8_t mxfp4_code(const uint8_t* bytes, int i, NibbleOrder order) {
  if (order == NibbleOrder::kAdjacent) {
    return static_cast<uint8_t>((bytes[i >> 1] >> ((i & 1) * 4)) & 0xFu);
  }
  return static_cast<uint8_t>((bytes[i & 15] >> ((i >> 4) * 4)) & 0xFu);
}

/// The greatest magnitude of a block; infinities and NaN count as the greatest finite F32.
inline float mx_block_amax(const float* values) {
  float amax = 0.0f;
  for (int i = 0; i < kMxBlock; ++i) {
    const float magnitude = std::fabs(values[i]);
    if (!std::isfinite(magnitude)) return 3.4028234663852886e38f;
    amax = magnitude > amax ? magnitude : amax;
  }
  return amax;
}

/// OCP MX v1.0: 32 values to one scale code (returned) and 32 E2M1 codes, one a byte; nearest even,
/// saturating to +-6.
inline uint8_t quantize_mxfp4(const float* values, uint8_t* codes) {
  const uint8_t scale = mx_scale_code(mx_block_amax(values), 2);
  // In double: 2^127 times a subnormal scale's reciprocal must not overflow on the way.
  const double reciprocal = static_cast<double>(e8m0_reciprocal(scale));
  for (int i = 0; i < kMxBlock; ++i)
    codes[i] = f32_to_e2m1(static_cast<float>(values[i] * reciprocal));
  return scale;
}

/// OCP MX v1.0: 32 values to one scale code (returned) and 32 E4M3 codes; nearest even, saturating
/// to +-448.
inline uint8_t quantize_mxfp8(const float* values, uint8_t* codes) {
  const uint8_t scale = mx_scale_code(mx_block_amax(values), 8);
  const double reciprocal = static_cast<double>(e8m0_reciprocal(scale));
  for (int i = 0; i < kMxBlock; ++i)
    codes[i] = f32_to_e4m3(static_cast<float>(values[i] * reciprocal));
  return scale;
}

// ---- Activations in MX formats ------------------------------------------------------------------
/// Elements of activations' blocks of 32: MXFP8 (E4M3), MXFP6 (E2M3, or E3M2) and MXFP4 (E2M1).
enum class MxElement : uint8_t { kE4M3, kE3M2, kE2M3, kE2M1 };

/// Exponent of the element's greatest value.
MOXIE_HOST_DEVICE constexpr int mx_emax(MxElement element) {
  return element == MxElement::kE4M3 ? 8 : element == MxElement::kE3M2 ? 4 : 2;
}
MOXIE_HOST_DEVICE inline uint8_t f32_to_mx_element(MxElement element, float value) {
  switch (element) {
    case MxElement::kE4M3:
      return f32_to_e4m3(value);
    case MxElement::kE3M2:
      return f32_to_e3m2(value);
    case MxElement::kE2M3:
      return f32_to_e2m3(value);
    case MxElement::kE2M1:
      break;
  }
  return f32_to_e2m1(value);
}
MOXIE_HOST_DEVICE inline float mx_element_to_f32(MxElement element, uint8_t code) {
  switch (element) {
    case MxElement::kE4M3:
      return e4m3_to_f32(code);
    case MxElement::kE3M2:
      return e3m2_to_f32(code);
    case MxElement::kE2M3:
      return e2m3_to_f32(code);
    case MxElement::kE2M1:
      break;
  }
  return e2m1_to_f32(code);
}
/// The scale of a block of activations from the bits of its greatest magnitude: as
/// mx_scale_code(), but NaN (255) if a value is no finite number, so that the products are NaN.
MOXIE_HOST_DEVICE inline uint8_t mx_activation_scale(uint32_t amax_bits, int emax) {
  return amax_bits >= 0x7F800000u ? uint8_t{255} : mx_scale_code(bits_to_f32(amax_bits), emax);
}
/// A value of a block with that scale as the element's code. Powers of two, so that one rounding
/// is left; in two factors, since the reciprocal of 2^-127 times a value may pass F32's range.
MOXIE_HOST_DEVICE inline uint8_t mx_activation_code(MxElement element, float value, uint8_t scale) {
  const int up = 127 - scale, half = up / 2;  // -128..127
  const float first = bits_to_f32(static_cast<uint32_t>(127 + half) << 23);
  const float second = bits_to_f32(static_cast<uint32_t>(127 + up - half) << 23);
  return f32_to_mx_element(element, value * first * second);
}
/// `count` values (32, or fewer at the end of a row) as what their block is in the format.
inline void round_to_mx(MxElement element, float* values, int count) {
  uint32_t amax_bits = 0;
  for (int i = 0; i < count; ++i) {
    const uint32_t bits = f32_to_bits(values[i]) & 0x7FFFFFFFu;
    amax_bits = bits > amax_bits ? bits : amax_bits;
  }
  const uint8_t scale = mx_activation_scale(amax_bits, mx_emax(element));
  const float factor = e8m0_to_f32(scale);
  for (int i = 0; i < count; ++i)
    values[i] = mx_element_to_f32(element, mx_activation_code(element, values[i], scale)) * factor;
}

// ---- FP8 with block scales ---------------------------------------------------------------------
/// 128 x 128 weight blocks: E4M3 with one F32 factor, amax / 448 (1 for a block of zeros).
inline float fp8_block_scale(float amax) { return amax > 0.0f ? amax / 448.0f : 1.0f; }

}  // namespace moxie
