// What the CPU rows of rotate and qkv share: where the outputs of a head of q, k or v go.
#pragma once

#include "kernels/rotate/rotate.h"

namespace moxie {

inline constexpr int32_t kMaxHeadDim = 256;

/// Null if finish_head can take these heads and this cache, otherwise why not.
const char* head_refuses(const RotateParams& params);

/// Finishes one head of one token, with bias and norm behind it: rotates q or k, and writes to q or
/// the cache.
void finish_head(const RotateParams& params, int32_t token, int32_t head, float* values);

}  // namespace moxie
