// embed: x = E[token]. BF16, F32 or Q8_0 rows to F32; no scaling, no positions, no norm.
#pragma once

#include "kernels/registry.h"

namespace moxie {

struct EmbedParams {
  Launch launch;
  int32_t num_tokens = 0;
  const int32_t* token_ids = nullptr;  // [tokens], each in 0..table.rows - 1
  RowTable table;                      // [vocab, hidden]
  float* x = nullptr;                  // [tokens, hidden], written
  float* cleared = nullptr;            // [tokens, num_cleared] set to zero, on CUDA
  int32_t num_cleared = 0;
  Forms forms;  // of x
};

template <>
struct Op<EmbedParams> {
  static constexpr OpInfo info{"embed"};
  static std::span<const Row<EmbedParams>> rows();
  static Work work(const EmbedParams& params);
};

}  // namespace moxie
