// reduce as part of the rows that read x (ReduceForm::kFolded): ranks on GPUs, one token.
#pragma once

#include "core/rank_link.h"

namespace moxie {

/// What is missing of the x that a row reads: the parts of all ranks, which the row exchanges.
/// Parts are of [hidden] values of two floats.
struct ReduceFold {
  LinkKind kind = LinkKind::kNone;
  int32_t num_ranks = 1;
  RankLink* link = nullptr;     ///< null: nothing is missing, and no rank is asked
  const float* part = nullptr;  ///< of this rank
  /// x with all parts, written; not the array that is read. Of qkv one float a value, of experts
  /// two.
  float* x = nullptr;
  float* cleared[2] = {};  ///< written with zeros; or null
};

}  // namespace moxie
