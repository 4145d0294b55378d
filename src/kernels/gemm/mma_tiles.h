// Chooses the tile of the grouped products by mma.sync (product_mma.cuh) from a device's size and
// rates: 128 rows times a number of tokens of an expert (a block of 64 tokens has two of them).
//
// A tile's time is the longer of reading its weights, at an SM's share of memory's rate or as they
// arrive one unit after another, and of making operands of them and multiplying. Further tiles of
// the same expert find the weights in L2. As in tile_model.h the number of tokens of an expert is
// random around the mean.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "kernels/gemm/tile_model.h"

namespace moxie::gemm {

inline constexpr int32_t kMmaTileRows = 128;
inline constexpr std::array<int32_t, 4> kMmaTileColumns = {16, 32, 64, 128};
inline constexpr bool is_mma_tile(int32_t columns) {
  return std::ranges::find(kMmaTileColumns, columns) != kMmaTileColumns.end();
}

/// Microseconds of the weights of a tile's rows times `num_tokens` of one expert, in tiles of up to
/// `columns`.
double mma_tile_us(int32_t columns, int32_t num_tokens, const TileDevice& device);

/// The least columns that hold the mean number of tokens of an expert and a half.
int32_t mma_tile_by_rule(double mean);
/// For experts with `mean` tokens on average: the rule's tile, unless another gains more than the
/// model can be wrong by. The reason names the rule's tile where it is left.
/// On a device that is not known, the rule's.
TileChoice choose_mma_tile(double mean, const TileDevice& device);
/// For a row whose tiles have `tile_rows` rows: the choice of its model.
inline TileChoice choose_tile_of(int32_t tile_rows, double mean, bool ordered,
                                 const TileDevice& device) {
  return tile_rows == kMmaTileRows ? choose_mma_tile(mean, device) : choose_tile(mean, ordered);
}

}  // namespace moxie::gemm
