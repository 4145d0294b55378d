#include "kernels/gemm/tile_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace moxie::gemm {
namespace {

constexpr int32_t kRows = 256;

// The time of an expert with `num` tokens.
double time_of(const GroupedTile& tile, int32_t num) {
  const int32_t tiles = ceil_div(num, tile.columns);
  const int32_t each = round_up(ceil_div(num, tiles), 8);
  return tiles * (each <= tile.few ? tile.few_time : tile.time);
}

// The mean time for a random number of tokens: Poisson, ten deviations around the mean.
double expected_time(const GroupedTile& tile, double mean) {
  const double reach = 10 * std::sqrt(mean) + 10;
  const auto first = static_cast<int32_t>(std::max(1.0, std::floor(mean - reach)));
  const auto last = static_cast<int32_t>(std::ceil(mean + reach));
  double time = 0;
  for (int32_t num = first; num <= last; ++num) {
    const double probability = std::exp(num * std::log(mean) - mean - std::lgamma(num + 1.0));
    time += probability * time_of(tile, num);
  }
  return time;
}

}  // namespace

std::string tile_name(int32_t columns) { return fmt::format("{}x{}", kRows, columns); }

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
    if (tile.is_ordered || !ordered) times.emplace_back(expected_time(tile, mean), tile.columns);
  std::partial_sort(times.begin(), times.begin() + 2, times.end());
  last = {
      {mean, ordered},
      {.columns = times[0].second,
       .reason = fmt::format("{:.1f} tokens an expert; {} would take {:.2f} times as long", mean,
                             tile_name(times[1].second), times[1].first / times[0].first)}};
  return last.second;
}

Result<int32_t> parse_tile(const std::string& text) {
  if (text == "auto") return 0;
  std::string known;
  for (const GroupedTile& tile : kGroupedTiles) {
    const std::string name = tile_name(tile.columns);
    if (text == name) return tile.columns;
    known += ", " + name;
  }
  return fail("unknown tile '" + text + "'", "--tile", "auto" + known);
}

}  // namespace moxie::gemm
