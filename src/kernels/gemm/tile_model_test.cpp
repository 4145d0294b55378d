#include "kernels/gemm/tile_model.h"

#include <gtest/gtest.h>

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
  EXPECT_EQ(choose_tile(64).columns, 96);
  // Around 256 tokens half of the experts would need three tiles of 128.
  EXPECT_EQ(choose_tile(256).columns, 144);
  EXPECT_NE(choose_tile(256).reason.find("256.0 tokens an expert"), std::string::npos)
      << choose_tile(256).reason;
  EXPECT_TRUE(is_grouped_tile(choose_tile(100000).columns));
}

TEST(TileModel, ReadsTheSwitch) {
  EXPECT_EQ(parse_tile("auto").value(), 0);
  EXPECT_EQ(parse_tile("256x64").value(), 64);
  for (const char* text : {"", "256", "256x", "256x7", "128x64", "256x64 ", "64"}) {
    const auto parsed = parse_tile(text);
    ASSERT_FALSE(parsed.has_value()) << text;
    EXPECT_NE(parsed.error().message().find("256x144"), std::string::npos)
        << parsed.error().message();
  }
}

}  // namespace
}  // namespace moxie::gemm
