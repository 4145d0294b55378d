// What a scheduler runs its steps on: an engine, or a test's stand-in.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace moxie {

/// How a step is run.
enum class InLoop : uint8_t {
  kNo,     ///< forward pass and draws, with the host between
  kFirst,  ///< as a session of a decode loop: of a token a sequence, drawn without the host
  kNext,   ///< with the tokens that the step before has drawn, of the same sequences in the same
           ///< order: they are on the device, which may have both steps at once
};

/// build() is called by the scheduling thread while the others may be under way on another; those
/// are called in turn, step by step: run() and sample(), or launch() and take().
class StepRunner {
 public:
  struct Limits {
    int32_t max_num_seqs = 1, max_batch_tokens = 1, max_logit_rows = 1;
    int32_t max_loop_streams = 0;  ///< of a step in a decode loop; 0: there is none
    int32_t max_model_len = 1, vocab = 1;
    std::vector<int32_t> stop_ids;  ///< the model's own
  };
  virtual ~StepRunner() = default;
  virtual const Limits& limits() const = 0;
  virtual KvCache& kv() = 0;
  /// The arrays of one launch; the chunks' tokens are the last of their sequences.
  virtual void build(std::span<const Chunk> chunks, InLoop in_loop, HostArrays* arrays) = 0;
  virtual Status run(const HostArrays& arrays) = 0;
  /// One answer for each row of logits of the last run().
  virtual Status sample(std::span<const SampleRequest> requests,
                        std::span<SampleAnswer> answers) = 0;
  /// A step in the loop, which needs no more of the host; `requests` are for the first. Of steps
  /// launched DecodeLoop::kRunAhead - 1 may be untaken, if this goes on from them.
  virtual Status launch(const HostArrays& /*arrays*/, InLoop /*in_loop*/,
                        std::span<const SampleRequest> /*requests*/) {
    return fail("this runner has no decode loop", "step");
  }
  /// The answers of the oldest step launched; false if they are not there yet.
  virtual Result<bool> take(std::span<SampleAnswer> /*answers*/) { return false; }
  /// Discards what was launched and not taken.
  virtual void leave_loop() {}
  /// Waits for the device; fails where it has failed for good.
  virtual Status synchronize() = 0;
};

/// Steps on an engine, which must outlive the runner. On the CPU a loop gains nothing and tells of
/// a token a step late: for tests.
std::unique_ptr<StepRunner> make_step_runner(Engine& engine, bool loops_on_cpu = false);

}  // namespace moxie
