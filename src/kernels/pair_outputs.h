// What experts leave for reduce if it adds up their pairs (ReduceForm::kRounded): ranks on GPUs,
// many tokens.
#pragma once

#include <cstdint>

namespace moxie {

/// The outputs of each pair of token and expert, without the pair's weight.
struct PairOutputs {
  int32_t* slot_of_pair = nullptr;  ///< [tokens, top_k]; -1: the rank has no such expert
  uint16_t* outputs = nullptr;      ///< [slots, hidden], BF16; slots: SortShape::capacity()
};

}  // namespace moxie
