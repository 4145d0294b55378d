// unembed: logits = W RMSNorm(x) for the requested rows. No bias, no cap, no scaling.
#pragma once

#include "kernels/registry.h"

namespace moxie {

struct UnembedParams {
  Launch launch;
  int32_t num_rows = 0, hidden = 0;
  float rms_eps = 1e-5f;
  const int32_t* row_idx = nullptr;    // [rows] which token of x each row of logits is for
  const float* x = nullptr;            // [tokens, hidden]
  const float* norm_weight = nullptr;  // [hidden]
  PackedMatrix weight;                 // [vocab, hidden]
  float* logits = nullptr;             // [rows, vocab], written
  Forms forms;                         // of x
};

template <>
struct Op<UnembedParams> {
  static constexpr OpInfo info{"unembed"};
  static std::span<const Row<UnembedParams>> rows();
  static Work work(const UnembedParams& params);
};

}  // namespace moxie
