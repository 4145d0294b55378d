// Counting sort of (token, slot) pairs by expert.
#include "kernels/experts/experts_pairs.h"

#include <cstring>

namespace moxie {

void SortedPairs::take_from(const ExpertsParams& p, Scratch& scratch) {
  active = scratch.take<int32_t>(p.gate_up.num_experts);
  offsets = scratch.take<int32_t>(p.gate_up.num_experts + 1);
  pairs = scratch.take<int32_t>(int64_t{p.num_tokens} * p.top_k);
}

int32_t sort_pairs(const ExpertsParams& p, const SortedPairs& sorted) {
  const int32_t num_experts = p.gate_up.num_experts, num_pairs = p.num_tokens * p.top_k;
  int32_t* next = sorted.offsets;  // counts, then the next free place of each expert
  std::memset(next, 0, static_cast<size_t>(num_experts) * 4);
  for (int32_t pair = 0; pair < num_pairs; ++pair) {
    const int32_t e = p.expert_ids[pair];
    CHECK(e >= 0 && e < num_experts, "expert " + std::to_string(e));
    ++next[e];
  }
  int32_t num_active = 0, total = 0;
  for (int32_t e = 0; e < num_experts; ++e) {
    const int32_t count = next[e];
    if (count > 0) sorted.active[num_active++] = e;
    next[e] = total;
    total += count;
  }
  for (int32_t pair = 0; pair < num_pairs; ++pair) {
    sorted.pairs[next[p.expert_ids[pair]]++] = pair;
  }
  // next[e] is now the end of e's pairs; keep the active ones' borders. i <= active[i], so that no
  // border is overwritten before it is read.
  int32_t begin = 0;
  for (int32_t i = 0; i < num_active; ++i) {
    const int32_t end = next[sorted.active[i]];
    sorted.offsets[i] = begin;
    begin = end;
  }
  sorted.offsets[num_active] = begin;
  return num_active;
}

}  // namespace moxie
