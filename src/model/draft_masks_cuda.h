// The embedding of mask tokens that a head brings along, on CUDA.
#pragma once

#include <cstdint>

#include "core/device.h"

namespace moxie {

/// x[i] = embedding for each i with tokens[i] == mask_id; `x` is [n, hidden] of XForm::kF32Pair.
/// All are device pointers.
void draft_masks_cuda(const int32_t* tokens, int32_t n, int32_t mask_id, const float* embedding,
                      int32_t hidden, float* x, Stream& stream);

}  // namespace moxie
