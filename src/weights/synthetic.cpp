// A counter-based generator writes whole words of random weights, four BF16 or sixteen MXFP4 codes
// at a time, so that memory's write speed is the limit.
#include "weights/synthetic.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/formats.h"

namespace moxie {
namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 20;

// splitmix64 (Steele, Lea, Flood 2014): word `i` of the stream `seed`.
inline uint64_t random_word(uint64_t seed, uint64_t i) {
  uint64_t z = seed + (i + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// Four BF16 values of random sign and mantissa in four binades: the low two exponent bits are
// random, the rest is `base`. Their root mean square is 7.04 * 2^lowest: the mean over binades
// j = 0..3 of 4^j * 7/3, where 7/3 is the mean square of a mantissa.
struct Bf16Words {
  uint64_t seed, base;
  Bf16Words(double deviation, uint64_t stream) : seed(stream) {
    const int lowest = static_cast<int>(std::lround(std::log2(deviation / 7.04)));
    base = static_cast<uint64_t>(std::clamp(lowest + 127, 1, 250) << 7) * 0x0001000100010001u;
  }
  uint64_t operator()(uint64_t i) const {
    return (random_word(seed, i) & 0x81FF81FF81FF81FFu) + base;
  }
};

void fill_words(std::byte* data, int64_t num_bytes, uint64_t first, const Bf16Words& words) {
  for (int64_t i = 0; i < num_bytes / 8; ++i) {
    const uint64_t word = words(first + static_cast<uint64_t>(i));
    std::memcpy(data + 8 * i, &word, 8);
  }
}

// Two F32 a word: BF16 values are F32 values whose low half is zero.
void fill_floats(std::byte* data, int64_t num_bytes, uint64_t first, const Bf16Words& words) {
  for (int64_t i = 0; i < num_bytes / 8; ++i) {
    const uint64_t word = words(first + static_cast<uint64_t>(i)) & 0xFFFF0000FFFF0000u;
    std::memcpy(data + 8 * i, &word, 8);
  }
}

// MXFP4 blocks of 272 bytes: 16 scale codes, one of two values each, then 512 random codes, whose
// root mean square is 2.93.
void fill_mxfp4(std::byte* data, int64_t num_bytes, uint64_t first, uint64_t seed, uint8_t scale) {
  constexpr int64_t kBlockBytes = 272;
  const uint64_t scales = scale * 0x0101010101010101u;
  for (int64_t block = 0; block < num_bytes / kBlockBytes; ++block) {
    std::byte* at = data + block * kBlockBytes;
    const uint64_t base = (first + static_cast<uint64_t>(block)) * (kBlockBytes / 8);
    for (uint64_t i = 0; i < kBlockBytes / 8; ++i) {
      uint64_t word = random_word(seed, base + i);
      if (i < 2) word = scales - (word & 0x0101010101010101u);
      std::memcpy(at + 8 * i, &word, 8);
    }
  }
}

void zero_padding(const PackedMatrix& matrix) {
  const int32_t used = matrix.rows % 16;
  if (used == 0) return;
  const auto clear = [used](std::byte* at, int lane_bytes, int value) {
    std::memset(at + used * lane_bytes, value, static_cast<size_t>((16 - used) * lane_bytes));
  };
  for (int32_t e = 0; e < matrix.num_experts; ++e) {
    auto* tile = const_cast<std::byte*>(matrix.tile(e, matrix.num_tiles() - 1));
    for (int64_t at = 0; at < matrix.tile_bytes(); at += 64) {
      if (matrix.format == DType::kMXFP4 && at % 272 == 0) {
        clear(tile + at, 1, 127);
        at += 16;
      }
      clear(tile + at, 4, 0);
    }
  }
}

// Runs fill(data, bytes, first unit) over chunks of whole units.
template <typename Fill>
void in_chunks(const std::byte* data, int64_t num_bytes, int64_t unit_bytes, ThreadPool& pool,
               Fill&& fill) {
  auto* out = const_cast<std::byte*>(data);
  const int64_t chunk = kChunkBytes / unit_bytes * unit_bytes;
  auto task = [&](int64_t i, int) {
    const int64_t begin = i * chunk;
    fill(out + begin, std::min(chunk, num_bytes - begin),
         static_cast<uint64_t>(begin / unit_bytes));
  };
  pool.run(ceil_div(num_bytes, chunk), task);
}

void fill_random(const std::byte* data, int64_t num_bytes, DType format, double deviation,
                 uint64_t seed, ThreadPool& pool) {
  const uint64_t stream = random_word(seed, 0);
  if (format == DType::kMXFP4) {
    // Scales k and k - 1, each half the time, have the root mean square 0.79 * 2^k.
    const int exponent = static_cast<int>(std::lround(std::log2(deviation / (2.93 * 0.79))));
    const auto scale = static_cast<uint8_t>(std::clamp(exponent + 127, 1, 254));
    in_chunks(data, num_bytes, 272, pool, [&](std::byte* at, int64_t bytes, uint64_t first) {
      fill_mxfp4(at, bytes, first, stream, scale);
    });
    return;
  }
  CHECK(format == DType::kBF16 || format == DType::kF32, std::string(dtype_name(format)));
  const Bf16Words words(deviation, stream);
  in_chunks(data, num_bytes, 8, pool, [&](std::byte* at, int64_t bytes, uint64_t first) {
    (format == DType::kBF16 ? fill_words : fill_floats)(at, bytes, first, words);
  });
}

}  // namespace

void fill_random_matrix(const PackedMatrix& matrix, double deviation, uint64_t seed,
                        ThreadPool& pool) {
  fill_random(matrix.data, matrix.bytes(), matrix.format, deviation, seed, pool);
  zero_padding(matrix);
}

void fill_random_table(const RowTable& table, double deviation, uint64_t seed, ThreadPool& pool) {
  fill_random(table.data, table.bytes(), table.format, deviation, seed, pool);
}

}  // namespace moxie
