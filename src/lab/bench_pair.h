// One test of `moxie bench` on two engines of one process, sample by sample in turn.
#pragma once

#include <memory>

#include "lab/bench.h"
#include "lab/verdict.h"

namespace moxie {

/// Two engines with their own switches. Where both run on the CPU with as many threads, they share
/// the threads: beside other load the kernel places the workers of two pools unlike, and slows one
/// engine by that for as long as the load lasts.
class EnginePair {
 public:
  static Result<EnginePair> load(const EngineOptions& a, const EngineOptions& b);
  EnginePair(EnginePair&&) = default;
  ~EnginePair() { free_both(); }

  Engine& a() { return *engines_[0]; }
  Engine& b() { return *engines_[1]; }
  /// Frees both and loads them again, in the other order. On a CPU where an engine lies in memory
  /// decides several percent of its speed if its weights fit the caches; so it lies elsewhere now.
  /// Engines of before are gone, also after an error.
  Status reload();
  /// Whether reload() is of use: both run on CPUs.
  bool may_reload() const;
  /// Of the last loading.
  double load_seconds() const { return load_seconds_; }

 private:
  EnginePair(const EngineOptions& a, const EngineOptions& b) : options_{a, b} {}
  Status load_both();
  void free_both();

  EngineOptions options_[2];
  std::unique_ptr<Engine> engines_[2];
  int first_ = 0;  // which is loaded first, and owns shared threads
  double load_seconds_ = 0;
};

struct BenchPair {
  BenchResult a, b;  ///< neighbours in time have the same place in `tok_s`
  Difference difference;
  int32_t num_loads = 1;  ///< how often the engines were loaded
};

/// How many samples a side are taken: `least`, and more until they could show kPairResolution, for
/// at most `max_seconds` altogether; 0: no more than `least`.
struct PairEffort {
  int32_t least = 0;
  double max_seconds = 0;
};
/// A difference of 5% is then found nearly always, at whatever load.
inline constexpr double kPairResolution = 0.025;

/// Takes samples in the order A B B A A B B A ..., an even number of each engine. Engines that may
/// be loaded again are, so often that it takes a third of the time, at the end of such a four: what
/// their places in memory decide then averages out. The limits are those of the run, since
/// measuring them between two samples would pull these apart.
Result<BenchPair> run_bench_pair(EnginePair& engines, const BenchTest& test,
                                 const PairEffort& effort, const MachineLimits& limits);

}  // namespace moxie
