// How experts_tiles.cuh shares tiles among blocks: neighbouring tiles, in shares of equal cost.
// Separate from the kernels so that tests without a GPU can call it.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/formats.h"

namespace moxie::tiles {

/// Twice the measured cost of a tile, by the number of tokens that use its weights: 1 to 2, 3 to 4,
/// more. The activations of the first two are staged, unless there are three or more and
/// `stages_many` is false; other activations are read in place. More than four tokens take two
/// passes.
MOXIE_HOST_DEVICE inline int tile_cost(int num_tokens, bool stages_many) {
  if (num_tokens <= 2) return 2;
  if (num_tokens <= 4) return stages_many ? 3 : 4;
  return stages_many ? 5 : 6;
}

/// The first tile of a launch that begins at `cost` or later. `pick` comes in as the last pick that
/// has begun by then. Each pick has `num_tiles` tiles; a tile of pick n costs costs_before[n + 1] -
/// costs_before[n]. Behind the last tile the result is tile 0 of the pick after the last.
MOXIE_HOST_DEVICE inline void first_tile_from(int cost, const int* costs_before, int num_tiles,
                                              int& pick, int& tile) {
  const int start = costs_before[pick], own = costs_before[pick + 1] - start;
  const float begun = static_cast<float>(cost - start * num_tiles);
  tile = static_cast<int>(ceilf(begun * (1.0f / static_cast<float>(own))));
  if (tile >= num_tiles) ++pick, tile = 0;
}

}  // namespace moxie::tiles
