#include "lab/proportions.h"

#include <algorithm>
#include <cmath>

#include "core/base.h"
#include "lab/rank_tests.h"

namespace moxie {

Interval wilson_interval(int64_t count, int64_t total, double z) {
  CHECK(count >= 0 && count <= total);
  if (total == 0) return {0, 1};
  const auto n = static_cast<double>(total);
  const double share = static_cast<double>(count) / n;
  const double centre = (share + z * z / (2 * n)) / (1 + z * z / n);
  const double half =
      z / (1 + z * z / n) * std::sqrt(share * (1 - share) / n + z * z / (4 * n * n));
  return {count == 0 ? 0 : std::max(0.0, centre - half),
          count == total ? 1 : std::min(1.0, centre + half)};
}

double mcnemar_p(const PairedCounts& counts) { return sign_p(counts.only_a, counts.only_b); }

double paired_difference(const PairedCounts& counts) {
  if (counts.total == 0) return 0;
  return static_cast<double>(counts.only_b - counts.only_a) / static_cast<double>(counts.total);
}

Interval paired_difference_interval(const PairedCounts& counts, double z) {
  if (counts.total == 0) return {-1, 1};
  const double n = static_cast<double>(counts.total) + 2;
  const double a = static_cast<double>(counts.only_a) + 0.5;
  const double b = static_cast<double>(counts.only_b) + 0.5;
  const double difference = (b - a) / n;
  const double half = z * std::sqrt(a + b - (b - a) * (b - a) / n) / n;
  return {std::max(-1.0, difference - half), std::min(1.0, difference + half)};
}

}  // namespace moxie
