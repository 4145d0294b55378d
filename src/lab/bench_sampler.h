// One test of `moxie bench` on one engine, sample by sample, so that two engines can be sampled in
// turn.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/speculation.h"
#include "lab/bench_runner.h"
#include "lab/limits_beside.h"

namespace moxie {

class BenchSampler {
 public:
  /// Fills the depth and does the warm-up. Engine and limits are borrowed. `energy` is read around
  /// each sample.
  static Result<std::unique_ptr<BenchSampler>> start(Engine& engine, const BenchTest& test,
                                                     const MachineLimits& limits,
                                                     EnergyCounter energy);
  /// Takes one sample. The limits that other load moves are measured beside it
  /// (lab/limits_beside.h), unless `with_limits` is false: then those of the run stand for them.
  Status sample(bool with_limits = true);
  /// After another engine ran: an untimed sample where samples are so short that cold caches would
  /// show in them.
  Status settle();
  /// Of all samples so far.
  BenchResult result();
  /// All so far, in tokens a second.
  std::span<const double> samples() const { return result_.tok_s; }

 private:
  BenchSampler(Engine& engine, const BenchTest& test, const MachineLimits& limits,
               Speculation speculation, EnergyCounter energy);
  Status warm_up();

  Engine& engine_;
  const MachineLimits& limits_;
  Speculation speculation_;
  BenchRunner runner_;
  LimitsBeside beside_;
  EnergyMeter energy_;
  BenchResult result_;
  double last_s_ = 0;  // of the last sample
  std::vector<MachineLimits> of_samples_;
};

}  // namespace moxie
