// The deviation takes two passes over the samples: no cancellation if samples are close together.
#include "lab/stats.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/base.h"

namespace moxie {
namespace {

std::vector<double> sorted_copy(std::span<const double> samples) {
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

double percentile_of_sorted(std::span<const double> sorted, double p) {
  if (sorted.empty()) return 0;
  const double rank = p * static_cast<double>(sorted.size() - 1);
  const size_t low = static_cast<size_t>(rank);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (rank - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

}  // namespace

double percentile(std::span<const double> samples, double p) {
  CHECK(p >= 0 && p <= 1, "p = " + std::to_string(p));
  return percentile_of_sorted(sorted_copy(samples), p);
}

double median(std::span<const double> samples) { return percentile(samples, 0.5); }

double mean(std::span<const double> samples) {
  if (samples.empty()) return 0;
  double sum = 0;
  for (double sample : samples) sum += sample;
  return sum / static_cast<double>(samples.size());
}

Summary summarize(std::span<const double> samples) {
  Summary summary;
  if (samples.empty()) return summary;
  const std::vector<double> sorted = sorted_copy(samples);
  summary.count = static_cast<int64_t>(samples.size());
  summary.mean = mean(samples);
  double squares = 0;
  std::vector<double> distances;
  summary.median = percentile_of_sorted(sorted, 0.5);
  for (double sample : samples) {
    squares += (sample - summary.mean) * (sample - summary.mean);
    distances.push_back(std::fabs(sample - summary.median));
  }
  if (summary.count > 1)
    summary.stdev = std::sqrt(squares / static_cast<double>(summary.count - 1));
  summary.mad = median(distances);
  summary.min = sorted.front();
  summary.max = sorted.back();
  summary.p50 = summary.median;
  summary.p90 = percentile_of_sorted(sorted, 0.9);
  summary.p95 = percentile_of_sorted(sorted, 0.95);
  summary.p99 = percentile_of_sorted(sorted, 0.99);
  return summary;
}

}  // namespace moxie
