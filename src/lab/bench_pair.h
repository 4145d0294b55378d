// One test of `moxie bench` on two engines of one process, sample by sample in turn.
#pragma once

#include "lab/bench.h"
#include "lab/verdict.h"

namespace moxie {

struct BenchPair {
  BenchResult a, b;  ///< neighbours in time have the same place in `tok_s`
  Difference difference;
};

/// Takes samples in the order A B B A A B B A ..., an even number of each engine, at least
/// `repetitions`. The limits are those of the run, since measuring them between two samples would
/// pull these apart.
Result<BenchPair> run_bench_pair(Engine& a, Engine& b, const BenchTest& test, int32_t repetitions,
                                 const MachineLimits& limits);

}  // namespace moxie
