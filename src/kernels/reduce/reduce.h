// reduce: x += the sum of all ranks' parts, in the order of ranks, so that every rank gets the same
// bits. out and experts leave a rank's part of what they add to x; this makes x whole.
#pragma once

#include "core/rank_link.h"
#include "kernels/pair_outputs.h"
#include "kernels/registry.h"

namespace moxie {

struct ReduceParams {
  Launch launch;
  int32_t num_tokens = 0, hidden = 0;
  LinkKind kind = LinkKind::kNone;
  int32_t num_ranks = 1;        // what predicted times depend on
  RankLink* link = nullptr;     // after a fault, which it keeps, x stays as it is
  const float* part = nullptr;  // [tokens, hidden] of this rank
  /// With ReduceForm::kRounded, instead of `part`: this rank's part in BF16, or, if that is null,
  /// the sum of each token's pairs, times their weights. With kSent: this rank's part in BF16, or,
  /// if that is null, `part`.
  const uint16_t* rounded = nullptr;  // [tokens, hidden]
  /// Beside `rounded`, of two ranks: the other's, which its out has stored here; null: reduce
  /// sends.
  const uint16_t* received = nullptr;
  PairOutputs pairs;
  const float* pair_weights = nullptr;  // [tokens, top_k]
  int32_t top_k = 0;
  float* next_part = nullptr;  // [tokens, hidden], cleared: what the next reduce will read; or null
  float* x = nullptr;          // [tokens, hidden], read and written
  Forms forms;                 // of x
};

template <>
struct Op<ReduceParams> {
  static constexpr OpInfo info{"reduce"};
  static std::span<const Row<ReduceParams>> rows();
  static Work work(const ReduceParams& params);
};

}  // namespace moxie
