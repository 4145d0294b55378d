// Runs one test of `moxie bench`: fills the depth, then repeats prompts or generated tokens. Bench
// times the repetitions, profile records them.
#pragma once

#include <memory>
#include <random>
#include <vector>

#include "core/clock.h"
#include "engine/engine.h"
#include "engine/request_state.h"
#include "engine/step_runner.h"
#include "lab/bench.h"
#include "lab/launch_marks.h"

namespace moxie {

/// Tokens are random from a fixed seed. The filled sequences live as long as the runner. Generated
/// tokens go through the scheduler and the step runner, like an answer's (engine/step_loop.h).
class BenchRunner {
 public:
  /// `marks`, if not null, receives those of all repetitions that generate with a drafter.
  BenchRunner(Engine& engine, const BenchTest& test, const Drafting& drafting = {},
              LaunchMarks* marks = nullptr);
  ~BenchRunner();
  BenchRunner(const BenchRunner&) = delete;
  BenchRunner& operator=(const BenchRunner&) = delete;

  Status fill_depth();

  /// From the first token given to the last answer; for prompts, until the device is done.
  struct Window {
    Clock::time_point start, end;
    double seconds() const { return std::chrono::duration<double>(end - start).count(); }
  };
  /// Runs one repetition on forks of the filled sequences, so that repetitions do not see each
  /// other's tokens. The device is idle before and after.
  Result<Window> repeat();
  /// Of all repetitions so far.
  const DraftCounts& drafts() const { return drafts_; }

 private:
  std::vector<int32_t> random_tokens(int32_t count);
  Status prefill(SeqId seq, std::span<const int32_t> tokens);
  Result<Window> run_prompts(std::span<const SeqId> seqs);
  Result<Window> generate(std::span<const SeqId> seqs);
  std::unique_ptr<Request> request(size_t stream, Status* status);

  Engine& engine_;
  const BenchTest test_;
  Drafting drafting_;
  DraftCounts drafts_;
  std::unique_ptr<Drafter> marked_;  // null: without marks
  std::unique_ptr<StepRunner> runner_;
  std::vector<SeqId> base_;
  std::vector<std::vector<int32_t>> filled_;  // tokens of each filled sequence
  std::mt19937 random_{42};
};

/// Tokens of a repetition, all streams together.
double tokens_of(const BenchTest& test);
/// The least work of a repetition's forward passes, all streams together.
WorkByOp least_work(const Engine& engine, const BenchTest& test);
/// The row of a step that was launched most; empty: none.
std::string row_of(const std::vector<KernelChooser::Count>& counts, const OpInfo& op);

}  // namespace moxie
