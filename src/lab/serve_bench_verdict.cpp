#include "lab/serve_bench_verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "lab/stats.h"

namespace moxie {
namespace {

constexpr int kResamples = 2000;
constexpr uint64_t kSeed = 1;
constexpr size_t kLeastUnits = 8;
constexpr double kSameShare = 0.03;

// A unit is A B B A: a drift over it falls on both sides alike.
std::vector<double> changes_of(std::span<const double> a, std::span<const double> b) {
  std::vector<double> changes;
  for (size_t i = 0; i + 1 < std::min(a.size(), b.size()); i += 2) {
    if (a[i] > 0 && a[i + 1] > 0 && b[i] > 0 && b[i + 1] > 0)
      changes.push_back(std::log((b[i] * b[i + 1]) / (a[i] * a[i + 1])) / 2);
  }
  return changes;
}

}  // namespace

TurnVerdict verdict_of(std::span<const double> a, std::span<const double> b, bool lower_is_better) {
  TurnVerdict found{.verdict = "unclear"};
  const std::vector<double> changes = changes_of(a, b);
  if (changes.size() < kLeastUnits) {
    found.because = fmt::format("{} turns A B B A, where {} are needed (more --requests)",
                                changes.size(), kLeastUnits);
    return found;
  }
  std::mt19937_64 random(kSeed);
  std::vector<double> drawn(changes.size()), medians;
  for (int i = 0; i < kResamples; ++i) {
    for (double& value : drawn) value = changes[random() % changes.size()];
    medians.push_back(std::expm1(median(drawn)));
  }
  found.change = std::expm1(median(changes));
  found.low = percentile(medians, 0.025);
  found.high = percentile(medians, 0.975);
  if (found.low >= -kSameShare && found.high <= kSameShare) {
    found.verdict = "same";
  } else if ((found.low > 0 || found.high < 0) && std::abs(found.change) > kSameShare) {
    found.verdict = (found.change < 0) == lower_is_better ? "faster" : "slower";
  } else {
    found.because = "the interval holds both no difference and more than 3%";
  }
  return found;
}

}  // namespace moxie
