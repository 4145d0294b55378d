// The values of synthetic weights as a function of their place, the same on the host and on
// devices: the same seed gives the same model.
//
// Places are those of the CPU's layout kRows16 (core/packing.h): word i of a matrix's stream is its
// 8 bytes at 8 i there. Tables count their rows' bytes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/formats.h"

namespace moxie {

/// splitmix64 (Steele, Lea, Flood 2014): word `i` of the stream `stream`.
MOXIE_HOST_DEVICE inline uint64_t random_word(uint64_t stream, uint64_t i) {
  uint64_t z = stream + (i + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}
/// The stream of a matrix or table made from `seed`.
inline uint64_t random_stream(uint64_t seed) { return random_word(seed, 0); }

/// Four BF16 values of random sign and mantissa in four binades: the low two exponent bits are
/// random, the rest is `base`. Their root mean square is 7.04 * 2^lowest: the mean over binades
/// j = 0..3 of 4^j * 7/3, where 7/3 is the mean square of a mantissa.
inline uint64_t random_bf16_base(double deviation) {
  const int lowest = static_cast<int>(std::lround(std::log2(deviation / 7.04)));
  return static_cast<uint64_t>(std::clamp(lowest + 127, 1, 250) << 7) * 0x0001000100010001u;
}
MOXIE_HOST_DEVICE inline uint64_t random_bf16_word(uint64_t stream, uint64_t base, uint64_t i) {
  return (random_word(stream, i) & 0x81FF81FF81FF81FFu) + base;
}

/// MXFP4 blocks of 16 rows x 32 columns are 34 words: two of scale codes, each `scale` or the one
/// below it, then 512 random codes, whose root mean square is 2.93. Scales k and k - 1, each half
/// the time, have the root mean square 0.79 * 2^k.
inline constexpr uint64_t kMxfp4BlockWords = 34;
inline uint8_t random_mxfp4_scale(double deviation) {
  const int exponent = static_cast<int>(std::lround(std::log2(deviation / (2.93 * 0.79))));
  return static_cast<uint8_t>(std::clamp(exponent + 127, 1, 254));
}
/// Eight scale codes: rows 0..7 (i = 0) or 8..15 (i = 1) of the block whose first word is `base`.
MOXIE_HOST_DEVICE inline uint64_t random_scale_word(uint64_t stream, uint8_t scale, uint64_t base,
                                                    uint64_t i) {
  return scale * 0x0101010101010101u - (random_word(stream, base + i) & 0x0101010101010101u);
}

}  // namespace moxie
