// The distance between two sets of logits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace moxie {

/// Mean over rows of KL(p || q) of the softmaxes of two sets of logits [rows, vocab].
inline double mean_kl(const std::vector<float>& p_logits, const std::vector<float>& q_logits,
                      size_t vocab) {
  double sum = 0;
  const size_t rows = p_logits.size() / vocab;
  for (size_t r = 0; r < rows; ++r) {
    const float* p = &p_logits[r * vocab];
    const float* q = &q_logits[r * vocab];
    const auto log_sum = [vocab](const float* x) {
      const double top = *std::max_element(x, x + vocab);
      double total = 0;
      for (size_t i = 0; i < vocab; ++i) total += std::exp(x[i] - top);
      return top + std::log(total);
    };
    const double zp = log_sum(p), zq = log_sum(q);
    for (size_t i = 0; i < vocab; ++i) sum += std::exp(p[i] - zp) * ((p[i] - zp) - (q[i] - zq));
  }
  return sum / static_cast<double>(rows);
}

}  // namespace moxie
