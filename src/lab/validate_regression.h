// Level 5's arithmetic: the speeds of a run against those of a record.
#pragma once

#include <vector>

#include "lab/compare.h"

namespace moxie {

/// The most memory that may be added.
inline constexpr uint64_t kMostMoreBytes = 1'000'000'000;

/// The speeds (tok/s) that both have under the same name, judged as `bench compare` judges two
/// runs. Latencies are not judged: they follow from the speeds, and each more figure is one more
/// chance of a false alarm.
std::vector<SeriesDifference> speed_differences(const Record& before, const Record& now);

}  // namespace moxie
