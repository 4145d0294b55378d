// Exact distributions are counted over doubled ranks, which are whole numbers even where equal
// values share a mean rank.
#include "lab/rank_tests.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <vector>

namespace moxie {
namespace {

constexpr size_t kMostExact = 40;

struct Ranks {
  std::vector<int> doubled;  ///< of each value; 2 is the least
  double tie_sum = 0;        ///< of t^3 - t over groups of t equal values
};

Ranks ranks_of(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t i, size_t j) { return values[i] < values[j]; });
  Ranks ranks{.doubled = std::vector<int>(values.size())};
  for (size_t first = 0; first < order.size();) {
    size_t end = first + 1;
    while (end < order.size() && values[order[end]] == values[order[first]]) ++end;
    for (size_t i = first; i < end; ++i)
      ranks.doubled[order[i]] = static_cast<int>(first + end + 1);
    const auto ties = static_cast<double>(end - first);
    ranks.tie_sum += ties * ties * ties - ties;
    first = end;
  }
  return ranks;
}

double two_sided_normal(double distance, double variance) {
  if (!(variance > 0)) return 1;
  const double z = std::max(0.0, std::fabs(distance) - 0.5) / std::sqrt(variance);
  return std::erfc(z / std::sqrt(2.0));
}

// The share of `counts` at sums at least as far from the middle of the range as `sum`.
double share_beyond(const std::vector<double>& counts, int sum, int twice_middle) {
  double beyond = 0, all = 0;
  const int distance = std::abs(2 * sum - twice_middle);
  for (size_t s = 0; s < counts.size(); ++s) {
    all += counts[s];
    if (std::abs(2 * static_cast<int>(s) - twice_middle) >= distance) beyond += counts[s];
  }
  return std::min(1.0, beyond / all);
}

}  // namespace

double sign_p(std::span<const double> differences) {
  const auto count = [&](auto&& is_counted) {
    return std::count_if(differences.begin(), differences.end(), is_counted);
  };
  return sign_p(count([](double d) { return d > 0; }), count([](double d) { return d < 0; }));
}

double sign_p(int64_t positive, int64_t negative) {
  const auto n = static_cast<double>(positive + negative);
  // Sums the smaller tail of the binomial distribution of n signs.
  double tail = 0, log_ways = 0;
  for (int64_t i = 0; i <= std::min(positive, negative); ++i) {
    tail += std::exp(log_ways - n * std::log(2.0));
    const auto next = static_cast<double>(i + 1);
    log_ways += std::log((n - next + 1) / next);
  }
  return std::min(1.0, 2 * tail);
}

double rank_sum_p(std::span<const double> a, std::span<const double> b) {
  if (a.empty() || b.empty()) return 1;
  std::vector<double> all(a.begin(), a.end());
  all.insert(all.end(), b.begin(), b.end());
  const Ranks ranks = ranks_of(all);
  int sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += ranks.doubled[i];
  const size_t num_all = all.size();
  const auto n = static_cast<double>(a.size()), m = static_cast<double>(b.size()), both = n + m;
  if (num_all > kMostExact) {
    const double variance = n * m / 12 * (both + 1 - ranks.tie_sum / (both * (both - 1)));
    return two_sided_normal(0.5 * sum - n * (both + 1) / 2, variance);
  }
  const auto most =
      static_cast<size_t>(std::accumulate(ranks.doubled.begin(), ranks.doubled.end(), 0));
  // counts[k][s]: sets of k ranks with the sum s.
  std::vector<std::vector<double>> counts(a.size() + 1, std::vector<double>(most + 1, 0.0));
  counts[0][0] = 1;
  for (const int rank : ranks.doubled) {
    for (size_t k = a.size(); k >= 1; --k) {
      for (size_t s = most; s >= static_cast<size_t>(rank); --s) {
        counts[k][s] += counts[k - 1][s - static_cast<size_t>(rank)];
      }
    }
  }
  // The mean of all sums: n doubled ranks of the mean n + m + 1.
  return share_beyond(counts[a.size()], sum, static_cast<int>(2 * a.size() * (num_all + 1)));
}

}  // namespace moxie
