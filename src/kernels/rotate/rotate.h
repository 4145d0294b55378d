// rotate: q and k from rows of products: an RMSNorm of each head if the layer has one, rotated
// (half-split), k and v appended to the cache at each token's position. What follows the product in
// `qkv`, for draft heads, whose products have other inputs.
#pragma once

#include "core/formats.h"
#include "kernels/registry.h"

namespace moxie {

struct RotateParams {
  Launch launch;
  Ragged batch;
  int32_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  float rms_eps = 1e-5f;
  float* qkv = nullptr;           // [tokens, qkv_stride]: (heads + 2 kv_heads) * head_dim of each;
                                  // may be overwritten
  int64_t qkv_stride = 0;         // 0: rows lie without gaps
  const float* q_norm = nullptr;  // [head_dim]; null: heads of q are not normed
  const float* k_norm = nullptr;  // [head_dim]; null: likewise
  Rotary rotary;
  KvLayer kv;
  float* q = nullptr;  // [tokens, heads, head_dim], written; null: k and v only

  /// Values from a token's row of qkv to the next one's.
  MOXIE_HOST_DEVICE int64_t row_stride() const {
    return qkv_stride > 0 ? qkv_stride : int64_t{num_heads + 2 * num_kv_heads} * head_dim;
  }
};

template <>
struct Op<RotateParams> {
  static constexpr OpInfo info{"rotate"};
  static std::span<const Row<RotateParams>> rows();
  static Work work(const RotateParams& params);
};

}  // namespace moxie
