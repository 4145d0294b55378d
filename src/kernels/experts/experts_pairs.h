// The (token, slot) pairs of a launch sorted by expert, so that an expert's weights are read once.
#pragma once

#include "kernels/experts/experts.h"
#include "kernels/scratch.h"

namespace moxie {

struct SortedPairs {
  int32_t* active;   ///< [experts] those with at least one pair, rising
  int32_t* offsets;  ///< [experts + 1] first pair of active expert i
  int32_t* pairs;    ///< [tokens * top_k] token * top_k + slot, by expert

  void take_from(const ExpertsParams& params, Scratch& scratch);
};

/// Counting sort of the pairs; returns the number of active experts.
int32_t sort_pairs(const ExpertsParams& params, const SortedPairs& sorted);

}  // namespace moxie
