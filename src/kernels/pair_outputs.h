// What experts leave for reduce if it adds up their pairs (ReduceForm::kRounded): ranks on GPUs,
// many tokens.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/base.h"

namespace moxie {

/// Slots of an expert begin at multiples of this.
inline constexpr int32_t kSlotsAlign = 8;
/// The most slots that pairs sorted by expert take (gemm/sort_cuda.h).
inline int32_t most_pair_slots(int32_t num_pairs, int32_t num_experts) {
  return round_up(num_pairs, kSlotsAlign) + kSlotsAlign * std::min(num_experts, num_pairs);
}

/// The outputs of each pair of token and expert, without the pair's weight.
struct PairOutputs {
  int32_t* slot_of_pair = nullptr;  ///< [tokens, top_k]; -1: the rank has no such expert
  uint16_t* outputs = nullptr;      ///< [slots, hidden], BF16; most_pair_slots()
};

}  // namespace moxie
