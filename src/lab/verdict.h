// Which of two sets of samples is faster, on machines whose speed moves while they measure.
//
// A difference is called only if three things agree: the bootstrap interval of the difference
// excludes zero, a test by signs or ranks finds the sides apart, and the difference is at least
// kLeastDifference. An interval alone calls a difference between a binary and itself too often,
// since it takes samples that drift together for independent ones.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lab/record.h"

namespace moxie {

enum class SpeedVerdict : uint8_t { kFaster, kSlower, kSame, kUnclear };
/// "faster", "slower", "same", "unclear".
const char* verdict_name(SpeedVerdict verdict);

inline constexpr double kLeastDifference = 0.01;  ///< smaller ones are never called
inline constexpr double kSameWithin = 0.02;       ///< an interval within it on both sides is "same"
inline constexpr double kRegression = 0.03;
inline constexpr double kGreatestP = 0.01;  ///< of the test by signs or ranks
/// Fewer give no verdict: the tests could not reach kGreatestP.
inline constexpr size_t kLeastPairs = 8, kLeastSamples = 5;

/// The second side against the first.
struct Difference {
  SpeedVerdict verdict = SpeedVerdict::kUnclear;
  double relative = 0;  ///< change of the median: 0.05 is 5% more
  double low = 0,
         high = 0;      ///< interval of `relative`, 95% by bootstrap, widened as described below
  double p = 1;         ///< of the test by signs or ranks
  int64_t units = 0;    ///< compared: pairs, or the smaller number of samples
  std::string because;  ///< why it is unclear; else empty
  /// Slower by more than kRegression.
  bool is_regression() const;
};

/// Samples taken in turn, in the order A B B A A B B A ...: a[i] and b[i] are neighbours in time,
/// so that a drift of the machine falls on both, and on either side in turn. The difference is the
/// median over pairs, the test the sign test. Pairs that resemble their neighbours count for less,
/// unless the difference is far beyond the spread of pairs.
/// Both sides have the same number of samples.
Difference judge_paired(std::span<const double> a, std::span<const double> b, Better better);

/// Whether so many pairs could show a difference of `relative` (0.02 for 2%) in either direction:
/// by how far they lie from their own median, not by what they show, so that sampling may go on
/// until this holds and calls the same different no more often for it.
bool could_show(std::span<const double> a, std::span<const double> b, double relative);

/// How far a limit of the machine moved between two runs.
struct LimitShift {
  double size = 0;  ///< of the logarithm, without sign: about 0.1 for 10%
  const char* limit = "the machine's limit";
};

/// Samples of two runs, one after the other; the test is Mann and Whitney's. The interval is
/// widened by twice the greater drift within a run (second half against first), since a drift
/// between the runs cannot be told from a difference, and by how far the machine's own limit moved
/// between the runs.
Difference judge_runs(std::span<const double> a, std::span<const double> b, Better better,
                      const LimitShift& moved = {});

/// Values without noise: any difference of the means is one.
Difference judge_exact(std::span<const double> a, std::span<const double> b, Better better);

/// Answers to the same questions in the same order, 1 where they are right: the difference is that
/// of the shares of right answers, over the first one's; the test is McNemar's.
Difference judge_answers(std::span<const double> a, std::span<const double> b);

}  // namespace moxie
