// Everything is done on logarithms: a ratio and its inverse are equally far from no difference.
#include "lab/verdict.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "lab/proportions.h"
#include "lab/rank_tests.h"
#include "lab/stats.h"

namespace moxie {
namespace {

constexpr int kResamples = 2000;
constexpr uint64_t kSeed = 42;

bool all_positive(std::span<const double> samples) {
  return std::all_of(samples.begin(), samples.end(), [](double x) { return x > 0; });
}

std::vector<double> logs_of(std::span<const double> samples) {
  std::vector<double> logs;
  for (const double sample : samples) logs.push_back(std::log(sample));
  return logs;
}

// Blocks of neighbours, so that what resembles its neighbour stays together; around the end.
void resample(const std::vector<double>& values, std::mt19937_64& random,
              std::vector<double>* drawn) {
  const size_t n = values.size();
  const auto block = static_cast<size_t>(std::lround(std::cbrt(static_cast<double>(n))));
  drawn->clear();
  while (drawn->size() < n) {
    const size_t first = random() % n;
    for (size_t i = 0; i < block && drawn->size() < n; ++i) {
      drawn->push_back(values[(first + i) % n]);
    }
  }
}

// The middle 95% of `statistic` over resamples.
Interval bootstrap(const std::function<double(std::mt19937_64&)>& statistic) {
  std::mt19937_64 random(kSeed);
  std::vector<double> values;
  for (int i = 0; i < kResamples; ++i) values.push_back(statistic(random));
  return {percentile(values, 0.025), percentile(values, 0.975)};
}

// How many times the variance of a mean exceeds that of independent values, by the correlation of
// neighbours; 1 or more.
double variance_inflation(const std::vector<double>& values) {
  constexpr double kMostCorrelation = 0.9;
  constexpr double kRounding =
      1e-12;  // deviations below it are the arithmetic's, not the machine's
  const double middle = mean(values);
  double products = 0, squares = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    squares += (values[i] - middle) * (values[i] - middle);
    if (i > 0) products += (values[i] - middle) * (values[i - 1] - middle);
  }
  if (!(squares > kRounding * kRounding * static_cast<double>(values.size()))) return 1;
  const double correlation = std::clamp(products / squares, 0.0, kMostCorrelation);
  return (1 + correlation) / (1 - correlation);
}

// The quantile function of erfc by bisection: x with erfc(x) == p.
double inverse_erfc(double p) {
  double low = 0, high = 10;
  for (int i = 0; i < 60; ++i) {
    const double middle = 0.5 * (low + high);
    (std::erfc(middle) > p ? low : high) = middle;
  }
  return low;
}

// What a two-sided p is worth if the variance is `inflation` times what the test took it for.
double deflated(double p, double inflation) {
  return inflation <= 1 ? p : std::erfc(inverse_erfc(p) / std::sqrt(inflation));
}

// Whether pairs differ so much that no correlation among them can be the reason: their median is
// far from zero beside their spread, and farther than where a model lies in memory can put it.
bool is_far_apart(const std::vector<double>& pairs) {
  constexpr double kLarge = 0.2, kSpreads = 3;
  const double spread = percentile(pairs, 0.9) - percentile(pairs, 0.1);
  const double middle = std::fabs(median(pairs));
  return middle > kLarge && middle > kSpreads * spread;
}

double drift_within(const std::vector<double>& logs) {
  const auto half = static_cast<std::ptrdiff_t>(logs.size() / 2);
  const double first = median({logs.data(), static_cast<size_t>(half)});
  const double second =
      median({logs.data() + (logs.size() - static_cast<size_t>(half)), static_cast<size_t>(half)});
  return std::fabs(second - first);
}

void decide(Better better, Difference* d) {
  const bool is_apart = (d->low > 0 || d->high < 0) && d->p < kGreatestP;
  if (d->low >= -kSameWithin && d->high <= kSameWithin &&
      (!is_apart || std::fabs(d->relative) < kLeastDifference)) {
    d->verdict = SpeedVerdict::kSame;
  } else if (is_apart && std::fabs(d->relative) >= kLeastDifference) {
    const bool is_more = d->relative > 0;
    d->verdict =
        is_more == (better == Better::kHigher) ? SpeedVerdict::kFaster : SpeedVerdict::kSlower;
  } else if (is_apart) {
    d->because = "differences below 1% are not called";
  } else {
    d->because = d->p < kGreatestP ? "the interval holds zero" : "the samples overlap";
  }
}

void set_interval(double log_difference, Interval interval, double widen, Difference* d) {
  d->relative = std::expm1(log_difference);
  d->low = std::expm1(interval.low - widen);
  d->high = std::expm1(interval.high + widen);
}

}  // namespace

const char* verdict_name(SpeedVerdict verdict) {
  switch (verdict) {
    case SpeedVerdict::kFaster:
      return "faster";
    case SpeedVerdict::kSlower:
      return "slower";
    case SpeedVerdict::kSame:
      return "same";
    case SpeedVerdict::kUnclear:
      return "unclear";
  }
  return "unclear";
}

bool Difference::is_regression() const {
  return verdict == SpeedVerdict::kSlower && std::fabs(relative) > kRegression;
}

Difference judge_paired(std::span<const double> a, std::span<const double> b, Better better) {
  CHECK(a.size() == b.size());
  Difference d;
  if (!all_positive(a) || !all_positive(b)) {
    d.because = "a sample is not above zero";
    return d;
  }
  std::vector<double> pairs;
  for (size_t i = 0; i < a.size(); ++i) pairs.push_back(std::log(b[i] / a[i]));
  d.units = static_cast<int64_t>(pairs.size());
  if (pairs.size() < kLeastPairs) {
    if (!pairs.empty()) d.relative = d.low = d.high = std::expm1(median(pairs));
    d.because = "too few samples: " + std::to_string(kLeastPairs) + " a side are needed";
    return d;
  }
  std::vector<double> drawn;
  const Interval interval = bootstrap([&](std::mt19937_64& random) {
    resample(pairs, random, &drawn);
    return median(drawn);
  });
  set_interval(median(pairs), interval, 0, &d);
  d.p = deflated(sign_p(pairs), is_far_apart(pairs) ? 1 : variance_inflation(pairs));
  decide(better, &d);
  return d;
}

bool could_show(std::span<const double> a, std::span<const double> b, double relative) {
  CHECK(a.size() == b.size());
  if (a.size() < kLeastPairs || !all_positive(a) || !all_positive(b)) return false;
  std::vector<double> pairs;
  for (size_t i = 0; i < a.size(); ++i) pairs.push_back(std::log(b[i] / a[i]));
  const double middle = median(pairs), inflation = variance_inflation(pairs);
  for (const double shift : {std::log1p(relative), -std::log1p(relative)}) {
    std::vector<double> moved;
    for (const double pair : pairs) moved.push_back(pair - middle + shift);
    if (!(deflated(sign_p(moved), inflation) < kGreatestP)) return false;
  }
  return true;
}

Difference judge_runs(std::span<const double> a, std::span<const double> b, Better better,
                      const LimitShift& moved) {
  Difference d{.units = static_cast<int64_t>(std::min(a.size(), b.size()))};
  if (!all_positive(a) || !all_positive(b)) {
    d.because = "a sample is not above zero";
    return d;
  }
  const std::vector<double> log_a = logs_of(a), log_b = logs_of(b);
  const double difference = median(log_b) - median(log_a);
  if (std::min(a.size(), b.size()) < kLeastSamples) {
    if (!a.empty() && !b.empty()) d.relative = d.low = d.high = std::expm1(difference);
    d.because = "too few samples: " + std::to_string(kLeastSamples) + " a side are needed";
    return d;
  }
  std::vector<double> drawn;
  const Interval interval = bootstrap([&](std::mt19937_64& random) {
    resample(log_b, random, &drawn);
    const double of_b = median(drawn);
    resample(log_a, random, &drawn);
    return of_b - median(drawn);
  });
  const double drift = 2 * std::max(drift_within(log_a), drift_within(log_b));
  set_interval(difference, interval, drift + moved.size, &d);
  d.p = deflated(rank_sum_p(a, b), std::max(variance_inflation(log_a), variance_inflation(log_b)));
  decide(better, &d);
  if (d.verdict == SpeedVerdict::kUnclear && d.p < kGreatestP &&
      std::fabs(difference) < drift + moved.size) {
    d.because = moved.size > drift ? std::string(moved.limit) + " moved as much between the runs"
                                   : "the speed moved as much within a run";
  }
  return d;
}

Difference judge_exact(std::span<const double> a, std::span<const double> b, Better better) {
  Difference d{.units = static_cast<int64_t>(std::min(a.size(), b.size()))};
  if (a.empty() || b.empty()) {
    d.because = "no samples";
    return d;
  }
  const double of_a = mean(a), of_b = mean(b);
  if (std::fabs(of_b - of_a) <= 1e-9 * std::max(std::fabs(of_a), std::fabs(of_b))) {
    d.verdict = SpeedVerdict::kSame;
    return d;
  }
  d.p = 0;
  d.relative = d.low = d.high =
      of_a == 0 ? std::copysign(1, of_b) : (of_b - of_a) / std::fabs(of_a);
  const bool is_more = of_b > of_a;
  d.verdict =
      is_more == (better == Better::kHigher) ? SpeedVerdict::kFaster : SpeedVerdict::kSlower;
  return d;
}

Difference judge_answers(std::span<const double> a, std::span<const double> b) {
  Difference d{.units = static_cast<int64_t>(std::min(a.size(), b.size()))};
  if (a.size() != b.size() || a.empty()) {
    d.because = a.size() != b.size() ? "other numbers of questions" : "no questions";
    return d;
  }
  PairedCounts counts{.total = d.units};
  for (size_t i = 0; i < a.size(); ++i) {
    counts.only_a += a[i] > b[i] ? 1 : 0;
    counts.only_b += b[i] > a[i] ? 1 : 0;
  }
  const Interval interval = paired_difference_interval(counts);
  const double scale = mean(a) > 0 ? 1 / mean(a) : 1;
  d.relative = scale * paired_difference(counts);
  d.low = scale * interval.low;
  d.high = scale * interval.high;
  d.p = mcnemar_p(counts);
  decide(Better::kHigher, &d);
  if (d.verdict == SpeedVerdict::kUnclear) d.because = "so many questions cannot tell";
  return d;
}

}  // namespace moxie
