// Counting sort of (token, slot) pairs by expert, and the sum of their outputs.
#include "kernels/experts/experts_pairs.h"

#include <algorithm>
#include <cstring>

namespace moxie {

void SortedPairs::take_from(const ExpertsParams& p, Scratch& scratch) {
  active = scratch.take<int32_t>(p.gate_up.num_experts);
  offsets = scratch.take<int32_t>(p.gate_up.num_experts + 1);
  pairs = scratch.take<int32_t>(int64_t{p.num_tokens} * p.top_k);
  places = scratch.take<int32_t>(int64_t{p.num_tokens} * p.top_k);
}

int32_t sort_pairs(const ExpertsParams& p, const SortedPairs& sorted) {
  const int32_t num_experts = p.gate_up.num_experts, num_pairs = p.num_tokens * p.top_k;
  int32_t* next = sorted.offsets;  // counts, then the next free place of each expert
  std::memset(next, 0, static_cast<size_t>(num_experts) * 4);
  const auto held = [&](int32_t pair) {  // its expert among those held, or -1
    const int32_t e = p.expert_ids[pair] - p.first_expert;
    CHECK(e + p.first_expert >= 0, "expert " + std::to_string(e + p.first_expert));
    return e >= 0 && e < num_experts ? e : -1;
  };
  for (int32_t pair = 0; pair < num_pairs; ++pair)
    if (const int32_t e = held(pair); e >= 0) ++next[e];
  int32_t num_active = 0, total = 0;
  for (int32_t e = 0; e < num_experts; ++e) {
    const int32_t count = next[e];
    if (count > 0) sorted.active[num_active++] = e;
    next[e] = total;
    total += count;
  }
  for (int32_t pair = 0; pair < num_pairs; ++pair) {
    if (const int32_t e = held(pair); e >= 0) sorted.pairs[next[e]++] = pair;
  }
  // next[e] is now the end of e's pairs; keep the borders of active experts. i <= active[i], so
  // that no border is overwritten before it is read.
  int32_t begin = 0;
  for (int32_t i = 0; i < num_active; ++i) {
    const int32_t end = next[sorted.active[i]];
    sorted.offsets[i] = begin;
    begin = end;
  }
  sorted.offsets[num_active] = begin;
  std::fill_n(sorted.places, num_pairs, -1);
  for (int32_t i = 0; i < begin; ++i) sorted.places[sorted.pairs[i]] = i;
  for (int32_t* of_token = sorted.places; of_token < sorted.places + num_pairs; of_token += p.top_k)
    std::sort(of_token, of_token + p.top_k);
  return num_active;
}

void add_outputs(const ExpertsParams& p, const SortedPairs& sorted, const float* y,
                 void (*add_scaled)(const float*, const float*, float, int32_t, float*),
                 int64_t begin, int64_t end) {
  for (int64_t i = begin * p.top_k; i < end * p.top_k; ++i) {
    const int32_t place = sorted.places[i];
    if (place < 0) continue;
    const int32_t pair = sorted.pairs[place], e = p.expert_ids[pair] - p.first_expert;
    add_scaled(y + int64_t{place} * p.hidden, p.down_bias + int64_t{e} * p.hidden,
               p.expert_weights[pair], p.hidden, p.x + i / p.top_k * p.hidden);
  }
}

}  // namespace moxie
