// The greatest logit is taken out of each sum, so that no power overflows.
#include "lab/logit_distance.h"

#include <algorithm>
#include <cmath>

namespace moxie {

double log_sum_exp(const float* row, int32_t n) {
  float top = row[0];
  for (int32_t i = 1; i < n; ++i) top = std::max(top, row[i]);
  double sum = 0;
  for (int32_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(row[i]) - top);
  return top + std::log(sum);
}

double row_kl(const float* p, const float* q, int32_t vocab) {
  const double zp = log_sum_exp(p, vocab), zq = log_sum_exp(q, vocab);
  double sum = 0;
  for (int32_t i = 0; i < vocab; ++i) sum += std::exp(p[i] - zp) * ((p[i] - zp) - (q[i] - zq));
  return sum;
}

}  // namespace moxie
