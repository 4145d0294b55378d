// How experts_tiles.cuh shares tiles out to blocks: neighbours, in parts of equal cost. Apart from
// the kernels so that tests without a GPU reach it.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/formats.h"

namespace moxie::tiles {

/// Twice what a tile costs by how many tokens want its weights, as measured: 1 to 2, 3 to 4, more.
/// The activations of the first two are staged, unless (with three and more) `stages_many` is not;
/// those of the others are read where they are, and of more than four there are two goes.
MOXIE_HOST_DEVICE inline int tile_cost(int num_tokens, bool stages_many) {
  if (num_tokens <= 2) return 2;
  if (num_tokens <= 4) return stages_many ? 3 : 4;
  return stages_many ? 5 : 6;
}

/// The first tile of a launch that begins at `cost` or later. `pick` comes in as the last one that
/// has begun by then. Of each pick there are `num_tiles`, those of pick n cost
/// costs_before[n + 1] - costs_before[n] each; behind the last is the first of a pick that is not
/// there.
MOXIE_HOST_DEVICE inline void first_tile_from(int cost, const int* costs_before, int num_tiles,
                                              int& pick, int& tile) {
  const int start = costs_before[pick], own = costs_before[pick + 1] - start;
  const float begun = static_cast<float>(cost - start * num_tiles);
  tile = static_cast<int>(ceilf(begun * (1.0f / static_cast<float>(own))));
  if (tile >= num_tiles) ++pick, tile = 0;
}

}  // namespace moxie::tiles
