// What the CPU rows of qkv share: where a head of q, k or v goes once it is multiplied.
#pragma once

#include "kernels/qkv/qkv.h"

namespace moxie {

inline constexpr int32_t kMaxHeadDim = 256;

/// Null if finish_head can take these heads and this cache, else why not.
const char* head_refuses(const QkvParams& params);

/// One head of one token, bias added: rotated if q or k, and written where it belongs.
void finish_head(const QkvParams& params, int32_t token, int32_t head, float* values);

}  // namespace moxie
