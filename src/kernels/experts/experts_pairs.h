// The (token, slot) pairs of a launch sorted by expert, so that an expert's weights are read once.
// Of experts that the weights do not hold (ExpertsParams::first_expert) there are no pairs.
#pragma once

#include "kernels/experts/experts.h"
#include "kernels/scratch.h"

namespace moxie {

struct SortedPairs {
  int32_t* active;   ///< [experts] experts with at least one pair, rising; of those held
  int32_t* offsets;  ///< [experts + 1] first pair of active expert i
  int32_t* pairs;    ///< [tokens * top_k] token * top_k + slot, by expert
  int32_t* places;   ///< [tokens * top_k] where a token's pairs are in `pairs`, rising; -1: none

  void take_from(const ExpertsParams& params, Scratch& scratch);
};

/// Counting sort of the pairs; returns the number of active experts.
int32_t sort_pairs(const ExpertsParams& params, const SortedPairs& sorted);

/// Adds what the experts computed for tokens begin..end-1 to x, by rising expert, so that the
/// result depends neither on the threads nor on other tokens. y [pairs, hidden] is down's product
/// with the pair at the same place in `pairs`, without the bias; `add_scaled` is a function of
/// LaneKernels.
void add_outputs(const ExpertsParams& params, const SortedPairs& sorted, const float* y,
                 void (*add_scaled)(const float* y, const float* bias, float weight, int32_t n,
                                    float* x),
                 int64_t begin, int64_t end);

}  // namespace moxie
