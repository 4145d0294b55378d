// Statistics of repeated measurements, stored in a record beside the raw samples.
#pragma once

#include <cstdint>
#include <span>

namespace moxie {

struct Summary {
  int64_t count = 0;
  double mean = 0;
  double stdev = 0;  ///< of the sample: divided by count - 1; 0 for fewer than two
  double median = 0;
  double mad = 0;  ///< median absolute deviation from the median, unscaled
  double min = 0, max = 0;
  double p50 = 0, p90 = 0, p95 = 0, p99 = 0;
};

/// All zeros for no samples. Samples must be finite.
Summary summarize(std::span<const double> samples);

/// The value below which a share `p` (0..1) of the samples lies, linear between the two nearest
/// ranks: rank p * (count - 1), as NumPy's default. 0 for no samples.
double percentile(std::span<const double> samples, double p);

double mean(std::span<const double> samples);
double median(std::span<const double> samples);

}  // namespace moxie
