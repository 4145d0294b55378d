// Statistics of shares of right answers: intervals of one share, and the comparison of two sets of
// answers to the same questions.
#pragma once

#include <cstdint>

namespace moxie {

struct Interval {
  double low = 0, high = 0;
};

/// Two-sided 95% of the normal distribution.
inline constexpr double kZ95 = 1.959963984540054;

/// Wilson's score interval of a share of `count` of `total`; 0 to 1 for a total of 0.
Interval wilson_interval(int64_t count, int64_t total, double z = kZ95);

/// Answers of A and B to the same questions: only those that differ count.
struct PairedCounts {
  int64_t total = 0;
  int64_t only_a = 0;  ///< right in A, wrong in B
  int64_t only_b = 0;  ///< wrong in A, right in B
};

/// McNemar's exact test, two-sided: the probability of a split of the differing answers at least as
/// uneven, if A and B were equally good. 1 if no answers differ.
double mcnemar_p(const PairedCounts& counts);

/// The difference of the shares of right answers, B's less A's; 0 for no questions.
double paired_difference(const PairedCounts& counts);

/// Interval of that difference: Wald's with half an answer added to each of the four cells, as
/// Agresti and Min (2005) propose for matched pairs. -1 to 1 for no questions.
Interval paired_difference_interval(const PairedCounts& counts, double z = kZ95);

}  // namespace moxie
