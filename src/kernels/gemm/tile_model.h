// Chooses the tile of the grouped products for many tokens: blocks of rows, 256 of them in the
// tiles' names, times a number of tokens of an expert.
//
// A wider tile reads an expert's weights fewer times and makes operands of them fewer times, but
// takes longer for few tokens. The model has the time of a tile for each number of tokens, and adds
// up the time of an expert whose number of tokens is random around the mean.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base.h"

namespace moxie::gemm {

/// A tile: rows of weights times tokens of an expert.
struct Tile {
  int32_t rows = 0, columns = 0;  ///< 0: any rows; as the row's tile model says

  bool operator==(const Tile&) const = default;
};
/// "256x64"
std::string tile_name(const Tile& tile);

/// What the tile models know of a device.
struct TileDevice {
  int32_t num_sms = 0;        ///< 0: not known
  double read_gb_s;           ///< 1e9 bytes a second
  double mma_gflops;          ///< BF16 products by mma.sync
  double operand_gb_s_of_sm;  ///< packed weights of which an SM makes operands

  bool operator==(const TileDevice&) const = default;
};

inline constexpr int32_t kGroupedTileRows = 256;
/// The columns that are multiplied for a tile's tokens are a multiple of this, if a tile has more
/// than `few`.
inline constexpr int32_t kTileWidthStep = 16;
/// A kernel for tiles of up to `columns` tokens; tiles of up to `few` tokens take few_time, and
/// those of more between few_time and `time`. Times are of 64 columns of weights, in nanoseconds,
/// as measured on an H200; the model needs only their ratios.
struct GroupedTile {
  int32_t columns, few;
  double time, few_time;
  /// Whether the ordered row has it: that row stores outputs of 16 columns at a time, and those of
  /// 64 do not fit beside its ring of weights. Tiles of 256 round their sums before they end.
  bool is_ordered;
};
inline constexpr std::array<GroupedTile, 6> kGroupedTiles = {{{8, 8, 290, 290, false},
                                                              {16, 8, 318, 312, true},
                                                              {32, 32, 369, 369, true},
                                                              {64, 64, 477, 477, false},
                                                              {96, 32, 660, 374, true},
                                                              {256, 96, 1430, 760, false}}};
/// A tile of products in E4M3: rows of weights times up to `columns` tokens; `few` and times as
/// GroupedTile's, but of an expert of gpt-oss-120b, in microseconds of all experts on an H200.
struct E4m3Tile {
  int32_t rows, columns, few;
  double time, few_time;
};
inline constexpr std::array<E4m3Tile, 4> kE4m3Tiles = {{{256, 48, 48, 615, 615},
                                                        {256, 96, 96, 730, 730},
                                                        {192, 144, 64, 908, 686},
                                                        {128, 288, 96, 1514, 911}}};
/// The columns of the tile that takes least for experts with `mean` tokens on average.
int32_t choose_e4m3_tile(double mean);

/// Whether there is such a tile; `ordered`: whether the ordered row has it.
bool is_grouped_tile(int32_t columns, bool ordered = false);

struct TileChoice {
  int32_t columns = 0;
  std::string reason;  ///< "4.0 tokens an expert: 1.00; next 256x16, 1.03"
};
/// For experts with `mean` tokens on average; `ordered`: among the ordered row's tiles.
TileChoice choose_tile(double mean, bool ordered = false);
inline double mean_pairs(int32_t num_tokens, int32_t top_k, int32_t num_experts) {
  return static_cast<double>(num_tokens) * top_k / num_experts;
}

/// Every tile that a row has.
std::vector<Tile> all_tiles();
/// "auto" (zeros), "256xN" of kGroupedTiles or "128xN" of kMmaTileColumns; else an error that names
/// them.
Result<Tile> parse_tile(const std::string& text);

}  // namespace moxie::gemm
