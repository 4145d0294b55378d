// Tests of two sets of measurements by signs and ranks: no assumption about the shape of the noise,
// and an outlier counts no more than any other sample.
#pragma once

#include <cstdint>
#include <span>

namespace moxie {

/// The sign test, two-sided: how probable signs at least so one-sided are where both are equally
/// likely. Zeros are left out. Exact. 1 where nothing is left. (Wilcoxon's test weighs differences
/// by their size: where every third pair holds an outlier, these outweigh the rest.)
double sign_p(std::span<const double> differences);
double sign_p(int64_t positive, int64_t negative);

/// Mann and Whitney's rank-sum test, two-sided: how probable ranks at least so apart are where both
/// sets are from one distribution. Exact up to 40 samples together, then by the normal
/// distribution. 1 if a set is empty.
double rank_sum_p(std::span<const double> a, std::span<const double> b);

}  // namespace moxie
