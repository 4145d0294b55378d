// kFragment16x32 against the stored values, in all formats, and the word of eight E2M1 codes.
#include "core/fragment.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace moxie {
namespace {

TEST(Fragment, WordsBecomeBf16Pairs) {
  std::mt19937 random(1);
  for (int n = 0; n < 1000; ++n) {
    uint8_t codes[8];
    for (uint8_t& code : codes) code = static_cast<uint8_t>(random() % 16);
    const uint32_t word = fragment_mxfp4_word(codes);
    uint32_t pairs[4];
    fragment_mxfp4_pairs(word, pairs);
    for (int j = 0; j < 8; ++j) {
      EXPECT_EQ(fragment_mxfp4_code(word, j), codes[j]);
      const auto bits = static_cast<uint16_t>(pairs[j / 2] >> (16 * (j % 2)));
      EXPECT_EQ(bf16_to_f32(bits), std::ldexp(e2m1_to_f32(codes[j]), -126));
    }
  }
}

TEST(Fragment, RowOrdersArePermutations) {
  std::set<int32_t> seen;
  for (int32_t row = 0; row < 6 * 64; ++row) seen.insert(fragment_qkv_row(row, 64));
  EXPECT_EQ(seen.size(), 6u * 64);
  EXPECT_EQ(*seen.rbegin(), 6 * 64 - 1);
  EXPECT_EQ(fragment_qkv_row(8, 64), 32);  // beside dimension 0 lies dimension 32
  EXPECT_EQ(fragment_qkv_row(16, 64), 8);
  seen.clear();
  for (int32_t output = 0; output < 48; ++output)
    for (int32_t half : {0, 1}) seen.insert(fragment_gate_up_row(output, half));
  EXPECT_EQ(seen.size(), 96u);
  EXPECT_EQ(*seen.rbegin(), 95);
}

TEST(Fragment, HoldsWhatTheCpuLayoutHolds) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (const DType format : {DType::kF32, DType::kBF16, DType::kQ8_0, DType::kMXFP4}) {
    for (const int32_t cols : {32, 64, 96, 160}) {
      const int32_t rows = 23;
      std::vector<float> values(static_cast<size_t>(rows * cols));
      for (float& value : values) value = normal(random);
      const StoredRows stored{.kind = StoredRows::Kind::kF32,
                              .data = reinterpret_cast<const std::byte*>(values.data()),
                              .row_stride_bytes = 4 * cols,
                              .cols = cols};
      PackedMatrix ours{
          .format = format, .layout = PackedLayout::kFragment16x32, .rows = rows, .cols = cols};
      PackedMatrix cpu{.format = format, .rows = rows, .cols = cols};
      std::vector<std::byte> memory(static_cast<size_t>(ours.bytes()), std::byte{0xAA});
      std::vector<std::byte> cpu_memory(static_cast<size_t>(cpu.bytes()));
      ours.data = memory.data();
      cpu.data = cpu_memory.data();
      for (int32_t tile = 0; tile < 2; ++tile) {
        int64_t lanes[16];
        for (int32_t i = 0; i < 16; ++i) lanes[i] = 16 * tile + i < rows ? 16 * tile + i : -1;
        pack_tile_fragment(stored, lanes, tile, ours);
        pack_tile_rows16(stored, lanes, format, cpu_memory.data() + tile * cpu.tile_bytes());
      }
      for (int32_t r = 0; r < 32; ++r) {
        for (int32_t k = 0; k < round_up(cols, 64); ++k) {
          const double expected = r < rows && k < cols ? packed_value(cpu, r, k) : 0;
          ASSERT_EQ(fragment_value(ours, r, k), expected)
              << dtype_name(format) << " row " << r << " column " << k;
        }
      }
    }
  }
}

TEST(Fragment, QuantisesToE4M3BlocksAsOcpMxSays) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> values(16 * 64);
  for (float& value : values) value = normal(random);
  const StoredRows stored{.kind = StoredRows::Kind::kF32,
                          .data = reinterpret_cast<const std::byte*>(values.data()),
                          .row_stride_bytes = 256,
                          .cols = 64};
  PackedMatrix ours{
      .format = DType::kMXFP8, .layout = PackedLayout::kFragment16x32, .rows = 16, .cols = 64};
  std::vector<std::byte> memory(static_cast<size_t>(ours.bytes()));
  ours.data = memory.data();
  int64_t lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = i;
  pack_tile_fragment(stored, lanes, 0, ours);
  for (int r = 0; r < 16; ++r) {
    for (int block = 0; block < 2; ++block) {
      uint8_t codes[32];
      const float* from = &values[static_cast<size_t>(64 * r + 32 * block)];
      const float scale = e8m0_to_f32(quantize_mxfp8(from, codes));
      for (int k = 0; k < 32; ++k) {
        EXPECT_EQ(fragment_value(ours, r, 32 * block + k), double{e4m3_to_f32(codes[k])} * scale);
        EXPECT_NEAR(fragment_value(ours, r, 32 * block + k), from[k],
                    std::fabs(from[k]) / 8 + scale / 512);
      }
    }
  }
}

}  // namespace
}  // namespace moxie
