// The packed layout kRows16: where every element lies, what packing keeps and what it rounds.
#include "core/packing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace moxie {
namespace {

using Kind = StoredRows::Kind;

// Random rows in a stored form.
struct Stored {
  std::vector<std::byte> data, scales;
  StoredRows rows;
};

Stored random_rows(Kind kind, int32_t num_rows, int32_t cols, uint32_t seed) {
  std::mt19937 random(seed);
  Stored stored;
  stored.rows.kind = kind;
  stored.rows.cols = cols;
  const auto fill = [&](std::vector<std::byte>& bytes, int64_t size) {
    bytes.resize(static_cast<size_t>(size));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  };
  const auto value = [&] { return static_cast<float>(static_cast<int32_t>(random())) * 0x1p-31f; };
  switch (kind) {
    case Kind::kF32:
      stored.rows.row_stride_bytes = 4 * cols;
      break;
    case Kind::kF16:
    case Kind::kBF16:
      stored.rows.row_stride_bytes = 2 * cols;
      break;
    case Kind::kQ8_0:
      stored.rows.row_stride_bytes = cols / 32 * 34;
      break;
    case Kind::kMxfp4Split:
      stored.rows.row_stride_bytes = cols / 2;
      break;
    case Kind::kMxfp4Gguf:
      stored.rows.row_stride_bytes = cols / 32 * 17;
      break;
  }
  fill(stored.data, num_rows * stored.rows.row_stride_bytes);
  if (kind == Kind::kF32 || kind == Kind::kF16 || kind == Kind::kBF16) {
    for (int64_t i = 0; i < int64_t{num_rows} * cols; ++i) {
      const float v = value();
      const uint16_t half = kind == Kind::kF16 ? f32_to_f16(v) : f32_to_bf16(v);
      if (kind == Kind::kF32)
        std::memcpy(&stored.data[4 * i], &v, 4);
      else
        std::memcpy(&stored.data[2 * i], &half, 2);
    }
  }
  if (kind == Kind::kQ8_0) {
    for (size_t at = 0; at < stored.data.size(); at += 34) {
      const uint16_t scale = f32_to_f16(value());
      std::memcpy(&stored.data[at], &scale, 2);
    }
  }
  if (kind == Kind::kMxfp4Gguf) {
    for (size_t at = 0; at < stored.data.size(); at += 17) {
      stored.data[at] = static_cast<std::byte>(118 + random() % 20);
    }
  }
  if (kind == Kind::kMxfp4Split) {
    stored.rows.scale_stride_bytes = cols / 32;
    stored.scales.resize(static_cast<size_t>(num_rows) * static_cast<size_t>(cols / 32));
    for (std::byte& code : stored.scales) code = static_cast<std::byte>(118 + random() % 20);
    stored.rows.scales = stored.scales.data();
  }
  stored.rows.data = stored.data.data();
  return stored;
}

struct Packed {
  std::vector<std::byte> memory;
  PackedMatrix matrix;
};

Packed pack(const StoredRows& rows, int32_t num_rows, DType target) {
  Packed packed;
  packed.matrix = {.format = target, .rows = num_rows, .cols = rows.cols};
  packed.memory.resize(static_cast<size_t>(packed.matrix.bytes()), std::byte{0xCC});
  packed.matrix.data = packed.memory.data();
  for (int32_t tile = 0; tile < packed.matrix.num_tiles(); ++tile) {
    int64_t lanes[16];
    for (int32_t lane = 0; lane < 16; ++lane) {
      lanes[lane] = tile * 16 + lane < num_rows ? tile * 16 + lane : -1;
    }
    pack_tile_rows16(rows, lanes, target, &packed.memory[tile * packed.matrix.tile_bytes()]);
  }
  return packed;
}

constexpr Kind kAllKinds[] = {Kind::kF32,  Kind::kF16,        Kind::kBF16,
                              Kind::kQ8_0, Kind::kMxfp4Split, Kind::kMxfp4Gguf};
constexpr DType kTargets[] = {DType::kF32, DType::kBF16, DType::kQ8_0, DType::kMXFP4};

bool is_lossless(Kind kind, DType target) {
  if (target == DType::kF32) return true;
  const bool mxfp4 = kind == Kind::kMxfp4Split || kind == Kind::kMxfp4Gguf;
  if (target == DType::kMXFP4) return mxfp4;
  if (target == DType::kQ8_0) return kind == Kind::kQ8_0;
  return kind == Kind::kBF16 || mxfp4;  // BF16 holds E2M1 times a power of two
}

TEST(Packing, EveryStoredKindComesBackFromEveryTarget) {
  const int32_t num_rows = 21, cols = 96;
  for (Kind kind : kAllKinds) {
    const Stored stored = random_rows(kind, num_rows, cols, 1 + static_cast<uint32_t>(kind));
    for (DType target : kTargets) {
      const Packed packed = pack(stored.rows, num_rows, target);
      std::vector<float> expected(cols);
      std::vector<double> row(cols);
      for (int32_t r = 0; r < num_rows; ++r) {
        stored.rows.read_row(r, expected.data());
        read_packed_row(packed.matrix, r, row.data());
        for (int32_t k = 0; k < cols; ++k) {
          const std::string where = "kind " + std::to_string(static_cast<int>(kind)) + " to " +
                                    std::string(dtype_name(target)) + " [" + std::to_string(r) +
                                    ", " + std::to_string(k) + "]";
          ASSERT_EQ(row[k], packed_value(packed.matrix, r, k)) << where;
          if (is_lossless(kind, target)) {
            ASSERT_EQ(row[k], expected[k]) << where;
          } else if (target == DType::kBF16) {
            ASSERT_EQ(row[k], bf16_to_f32(f32_to_bf16(expected[k]))) << where;
          }
        }
        if (target == DType::kMXFP4 && !is_lossless(kind, target)) {
          for (int32_t block = 0; block < cols / 32; ++block) {
            uint8_t codes[32];
            const uint8_t scale = quantize_mxfp4(&expected[32 * block], codes);
            for (int32_t i = 0; i < 32; ++i) {
              ASSERT_EQ(row[32 * block + i],
                        static_cast<double>(e2m1_to_f32(codes[i])) * e8m0_to_f32(scale));
            }
          }
        }
        if (target == DType::kQ8_0 && !is_lossless(kind, target)) {
          for (int32_t block = 0; block < cols / 32; ++block) {
            float amax = 0;
            for (int32_t i = 0; i < 32; ++i) {
              amax = std::max(amax, std::fabs(expected[32 * block + i]));
            }
            // Half a step, and the rounding of the FP16 scale, subnormal for small blocks.
            for (int32_t i = 0; i < 32; ++i) {
              ASSERT_NEAR(row[32 * block + i], expected[32 * block + i],
                          amax / 127 * 0.57 + 127 * 0x1p-25);
            }
          }
        }
      }
    }
  }
}

TEST(Packing, ColumnsThatFillNoVectorComeBack) {
  const int32_t num_rows = 19, cols = 38;
  for (Kind kind : {Kind::kF32, Kind::kF16, Kind::kBF16}) {
    const Stored stored = random_rows(kind, num_rows, cols, 7);
    const Packed packed = pack(stored.rows, num_rows, DType::kBF16);
    std::vector<float> expected(cols);
    for (int32_t r = 0; r < num_rows; ++r) {
      stored.rows.read_row(r, expected.data());
      for (int32_t k = 0; k < cols; ++k) {
        ASSERT_EQ(packed_value(packed.matrix, r, k), bf16_to_f32(f32_to_bf16(expected[k])))
            << "kind " << static_cast<int>(kind) << " [" << r << ", " << k << "]";
      }
    }
  }
}

// The layout as the comment in packing.h draws it, byte by byte.
TEST(Packing, Mxfp4BytesLieWhereTheLayoutSays) {
  const Stored stored = random_rows(Kind::kMxfp4Split, 16, 64, 9);
  const Packed packed = pack(stored.rows, 16, DType::kMXFP4);
  const auto* bytes = reinterpret_cast<const uint8_t*>(packed.memory.data());
  for (int row = 0; row < 16; ++row) {
    for (int block = 0; block < 2; ++block) {
      EXPECT_EQ(bytes[272 * block + row], static_cast<uint8_t>(stored.scales[row * 2 + block]));
      const auto* source =
          reinterpret_cast<const uint8_t*>(stored.data.data()) + row * 32 + block * 16;
      for (int j = 0; j < 4; ++j) {
        for (int b = 0; b < 4; ++b) {
          const int low = mxfp4_code(source, 8 * j + b, NibbleOrder::kAdjacent);
          const int high = mxfp4_code(source, 8 * j + 4 + b, NibbleOrder::kAdjacent);
          EXPECT_EQ(bytes[272 * block + 16 + 64 * j + 4 * row + b], low | (high << 4));
        }
      }
    }
  }
}

TEST(Packing, Q8BytesLieWhereTheLayoutSays) {
  const Stored stored = random_rows(Kind::kQ8_0, 16, 64, 10);
  const Packed packed = pack(stored.rows, 16, DType::kQ8_0);
  for (int row = 0; row < 16; ++row) {
    for (int block = 0; block < 2; ++block) {
      const std::byte* source = stored.data.data() + row * 68 + block * 34;
      const std::byte* target = packed.memory.data() + 544 * block;
      EXPECT_EQ(std::memcmp(target + 2 * row, source, 2), 0);
      for (int k = 0; k < 32; ++k) {
        EXPECT_EQ(target[32 + 64 * (k / 4) + 4 * row + k % 4], source[2 + k]);
      }
    }
  }
}

TEST(Packing, Bf16AndF32WordsLieWhereTheLayoutSays) {
  for (Kind kind : {Kind::kBF16, Kind::kF32}) {
    const Stored stored = random_rows(kind, 16, 6, 11);
    const bool f32 = kind == Kind::kF32;
    const Packed packed = pack(stored.rows, 16, f32 ? DType::kF32 : DType::kBF16);
    const int size = f32 ? 4 : 2, per_word = 4 / size;
    for (int row = 0; row < 16; ++row) {
      for (int k = 0; k < 6; ++k) {
        const int at = 64 * (k / per_word) + 4 * row + size * (k % per_word);
        EXPECT_EQ(std::memcmp(&packed.memory[at], &stored.data[(row * 6 + k) * size], size), 0);
      }
    }
  }
}

TEST(Packing, AdjacentAndHalvesOrdersGiveTheSameTile) {
  const Stored split = random_rows(Kind::kMxfp4Split, 16, 96, 12);
  std::vector<std::byte> blocks;
  for (int row = 0; row < 16; ++row) {
    for (int block = 0; block < 3; ++block) {
      blocks.push_back(split.scales[row * 3 + block]);
      const auto* source = reinterpret_cast<const uint8_t*>(&split.data[row * 48 + block * 16]);
      for (int j = 0; j < 16; ++j) {
        blocks.push_back(
            static_cast<std::byte>(mxfp4_code(source, j, NibbleOrder::kAdjacent) |
                                   (mxfp4_code(source, j + 16, NibbleOrder::kAdjacent) << 4)));
      }
    }
  }
  const StoredRows gguf{
      .kind = Kind::kMxfp4Gguf, .data = blocks.data(), .row_stride_bytes = 51, .cols = 96};
  EXPECT_EQ(pack(split.rows, 16, DType::kMXFP4).memory, pack(gguf, 16, DType::kMXFP4).memory);
}

TEST(Packing, TransposedSourcesGiveTheSameTiles) {
  const int32_t num_rows = 19, cols = 64;
  for (Kind kind : {Kind::kF32, Kind::kF16, Kind::kBF16}) {
    const Stored stored = random_rows(kind, num_rows, cols, 13);
    const int size = kind == Kind::kF32 ? 4 : 2;
    std::vector<std::byte> turned(stored.data.size());
    for (int32_t r = 0; r < num_rows; ++r) {
      for (int32_t k = 0; k < cols; ++k) {
        std::memcpy(&turned[(k * num_rows + r) * size], &stored.data[(r * cols + k) * size], size);
      }
    }
    const StoredRows transposed{.kind = kind,
                                .data = turned.data(),
                                .row_stride_bytes = num_rows * size,
                                .cols = cols,
                                .transposed = true};
    for (DType target : kTargets) {
      EXPECT_EQ(pack(stored.rows, num_rows, target).memory,
                pack(transposed, num_rows, target).memory)
          << dtype_name(target);
    }
  }
}

TEST(Packing, PaddingLanesAreZeroWithScaleOne) {
  const Stored stored = random_rows(Kind::kF32, 3, 64, 14);
  for (DType target : kTargets) {
    const Packed packed = pack(stored.rows, 3, target);
    PackedMatrix padded = packed.matrix;
    padded.rows = 16;
    for (int32_t row = 3; row < 16; ++row) {
      for (int32_t k = 0; k < 64; ++k) ASSERT_EQ(packed_value(padded, row, k), 0.0);
    }
    if (target == DType::kMXFP4) {
      EXPECT_EQ(packed.memory[3], std::byte{127});
    }
  }
}

TEST(Packing, SizesFollowTheFormats) {
  const PackedMatrix mxfp4{.format = DType::kMXFP4, .num_experts = 3, .rows = 33, .cols = 2880};
  EXPECT_EQ(mxfp4.num_tiles(), 3);
  EXPECT_EQ(mxfp4.tile_bytes(), 272 * 90);
  EXPECT_EQ(mxfp4.bytes(), 3 * 3 * 272 * 90);
  EXPECT_EQ(mxfp4.expert(2).data - mxfp4.data, 2 * 3 * 272 * 90);
  EXPECT_EQ(static_cast<double>(mxfp4.tile_bytes()) * 8 / (16 * 2880), dtype_bits(DType::kMXFP4));
  const PackedMatrix q8{.format = DType::kQ8_0, .rows = 16, .cols = 64};
  EXPECT_EQ(static_cast<double>(q8.tile_bytes()) * 8 / (16 * 64), dtype_bits(DType::kQ8_0));
}

TEST(GateUp, PackedRowsCoverPairsOfTilesOnce) {
  std::set<int32_t> seen;
  for (int32_t output = 0; output < 48; ++output) {
    const int32_t gate = gate_up_packed_row(output, 0), up = gate_up_packed_row(output, 1);
    EXPECT_EQ(gate / 16 % 2, 0);
    EXPECT_EQ(up, gate + 16) << "same lane of the next tile";
    EXPECT_EQ(gate % 16, output % 16);
    seen.insert(gate);
    seen.insert(up);
  }
  EXPECT_EQ(seen.size(), 96u);
  EXPECT_EQ(*seen.rbegin(), 95);
}

}  // namespace
}  // namespace moxie
