// Which of two endpoints is faster, by samples that were taken in turn.
#pragma once

#include <span>
#include <string>

namespace moxie {

/// Of the second endpoint beside the first.
struct TurnVerdict {
  std::string verdict;       ///< "faster", "slower", "same", "unclear"
  double change = 0;         ///< of the median: 0.05 is 5% more
  double low = 0, high = 0;  ///< 95% interval of `change`
  std::string because;       ///< why it is unclear; else empty
};

/// Samples in the order A B B A A B B A: a[i] and b[i] are neighbours in time. What one side has
/// more is left out.
TurnVerdict verdict_of(std::span<const double> a, std::span<const double> b, bool lower_is_better);

}  // namespace moxie
