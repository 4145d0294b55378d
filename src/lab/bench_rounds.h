// A test whose engine is loaded again between its samples. On a CPU where an engine lies in memory
// decides several percent of its speed if its weights fit the caches; two runs of one binary would
// differ by that.
#pragma once

#include <memory>

#include "lab/bench.h"

namespace moxie {

/// An engine that can be loaded again with the same options.
class BenchEngine {
 public:
  static Result<BenchEngine> load(const EngineOptions& options);

  Engine& operator*() { return *engine_; }
  Engine* operator->() { return engine_.get(); }
  /// Frees it and loads it again. It is gone after an error.
  Status reload();
  /// Whether reload() is of use: it runs on a CPU, and not among other processes, which load once.
  bool may_reload() const {
    return engine_->device().kind() == DeviceKind::kCpu && !options_.world;
  }
  /// Of the last loading.
  double load_seconds() const { return load_seconds_; }

 private:
  explicit BenchEngine(const EngineOptions& options) : options_(options) {}

  EngineOptions options_;
  std::unique_ptr<Engine> engine_;
  double load_seconds_ = 0;
};

/// Results of one engine's rounds as one; a round is what was sampled of one loading.
class BenchRounds {
 public:
  void add(const BenchResult& round);
  const std::vector<double>& samples() const { return all_.tok_s; }
  const BenchResult& result() const { return all_; }

 private:
  BenchResult all_;
};

/// run_bench() in several rounds, where loading again is of use and takes a few seconds at most.
Result<BenchResult> run_bench_in_rounds(BenchEngine& engine, const BenchTest& test,
                                        int32_t repetitions, const MachineLimits& limits);

}  // namespace moxie
