// Grouped sigmoid routing in F32, and the counting sort of its pairs.
#include "kernels/moe_fp8/moe_fp8_routing.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/formats.h"
#include "core/threads.h"

namespace moxie {
namespace {

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// Whether a ranks above b, which has the lower index: NaN above all numbers.
bool ranks_above(float a, float b) { return a > b || (std::isnan(a) && !std::isnan(b)); }

// The index of the highest of n scores that are not yet taken; the lowest index among equals.
int32_t highest(const float* scores, const bool* is_taken, int32_t n) {
  int32_t best = -1;
  for (int32_t i = 0; i < n; ++i) {
    if (!is_taken[i] && (best < 0 || ranks_above(scores[i], scores[best]))) best = i;
  }
  return best;
}

float sum_of_best_two(const float* scores, int32_t n) {
  bool is_taken[kMoeFp8MaxExperts];
  std::fill_n(is_taken, n, false);
  const int32_t first = highest(scores, is_taken, n);
  if (n == 1) return scores[first];
  is_taken[first] = true;
  return scores[first] + scores[highest(scores, is_taken, n)];
}

}  // namespace

void choose_moe_fp8(const MoeFp8Params& p, int32_t token, int32_t* experts, float* weights) {
  float biased[kMoeFp8MaxExperts], of_group[kMoeFp8MaxExperts];
  bool is_kept[kMoeFp8MaxExperts] = {}, is_taken[kMoeFp8MaxExperts];
  const float* logits = p.routing_logits + int64_t{token} * p.num_experts;
  const int32_t group_size = p.num_experts / p.num_groups;
  for (int32_t e = 0; e < p.num_experts; ++e)
    biased[e] = sigmoid(logits[e]) + bf16_to_f32(p.routing_bias[e]);
  for (int32_t g = 0; g < p.num_groups; ++g)
    of_group[g] = sum_of_best_two(biased + g * group_size, group_size);
  for (int32_t i = 0; i < p.kept_groups; ++i)
    is_kept[highest(of_group, is_kept, p.num_groups)] = true;
  for (int32_t e = 0; e < p.num_experts; ++e) is_taken[e] = !is_kept[e / group_size];
  float sum = 0;
  for (int32_t i = 0; i < p.top_k; ++i) {
    experts[i] = highest(biased, is_taken, p.num_experts);
    is_taken[experts[i]] = true;
    weights[i] = sigmoid(logits[experts[i]]);
    sum += weights[i];
  }
  for (int32_t i = 0; i < p.top_k; ++i)
    weights[i] = weights[i] / (sum + 1e-20f) * p.routed_scaling_factor;
}

void MoeFp8Pairs::take_from(const MoeFp8Params& p, int32_t count, Scratch& scratch) {
  const int64_t most_pairs = int64_t{count} * std::min(p.top_k, p.num_local_experts);
  offsets = scratch.take<int32_t>(p.num_local_experts + 1);
  tokens = scratch.take<int32_t>(most_pairs);
  weights = scratch.take<float>(most_pairs);
  chosen = scratch.take<int32_t>(int64_t{count} * p.top_k);
  chosen_weights = scratch.take<float>(int64_t{count} * p.top_k);
}

void sort_moe_fp8_pairs(const MoeFp8Params& p, int32_t first, int32_t count,
                        const MoeFp8Pairs& pairs) {
  constexpr int64_t kTokensOfTask = 8;
  p.launch.stream->pool->share(count, kTokensOfTask, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      choose_moe_fp8(p, first + static_cast<int32_t>(i), pairs.chosen + i * p.top_k,
                     pairs.chosen_weights + i * p.top_k);
  });
  const int64_t num_chosen = int64_t{count} * p.top_k;
  const auto local_of = [&](int64_t i) { return pairs.chosen[i] - p.local_expert_offset; };
  const auto is_local = [&](int32_t e) { return e >= 0 && e < p.num_local_experts; };
  std::fill_n(pairs.offsets, p.num_local_experts + 1, 0);
  for (int64_t i = 0; i < num_chosen; ++i)
    if (const int32_t e = local_of(i); is_local(e)) ++pairs.offsets[e + 1];
  for (int32_t e = 0; e < p.num_local_experts; ++e) pairs.offsets[e + 1] += pairs.offsets[e];
  // offsets[e] moves from the begin of e's pairs to their end, the begin of e + 1's.
  for (int64_t i = 0; i < num_chosen; ++i) {
    const int32_t e = local_of(i);
    if (!is_local(e)) continue;
    const int32_t at = pairs.offsets[e]++;
    pairs.tokens[at] = first + static_cast<int32_t>(i / p.top_k);
    pairs.weights[at] = pairs.chosen_weights[i];
  }
  for (int32_t e = p.num_local_experts; e > 0; --e) pairs.offsets[e] = pairs.offsets[e - 1];
  pairs.offsets[0] = 0;
}

}  // namespace moxie
