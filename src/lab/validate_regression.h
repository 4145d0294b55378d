// Level 5's arithmetic: the figures of a run against those of a record.
#pragma once

#include <string>
#include <vector>

#include "lab/record.h"
#include "lab/verdict.h"

namespace moxie {

/// The most memory that may be added.
inline constexpr uint64_t kMostMoreBytes = 1'000'000'000;

/// A figure before and now.
struct FigureChange {
  std::string name, unit;
  double before = 0, now = 0;  ///< medians
  /// How much faster now, as a share: 0.02 is 2% faster. `low` to `high` holds it with 95%
  /// (bootstrap over both lists of samples, from a fixed seed).
  double change = 0, low = 0, high = 0;

  /// Slower by more than kRegression, and the interval excludes that nothing changed.
  bool is_regression() const { return change < -kRegression && high < 0; }
};

/// The speeds (tok/s) that both have under the same name. Latencies are not judged: they follow
/// from the speeds, and each more figure is one more chance of a false alarm.
std::vector<FigureChange> figure_changes(const std::vector<Series>& before,
                                         const std::vector<Series>& now);

}  // namespace moxie
