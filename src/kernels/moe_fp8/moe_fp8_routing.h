// The routing of moe_fp8_block_scale, for rows on the CPU: which experts a token chooses, with
// which weights, and the pairs of a token and a local expert sorted by expert.
#pragma once

#include "kernels/moe_fp8/moe_fp8.h"
#include "kernels/scratch.h"

namespace moxie {

/// Writes top_k distinct experts, by falling score, and their weights; thread-safe. A NaN score
/// ranks above all numbers, so that it shows in the outputs.
void choose_moe_fp8(const MoeFp8Params& params, int32_t token, int32_t* experts, float* weights);

/// Tokens first..first + count - 1 and their pairs with local experts, by rising expert and, within
/// an expert, by rising token.
struct MoeFp8Pairs {
  int32_t* offsets;       ///< [local experts + 1] pairs of local expert e
  int32_t* tokens;        ///< [count * min(top_k, local)] token of a pair
  float* weights;         ///< the same: w_e of the pair
  int32_t* chosen;        ///< [count, top_k]
  float* chosen_weights;  ///< [count, top_k]

  void take_from(const MoeFp8Params& params, int32_t count, Scratch& scratch);
};

/// Routes the tokens and sorts the pairs.
void sort_moe_fp8_pairs(const MoeFp8Params& params, int32_t first, int32_t count,
                        const MoeFp8Pairs& pairs);

}  // namespace moxie
