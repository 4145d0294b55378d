// gather: the ranks' logits, side by side: on the first rank, which draws; between GPUs on all of
// them, so that each draws the same tokens and none waits for the host.
#pragma once

#include "core/rank_link.h"
#include "kernels/registry.h"

namespace moxie {

/// Rows of the head are divided among ranks in units of so many (share_of_rank()).
inline constexpr int32_t kLogitUnit = 16;

struct GatherParams {
  Launch launch;
  int32_t num_rows = 0;
  int32_t part_width = 0, vocab = 0;  // logits of a row: of this rank, of all
  LinkKind kind = LinkKind::kNone;
  RankLink* link = nullptr;     // after a fault, which it keeps, the logits are not written
  const float* part = nullptr;  // [rows, part_width]
  float* logits = nullptr;      // [rows, vocab], written where ranks draw
};

template <>
struct Op<GatherParams> {
  static constexpr OpInfo info{"gather"};
  static std::span<const Row<GatherParams>> rows();
  static Work work(const GatherParams& params);
};

}  // namespace moxie
