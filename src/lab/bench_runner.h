// What one test of `moxie bench` does: fill the depth, then prompts or generated tokens, as often
// as asked. Bench times it, profile looks inside.
#pragma once

#include <random>
#include <vector>

#include "core/clock.h"
#include "engine/engine.h"
#include "lab/bench.h"

namespace moxie {

/// Tokens are random from a fixed seed; the streams live as long as the runner.
class BenchRunner {
 public:
  BenchRunner(Engine& engine, const BenchTest& test);
  ~BenchRunner();
  BenchRunner(const BenchRunner&) = delete;
  BenchRunner& operator=(const BenchRunner&) = delete;

  Status fill_depth();

  /// From the first token given to the last answer (of prompts: until the device is done).
  struct Window {
    Clock::time_point start, end;
    double seconds() const { return std::chrono::duration<double>(end - start).count(); }
  };
  /// One repetition, on forks of the filled streams: none sees another's tokens. The device is idle
  /// before and after.
  Result<Window> repeat();

 private:
  int32_t random_token();
  Status prefill(SeqId seq, int32_t count);
  Status generate(const std::vector<SeqId>& seqs);
  Status generate_ahead(const std::vector<SeqId>& seqs);

  Engine& engine_;
  const BenchTest test_;
  std::vector<SeqId> base_;
  std::mt19937 random_{42};
};

/// Tokens of a repetition, all streams together.
double tokens_of(const BenchTest& test);
/// The least work of a repetition's forward passes, all streams together.
StepWorks least_work(const Engine& engine, const BenchTest& test);
/// The row of a step that was launched most; empty: none.
std::string row_of(const std::vector<KernelChooser::Count>& counts, StepKind step);

}  // namespace moxie
