#include "kernels/experts/tile_shares.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <vector>

namespace moxie::tiles {
namespace {

constexpr int kMost = 8;  // tokens of a launch

// What tiles of picks of so many tokens cost before each, and all together.
std::vector<int> costs_before(const std::vector<int>& counts, bool stages_many) {
  std::vector<int> costs = {0};
  for (const int count : counts) costs.push_back(costs.back() + tile_cost(count, stages_many));
  return costs;
}

// The first tile of a block's share as its warps find it, counted through all picks.
int first_of(int block, int num_blocks, const std::vector<int>& costs, int num_tiles) {
  const int at = costs.back() * num_tiles * block / num_blocks;
  const int num_picks = static_cast<int>(costs.size()) - 1;
  int pick = 0, tile = 0;
  while (pick + 1 < num_picks && costs[pick + 1] * num_tiles <= at) ++pick;
  first_tile_from(at, costs.data(), num_tiles, pick, tile);
  EXPECT_LT(tile, num_tiles);
  return pick * num_tiles + tile;
}

void check_shares(const std::vector<int>& counts, int num_tiles, int num_blocks, bool stages_many) {
  SCOPED_TRACE(testing::Message() << counts.size() << " picks of " << num_tiles << " tiles, "
                                  << num_blocks << " blocks");
  const std::vector<int> costs = costs_before(counts, stages_many);
  EXPECT_EQ(first_of(0, num_blocks, costs, num_tiles), 0);
  EXPECT_EQ(first_of(num_blocks, num_blocks, costs, num_tiles),
            static_cast<int>(counts.size()) * num_tiles);
  const int mean = costs.back() * num_tiles / num_blocks;
  for (int block = 0; block < num_blocks; ++block) {
    const int begin = first_of(block, num_blocks, costs, num_tiles);
    const int end = first_of(block + 1, num_blocks, costs, num_tiles);
    ASSERT_LE(begin, end) << "block " << block;
    int cost = 0;
    for (int i = begin; i < end; ++i) cost += tile_cost(counts[i / num_tiles], stages_many);
    // A tile's cost at either end.
    ASSERT_LE(std::abs(cost - mean), tile_cost(kMost, stages_many)) << "block " << block;
  }
}

TEST(TileShares, EveryTileIsInOneShareAndSharesCostTheSame) {
  std::mt19937 random(1);
  for (const bool stages_many : {false, true}) {
    check_shares({1}, 1, 1, stages_many);
    check_shares({kMost}, 1, 7, stages_many);  // fewer tiles than blocks
    check_shares({3, 3}, 4, 8, stages_many);   // a tile each
    check_shares({8, 8, 8, 8}, 360, 528, stages_many);
    for (int i = 0; i < 2000; ++i) {
      std::vector<int> counts(std::uniform_int_distribution(1, 32)(random));
      for (int& count : counts) count = std::uniform_int_distribution(1, kMost)(random);
      const int num_tiles = std::uniform_int_distribution(1, 400)(random);
      check_shares(counts, num_tiles, std::uniform_int_distribution(1, 1000)(random), stages_many);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace moxie::tiles
