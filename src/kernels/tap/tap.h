// tap: copies the residual stream between two layers to the caller, one float a value.
#pragma once

#include "kernels/registry.h"

namespace moxie {

struct TapParams {
  Launch launch;
  int32_t num_tokens = 0, hidden = 0;
  const float* x = nullptr;  // [tokens, hidden]
  float* to = nullptr;       // [tokens, hidden], written
  Forms forms;               // of x
};

template <>
struct Op<TapParams> {
  static constexpr OpInfo info{"tap"};
  static std::span<const Row<TapParams>> rows();
  static Work work(const TapParams& params);
};

}  // namespace moxie
