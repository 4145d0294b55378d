// A counter-based generator writes whole words of random weights, four BF16 or sixteen MXFP4 codes
// at a time, so that memory's write speed is the limit.
#include "weights/synthetic.h"

#include <algorithm>
#include <cstring>

#include "weights/synthetic_values.h"

namespace moxie {
namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 20;

struct Bf16Words {
  uint64_t stream, base;
  uint64_t operator()(uint64_t i) const { return random_bf16_word(stream, base, i); }
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

// MXFP4 blocks of 272 bytes.
void fill_mxfp4(std::byte* data, int64_t num_bytes, uint64_t first, uint64_t stream,
                uint8_t scale) {
  constexpr int64_t kBlockBytes = 8 * kMxfp4BlockWords;
  for (int64_t block = 0; block < num_bytes / kBlockBytes; ++block) {
    std::byte* at = data + block * kBlockBytes;
    const uint64_t base = (first + static_cast<uint64_t>(block)) * kMxfp4BlockWords;
    for (uint64_t i = 0; i < kMxfp4BlockWords; ++i) {
      const uint64_t word =
          i < 2 ? random_scale_word(stream, scale, base, i) : random_word(stream, base + i);
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
  const uint64_t stream = random_stream(seed);
  if (format == DType::kMXFP4) {
    const uint8_t scale = random_mxfp4_scale(deviation);
    in_chunks(data, num_bytes, 272, pool, [&](std::byte* at, int64_t bytes, uint64_t first) {
      fill_mxfp4(at, bytes, first, stream, scale);
    });
    return;
  }
  CHECK(format == DType::kBF16 || format == DType::kF32, std::string(dtype_name(format)));
  const Bf16Words words{stream, random_bf16_base(deviation)};
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
