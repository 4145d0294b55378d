// One test of `moxie bench` on two engines of one process, sample by sample in turn.
#pragma once

#include "lab/bench.h"
#include "lab/verdict.h"

namespace moxie {

struct BenchPair {
  BenchResult a, b;  ///< neighbours in time have the same place in `tok_s`
  Difference difference;
};

/// How many samples a side are taken: `least`, and more until they could show kPairResolution, for
/// at most `max_seconds` altogether; 0: no more than `least`.
struct PairEffort {
  int32_t least = 0;
  double max_seconds = 0;
};
/// A difference of 5% is then found nearly always, at whatever load.
inline constexpr double kPairResolution = 0.025;

/// Takes samples in the order A B B A A B B A ..., an even number of each engine. The limits are
/// those of the run, since measuring them between two samples would pull these apart.
Result<BenchPair> run_bench_pair(Engine& a, Engine& b, const BenchTest& test,
                                 const PairEffort& effort, const MachineLimits& limits);

}  // namespace moxie
