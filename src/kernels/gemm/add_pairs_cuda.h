// Adds the outputs of experts, one row a pair of token and expert (sort_cuda.h), to the residual
// stream of their tokens.
#pragma once

#include "kernels/step.h"

namespace moxie::gemm {

/// x of each token += the sum over k < top_k of weights[token * top_k + k] times row
/// slot_of_pair[token * top_k + k] of `pairs`, without terms of slot -1. The terms are added in
/// that order; their sum is rounded and added once. Pointers are aligned to 16 bytes.
struct AddPairs {
  int32_t num_tokens = 0, width = 0, top_k = 0;
  const int32_t* slot_of_pair = nullptr;  ///< [tokens, top_k]
  const float* weights = nullptr;         ///< [tokens, top_k]
  const uint16_t* pairs = nullptr;        ///< [rows, width], BF16
  float* x = nullptr;                   ///< [tokens, width] of two floats (residual.cuh), added to
  bool x_is_single = false;             ///< one float
  bool overwrites = false;              ///< x = the sum, with x_is_single
  const float* bias = nullptr;          ///< [experts, width], added to a pair's row, or null
  const int32_t* expert_ids = nullptr;  ///< [tokens, top_k], with bias
};
void add_pairs(const AddPairs& step, Stream* stream);

}  // namespace moxie::gemm
