#include "kernels/gemm/tile_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/gemm/mma_tiles.h"

namespace moxie::gemm {
namespace {

// The time of an expert with `num` tokens, of a GroupedTile or an E4m3Tile.
template <typename T>
double time_of(const T& tile, int32_t num) {
  const int32_t tiles = ceil_div(num, tile.columns), each = ceil_div(num, tiles);
  if (each <= tile.few) return tiles * tile.few_time;
  const double share =
      static_cast<double>(round_up(each, kTileWidthStep) - tile.few) / (tile.columns - tile.few);
  return tiles * (tile.few_time + share * (tile.time - tile.few_time));
}

// The mean time for a random number of tokens: Poisson, ten deviations around the mean.
template <typename TimeOf>
double expected_time(double mean, TimeOf&& time_of_tokens) {
  const double reach = 10 * std::sqrt(mean) + 10;
  const auto first = static_cast<int32_t>(std::max(1.0, std::floor(mean - reach)));
  const auto last = static_cast<int32_t>(std::ceil(mean + reach));
  double time = 0;
  for (int32_t num = first; num <= last; ++num) {
    const double probability = std::exp(num * std::log(mean) - mean - std::lgamma(num + 1.0));
    time += probability * time_of_tokens(num);
  }
  return time;
}

// Of the packed weights of a tile: 2,880 columns of MXFP4 with their scales.
constexpr double kMmaK = 2880, kMmaWeightBytes = kMmaTileRows * kMmaK * 17 / 32;
// The products' share of mma.sync's rate, apart from making operands. This and the next two are
// fitted to an H100's experts with 32 to 1,024 tokens each, in tiles of any width: to 6% in those
// of 64 and 128 (10% once), to 12% in the others
// (docs/decisions/2026-11-27-products-without-branches.md).
constexpr double kMmaShare = 0.73;
// The share of making operands that products do not hide: a warp makes them for four tiles at once
// in tiles of 64, for two in those of 128, else for one.
constexpr double mma_operands_share(int32_t columns) {
  return columns > 64 ? 0.5 : columns > 32 ? 0.3 : 1.0;
}
// The least time of a unit of 64 columns of K of a tile that comes from memory: with wide tiles the
// ring holds two units, so that a block waits for the one that is on its way.
constexpr double mma_unit_us(int32_t columns) {
  return columns > 64 ? 0.49 : columns > 32 ? 0.35 : 0.0;
}
// The columns that are multiplied for so many tokens: there is a loop for each number of steps of
// eight, but not for every small one.
constexpr int32_t mma_columns(int32_t columns, int32_t num_tokens) {
  const int32_t few = columns > 64 ? 32 : 16;
  if (num_tokens <= few) return few;
  return round_up(num_tokens, num_tokens <= 2 * few ? 16 : 8);
}

// The model tells no smaller differences than this.
constexpr double kLeastMmaGain = 1.03;

double expected_mma_us(int32_t columns, double mean, const TileDevice& device) {
  return expected_time(mean, [&](int32_t num) { return mma_tile_us(columns, num, device); });
}

}  // namespace

std::string tile_name(const Tile& tile) { return fmt::format("{}x{}", tile.rows, tile.columns); }

bool is_grouped_tile(int32_t columns, bool ordered) {
  return std::any_of(kGroupedTiles.begin(), kGroupedTiles.end(), [&](const GroupedTile& tile) {
    return tile.columns == columns && (tile.is_ordered || !ordered);
  });
}

TileChoice choose_tile(double mean, bool ordered) {
  mean = std::max(mean, 1e-3);
  // Every layer of a launch asks for the same.
  thread_local std::pair<std::pair<double, bool>, TileChoice> last;
  if (last.first == std::pair(mean, ordered)) return last.second;
  std::vector<std::pair<double, int32_t>> times;
  for (const GroupedTile& tile : kGroupedTiles)
    if (tile.is_ordered || !ordered)
      times.emplace_back(expected_time(mean, [&](int32_t num) { return time_of(tile, num); }),
                         tile.columns);
  std::partial_sort(times.begin(), times.begin() + 2, times.end());
  last = {{mean, ordered},
          {.columns = times[0].second,
           .reason = fmt::format("{:.1f} tokens an expert; {} would take {:.2f} times as long",
                                 mean, tile_name({kGroupedTileRows, times[1].second}),
                                 times[1].first / times[0].first)}};
  return last.second;
}

int32_t choose_e4m3_tile(double mean) {
  mean = std::max(mean, 1e-3);
  // Every layer of a launch asks for the same.
  thread_local std::pair<double, int32_t> last;
  if (last.first == mean) return last.second;
  const auto time = [&](const E4m3Tile& tile) {
    return expected_time(mean, [&](int32_t num) { return time_of(tile, num); });
  };
  const auto is_faster = [&](const E4m3Tile& a, const E4m3Tile& b) { return time(a) < time(b); };
  last = {mean, std::min_element(kE4m3Tiles.begin(), kE4m3Tiles.end(), is_faster)->columns};
  return last.second;
}

std::vector<Tile> all_tiles() {
  std::vector<Tile> tiles;
  for (const int32_t columns : kMmaTileColumns) tiles.push_back({kMmaTileRows, columns});
  for (const GroupedTile& tile : kGroupedTiles) tiles.push_back({kGroupedTileRows, tile.columns});
  return tiles;
}

Result<Tile> parse_tile(const std::string& text) {
  if (text == "auto") return Tile{};
  std::string known;
  for (const Tile& tile : all_tiles()) {
    const std::string name = tile_name(tile);
    if (text == name) return tile;
    known += ", " + name;
  }
  return fail("unknown tile '" + text + "'", "--tile", "auto" + known);
}

double mma_tile_us(int32_t columns, int32_t num_tokens, const TileDevice& device) {
  const int32_t tiles = ceil_div(num_tokens, columns);
  const int32_t each = mma_columns(columns, ceil_div(num_tokens, tiles));
  const double read_us = std::max(1e-3 * kMmaWeightBytes * device.num_sms / device.read_gb_s,
                                  kMmaK / 64 * mma_unit_us(columns));
  const double multiply_us =
      1e-3 * mma_operands_share(columns) * kMmaWeightBytes / device.operand_gb_s_of_sm +
      1e-3 * 2 * kMmaTileRows * kMmaK * each * device.num_sms / (kMmaShare * device.mma_gflops);
  return std::max(read_us, multiply_us) + (tiles - 1) * multiply_us;
}

TileChoice choose_mma_tile(double mean, const TileDevice& device) {
  mean = std::max(mean, 1e-3);
  if (device.num_sms == 0) return {mma_tile_by_rule(mean), "by the rule: the device is not known"};
  // Every layer of a launch asks for the same.
  thread_local std::pair<std::pair<double, TileDevice>, TileChoice> last;
  if (last.first.first == mean && last.first.second == device) return last.second;
  const auto us_of = [&](int32_t columns) { return expected_mma_us(columns, mean, device); };
  const auto is_faster = [&](int32_t a, int32_t b) { return us_of(a) < us_of(b); };
  const int32_t by_rule = mma_tile_by_rule(mean);
  const int32_t best = *std::min_element(kMmaTileColumns.begin(), kMmaTileColumns.end(), is_faster);
  const bool gains = us_of(by_rule) > kLeastMmaGain * us_of(best);
  TileChoice choice{
      by_rule, fmt::format("{:.1f} tokens an expert; no other would gain more than {:.0f}%", mean,
                           100 * (kLeastMmaGain - 1))};
  if (gains) {
    choice = {best, fmt::format("{:.1f} tokens an expert; {} would take {:.2f} times as long", mean,
                                tile_name({kMmaTileRows, by_rule}), us_of(by_rule) / us_of(best))};
  }
  last = {{mean, device}, choice};
  return choice;
}

int32_t mma_tile_by_rule(double mean) {
  for (const int32_t columns : kMmaTileColumns)
    if (1.5 * mean <= columns) return columns;
  return kMmaTileColumns.back();
}

}  // namespace moxie::gemm
