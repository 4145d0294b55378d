// Packs and reads kFragment16x32 on the host: what device repacking is checked against.
#include "core/fragment.h"

#include <array>
#include <cstring>
#include <vector>

#include "core/formats.h"

namespace moxie {
namespace {

// Where row r (0..15) and column k (0..63) of a unit lie.
struct Place {
  int half, block, lane, j;
  Place(int r, int k) : half(r / 8), block(k / 32), lane(r % 8 * 4 + k % 32 / 8), j(k % 8) {}
  int mxfp4_word() const { return 16 * lane + 4 * (2 * block + half); }
  int byte() const { return 512 * half + 16 * lane + 8 * block + j; }
  int bf16() const { return 512 * (2 * block + half) + 16 * lane + 2 * j; }
  int f32() const { return 1024 * (2 * block + half) + 512 * (j / 4) + 16 * lane + 4 * (j % 4); }
  int scale() const { return 4 * (lane / 4) + 2 * block + half; }
};

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

// What each value of byte j of a kRows16 word, the codes of elements j and j + 4, adds to a word.
constexpr auto kWordsOfBytes = [] {
  std::array<std::array<uint32_t, 256>, 4> words{};
  for (size_t j = 0; j < 4; ++j) {
    for (size_t byte = 0; byte < 256; ++byte) {
      uint8_t codes[8] = {};
      codes[j] = byte & 15, codes[j + 4] = byte >> 4;
      words[j][byte] = fragment_mxfp4_word(codes);
    }
  }
  return words;
}();

// The 16 x 32 block `block` of a kRows16 tile to its place; columns from `cols` on are left zero.
void put_block(const std::byte* tile, DType format, int32_t cols, int32_t block, std::byte* codes,
               std::byte* scales) {
  std::byte* unit = codes;
  for (int r = 0; r < 16; ++r) {
    const int first = 32 * (block % 2);
    const int32_t count = std::min(32, cols - 32 * block);
    switch (format) {
      case DType::kMXFP4: {
        const std::byte* at = tile + int64_t{272} * block;
        for (int k = 0; k < 32; k += 8) {
          uint32_t word = 0;
          for (int j = 0; j < 4; ++j)
            word |= kWordsOfBytes[j][static_cast<uint8_t>(at[16 + 8 * k + 4 * r + j])];
          std::memcpy(unit + Place(r, first + k).mxfp4_word(), &word, 4);
        }
        scales[Place(r, first).scale()] = at[r];
        break;
      }
      case DType::kQ8_0: {
        const std::byte* at = tile + int64_t{544} * block;
        for (int k = 0; k < 32; ++k)
          unit[Place(r, first + k).byte()] = at[32 + 64 * (k / 4) + 4 * r + k % 4];
        std::memcpy(scales + 2 * Place(r, first).scale(), at + 2 * r, 2);
        break;
      }
      case DType::kBF16:
        for (int32_t k = 0; k < count; ++k) {
          const int32_t col = 32 * block + k;
          std::memcpy(unit + Place(r, first + k).bf16(),
                      tile + int64_t{64} * (col / 2) + 4 * r + 2 * (col & 1), 2);
        }
        break;
      case DType::kF32:
        for (int32_t k = 0; k < count; ++k) {
          std::memcpy(unit + Place(r, first + k).f32(),
                      tile + int64_t{64} * (32 * block + k) + 4 * r, 4);
        }
        break;
      case DType::kMXFP8: {  // from an F32 tile
        float values[32] = {};
        uint8_t eight_bits[32];
        for (int32_t k = 0; k < count; ++k)
          values[k] = load<float>(tile + int64_t{64} * (32 * block + k) + 4 * r);
        scales[Place(r, first).scale()] =
            static_cast<std::byte>(quantize_mxfp8(values, eight_bits));
        for (int k = 0; k < 32; ++k)
          unit[Place(r, first + k).byte()] = static_cast<std::byte>(eight_bits[k]);
        break;
      }
      default:
        CHECK(false, "not a packed format");
    }
  }
}

}  // namespace

void pack_tile_fragment(const StoredRows& source, const int64_t rows[16], int32_t tile_idx,
                        const PackedMatrix& expert) {
  CHECK(expert.layout == PackedLayout::kFragment16x32);
  const DType through = expert.format == DType::kMXFP8 ? DType::kF32 : expert.format;
  const PackedMatrix one{.format = through, .rows = 16, .cols = expert.cols};
  std::vector<std::byte> tile(static_cast<size_t>(one.tile_bytes()));
  pack_tile_rows16(source, rows, through, tile.data());

  auto* base = const_cast<std::byte*>(expert.data);
  const int64_t first_unit = int64_t{tile_idx} * expert.num_units();
  std::byte* units = base + first_unit * expert.unit_bytes();
  const auto unit_at = [&](int64_t i) { return units + i * expert.unit_bytes(); };
  const auto code_bytes = static_cast<size_t>(expert.unit_code_bytes());
  const int padding = expert.format == DType::kQ8_0 ? 0 : 127;
  for (int32_t i = 0; i < expert.num_units(); ++i) {
    std::memset(unit_at(i), 0, code_bytes);
    std::memset(unit_at(i) + code_bytes, padding, static_cast<size_t>(expert.unit_scale_bytes()));
  }
  for (int32_t block = 0; block < ceil_div(expert.cols, 32); ++block) {
    std::byte* unit = unit_at(block / 2);
    put_block(tile.data(), expert.format, expert.cols, block, unit, unit + code_bytes);
  }
}

double fragment_value(const PackedMatrix& matrix, int32_t row, int32_t col) {
  const int64_t unit = int64_t{row / 16} * matrix.num_units() + col / 64;
  const std::byte* codes = matrix.data + unit * matrix.unit_bytes();
  const std::byte* scales = codes + matrix.unit_code_bytes();
  const Place at(row % 16, col % 64);
  switch (matrix.format) {
    case DType::kF32:
      return load<float>(codes + at.f32());
    case DType::kBF16:
      return bf16_to_f32(load<uint16_t>(codes + at.bf16()));
    case DType::kQ8_0:
      return double{f16_to_f32(load<uint16_t>(scales + 2 * at.scale()))} *
             load<int8_t>(codes + at.byte());
    case DType::kMXFP8:
      return double{e4m3_to_f32(static_cast<uint8_t>(codes[at.byte()]))} *
             e8m0_to_f32(static_cast<uint8_t>(scales[at.scale()]));
    case DType::kMXFP4: {
      const uint8_t code = fragment_mxfp4_code(load<uint32_t>(codes + at.mxfp4_word()), at.j);
      return double{e2m1_to_f32(code)} * e8m0_to_f32(static_cast<uint8_t>(scales[at.scale()]));
    }
    default:
      CHECK(false, "not a packed format");
  }
  return 0;
}

}  // namespace moxie
