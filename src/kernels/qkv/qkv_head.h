// The heads of qkv's products as the rows of rotate finish them.
#pragma once

#include "kernels/qkv/qkv.h"
#include "kernels/rotate/rotate_head.h"

namespace moxie {

inline RotateParams heads_of(const QkvParams& p) {
  return {.batch = p.batch,
          .num_heads = p.num_heads,
          .num_kv_heads = p.num_kv_heads,
          .head_dim = p.head_dim,
          .rotary = p.rotary,
          .kv = p.kv,
          .q = p.q};
}

/// Null if finish_head can take these heads and this cache, otherwise why not.
inline const char* head_refuses(const QkvParams& params) { return head_refuses(heads_of(params)); }

/// Finishes one head of one token, with the bias added.
inline void finish_head(const QkvParams& params, int32_t token, int32_t head, float* values) {
  finish_head(heads_of(params), token, head, values);
}

}  // namespace moxie
