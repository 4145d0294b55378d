// Sorts (token, expert) pairs by expert on the device, for products that take one expert's tokens
// after another's.
//
// Each pair gets a slot: a row of the staged activations. An expert's slots are one run that starts
// at a multiple of 8 and is in the order of the tokens; runs are in the order of the experts. Slots
// without a pair (up to the next multiple of 8, and behind the last run) have token -1 and weight
// 0. Pairs with experts outside of the sort's range have no slot. Each expert's run is cut into
// tiles of nearly equal size, each a multiple of 8 slots except the last. A product takes one tile
// at a time. Tiles are in the order of the experts, or from the widest expert to the narrowest.
#pragma once

#include <algorithm>

#include "core/base.h"
#include "kernels/pair_outputs.h"
#include "kernels/scratch.h"
#include "kernels/step.h"

namespace moxie::gemm {

inline constexpr int32_t kMaxSortedExperts = 256;

/// A tile: `num_slots` slots from first_slot (a multiple of 8) on, all of one expert. width: slots
/// of the expert's widest tile, up to a multiple of 8.
struct SlotTile {
  int32_t expert, first_slot, num_slots, width;
};

/// The result, in device memory. Sizes are the host's bounds.
struct SortedPairs {
  int32_t* slot_of_pair = nullptr;  // [tokens, top_k]; -1: none
  int32_t* slot_token = nullptr;    // [capacity]; -1: none
  float* slot_weight = nullptr;     // [capacity]
  SlotTile* tiles = nullptr;        // [max_tiles]
  int32_t* num_tiles = nullptr;     // [1]
  int32_t capacity = 0, max_tiles = 0;
};

/// The sizes of a sort. tile_slots: the most slots of a tile, a multiple of 8. first_expert: the id
/// of expert 0 of the num_experts that are sorted. widest_first: the order of the tiles; experts of
/// one width stay in order.
struct SortShape {
  int32_t num_tokens = 0, top_k = 0, num_experts = 0, tile_slots = 0, first_expert = 0;
  bool widest_first = false;

  int32_t num_pairs() const { return num_tokens * top_k; }
  int32_t num_runs() const { return std::min(num_experts, num_pairs()); }
  /// The most slots.
  int32_t capacity() const { return most_pair_slots(num_pairs(), num_experts); }
  int32_t max_tiles() const { return num_pairs() / tile_slots + num_runs() + 1; }
};

/// Takes the result's memory from `scratch`.
SortedPairs take_sorted_pairs(const SortShape& shape, Scratch& scratch);

/// expert_ids and expert_weights: [tokens, top_k] of route; ids from 0 on.
void sort_pairs(const SortShape& shape, const int32_t* expert_ids, const float* expert_weights,
                const SortedPairs& sorted, Stream* stream);

}  // namespace moxie::gemm
