// How many experts' weights a launch reads, for predictions and limits of what multiplies experts.
#pragma once

#include <cmath>
#include <cstdint>

namespace moxie {

/// Distinct experts that `tokens` tokens choose if each chooses `top_k` of `num_experts` evenly.
inline double expected_distinct_experts(int32_t num_experts, int32_t top_k, int64_t tokens) {
  const double miss = 1.0 - static_cast<double>(top_k) / num_experts;
  return num_experts * (1.0 - std::pow(miss, static_cast<double>(tokens)));
}

}  // namespace moxie
