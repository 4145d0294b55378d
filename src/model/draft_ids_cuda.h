// The ids that greedy draws of a draft head mean, on CUDA.
#pragma once

#include "kernels/sample/sample.h"

namespace moxie {

/// ids[i] = the target's id of answers[i].token: target_ids[token], or the token itself if
/// `target_ids` is null. All are device pointers.
void draft_ids_cuda(const SampleAnswer* answers, int32_t n, const int32_t* target_ids, int32_t* ids,
                    Stream& stream);

}  // namespace moxie
