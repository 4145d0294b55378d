// Two definitions that all rows of sample share, so that they agree to the bit: how bias and
// penalties change a logit, and the noise of a random word.
#pragma once

#include "kernels/sample/sample.h"

namespace moxie {

/// A raw logit with NaN as -inf, +inf as the greatest float and subnormals as 0: worker threads
/// flush subnormals, other threads do not.
float clean_logit(float raw);

/// A raw logit after bias and penalties, in double, rounded once. `count` is the number of times
/// the id is in the output, or -1 if it is in neither prompt nor output.
float adjusted_logit(const SampleRequest& request, float raw, float bias, int32_t count);

/// Whether the mask lets the id be drawn.
inline bool allowed(const SampleRequest& request, int32_t id) {
  return request.allowed_mask == nullptr || ((request.allowed_mask[id / 32] >> (id % 32)) & 1u);
}

/// The lowest id that the mask allows, -1 if none: the answer when no logit is left.
int32_t lowest_allowed(const SampleRequest& request, int32_t vocab);

/// True for temperature 0 and what counts as such.
inline bool is_greedy(const SampleRequest& request) {
  return !(request.temperature >= kGreedyTemperature);
}

}  // namespace moxie
