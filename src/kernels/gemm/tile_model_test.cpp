#include "kernels/gemm/tile_model.h"

#include <gtest/gtest.h>

#include "kernels/gemm/mma_tiles.h"
#include "kernels/rates.h"

namespace moxie::gemm {
namespace {

TEST(TileModel, WiderTilesForMoreTokens) {
  int32_t before = 0;
  for (const double mean : {0.1, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0}) {
    const int32_t columns = choose_tile(mean).columns;
    EXPECT_TRUE(is_grouped_tile(columns)) << columns;
    EXPECT_GE(columns, before) << mean;
    EXPECT_GE(columns, mean) << "an expert's weights would be read twice";
    before = columns;
  }
}

TEST(TileModel, TakesWhatWastesLeast) {
  EXPECT_EQ(choose_tile(0).columns, 8);
  EXPECT_EQ(choose_tile(4).columns, 8);
  // Half of the experts would need two tiles of 64.
  EXPECT_EQ(choose_tile(64).columns, 96);
  EXPECT_EQ(choose_tile(128).columns, 256);
  EXPECT_EQ(choose_tile(256).columns, 256);
  EXPECT_NE(choose_tile(256).reason.find("256.0 tokens an expert"), std::string::npos)
      << choose_tile(256).reason;
  EXPECT_TRUE(is_grouped_tile(choose_tile(100000).columns));
}

TEST(TileModel, ReadsExpertsOnceInEightBits) {
  int32_t before = 0;
  for (const double mean : {0.0, 1.0, 16.0, 32.0, 64.0, 128.0, 256.0}) {
    const int32_t columns = choose_e4m3_tile(mean);
    EXPECT_GE(columns, before) << mean;
    EXPECT_GE(columns, mean) << "an expert's weights would be read twice";
    before = columns;
  }
  EXPECT_EQ(before, 288);
  // Four tiles of 256 tokens each, or eight of 128.
  EXPECT_EQ(choose_e4m3_tile(1024), 288);
}

// 0.8 of what data sheets say of products with F32 sums: 165.2 TFLOPS, and 362 (366 by its clock).
TEST(Rates, OfAGeForceAreThoseOfF32Sums) {
  DeviceProperties device{
      .name = "NVIDIA GeForce RTX 4090", .num_units = 128, .compute_capability = 89};
  device.clock_ghz = 2.52;
  EXPECT_NEAR(rates_of(DeviceKind::kCuda, device).mma_gflops, 0.8 * 165.2e3, 1e3);
  device.name = "NVIDIA L40S";
  device.num_units = 142;
  EXPECT_NEAR(rates_of(DeviceKind::kCuda, device).mma_gflops, 0.8 * 366e3, 2e3);
}

TEST(TileModel, ReadsTheSwitch) {
  EXPECT_EQ(parse_tile("auto").value(), Tile());
  EXPECT_EQ(parse_tile("256x64").value(), (Tile{256, 64}));
  EXPECT_EQ(parse_tile("128x64").value(), (Tile{128, 64}));
  for (const char* text : {"", "256", "256x", "256x7", "128x8", "256x64 ", "64"}) {
    const auto parsed = parse_tile(text);
    ASSERT_FALSE(parsed.has_value()) << text;
    EXPECT_NE(parsed.error().message().find("256x256"), std::string::npos)
        << parsed.error().message();
  }
}

// An SM reads 20 GB/s, multiplies 5,000 GFLOP/s and makes operands of 40 GB/s.
constexpr TileDevice kMmaDevice{
    .num_sms = 100, .read_gb_s = 2000, .mma_gflops = 500e3, .operand_gb_s_of_sm = 40};

TEST(MmaTiles, TakeAsLongAsReadingOrMultiplying) {
  // 128 rows of 2,880 in MXFP4 are 195,840 bytes: 9.79 us to read, 4.90 us for operands. 16 columns
  // are 11.8 MFLOP: 3.23 us at 73% of the rate.
  EXPECT_NEAR(mma_tile_us(16, 16, kMmaDevice), 9.79, 0.01);
  EXPECT_NEAR(mma_tile_us(32, 32, kMmaDevice), 4.90 + 2 * 3.23, 0.01);
  // A second tile finds its weights in L2.
  EXPECT_NEAR(mma_tile_us(16, 32, kMmaDevice), 9.79 + 4.90 + 3.23, 0.02);
  // 128 columns hide half of making operands and leave out steps of eight columns without tokens.
  EXPECT_NEAR(mma_tile_us(128, 115, kMmaDevice), 2.45 + 7.5 * 3.23, 0.02);
  // With fewer tokens the 45 units' arrival takes longer: 0.49 us each, 0.35 in tiles of 64.
  EXPECT_NEAR(mma_tile_us(128, 40, kMmaDevice), 22.05, 0.001);
  EXPECT_NEAR(mma_tile_us(64, 64, kMmaDevice), 15.75, 0.001);
  // A second tile of 64 takes 70% less for operands than one of 32, and 4 times 16 columns.
  EXPECT_NEAR(mma_tile_us(64, 128, kMmaDevice), 15.75 + 1.47 + 4 * 3.23, 0.02);
}

TEST(MmaTiles, AreAsFastAsOnAnH100) {
  // With 256 tokens an expert, half of them some more, experts reach 410 TFLOPS.
  const TileDevice h100{
      .num_sms = 132, .read_gb_s = 3157, .mma_gflops = 647e3, .operand_gb_s_of_sm = 19.3 * 1.98};
  const double us = 0.5 * (mma_tile_us(128, 248, h100) + mma_tile_us(128, 264, h100));
  EXPECT_NEAR(132 * 2.0 * 128 * 2880 * 256 / us * 1e-6, 410, 10);
  // Tiles of 64 were faster up to 64 tokens an expert, those of 128 from 128 on.
  for (const double mean : {32.0, 64.0}) EXPECT_EQ(choose_mma_tile(mean, h100).columns, 64);
  for (const double mean : {128.0, 256.0, 1024.0})
    EXPECT_EQ(choose_mma_tile(mean, h100).columns, 128);
}

TEST(MmaTiles, FollowTheDevice) {
  EXPECT_EQ(mma_tile_by_rule(16), 32);
  EXPECT_EQ(mma_tile_by_rule(1000), 128);
  // Where memory is slow, products are hidden behind it: the rule stands.
  TileDevice slow_memory = kMmaDevice;
  slow_memory.read_gb_s = 300;
  EXPECT_EQ(choose_mma_tile(16, slow_memory).columns, 32);
  EXPECT_EQ(choose_mma_tile(64, slow_memory).columns, 128);
  // Elsewhere 64 tokens are multiplied before the units of a tile of 128 arrive.
  const TileChoice choice = choose_mma_tile(64, kMmaDevice);
  EXPECT_EQ(choice.columns, 64);
  EXPECT_NE(choice.reason.find("128x128 would take"), std::string::npos) << choice.reason;
}

}  // namespace
}  // namespace moxie::gemm
