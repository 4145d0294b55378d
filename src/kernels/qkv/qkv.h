// qkv: t = RMSNorm(x); q, k, v = W t + b; q and k rotated (half-split); k and v appended to the
// cache at each token's position. The norm's weight is multiplied in F32 before any rounding.
#pragma once

#include "kernels/reduce_fold.h"
#include "kernels/registry.h"

namespace moxie {

struct QkvParams {
  Launch launch;
  Ragged batch;
  int32_t hidden = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  float rms_eps = 1e-5f;
  const float* x = nullptr;            // [tokens, hidden]
  const float* norm_weight = nullptr;  // [hidden]
  PackedMatrix weight;                 // [(heads + 2 kv_heads) * head_dim, hidden]: q, k, v rows
  const float* bias = nullptr;         // [(heads + 2 kv_heads) * head_dim]
  Rotary rotary;
  KvLayer kv;
  float* q = nullptr;     // [tokens, heads, head_dim], written, rotated, not scaled
  float q_factor = 1.0f;  // of staged queries: AttendParams::q_factor()
  ReduceFold reduce;      // with ReduceForm::kFolded
  Forms forms;            // of x, read, and of q
  /// kBF16 or wider; or kMXFP8: rows that round activations and weights to integers may run.
  DType activation = DType::kBF16;
};

template <>
struct Op<QkvParams> {
  static constexpr OpInfo info{"qkv"};
  static std::span<const Row<QkvParams>> rows();
  static Work work(const QkvParams& params);
};

}  // namespace moxie
