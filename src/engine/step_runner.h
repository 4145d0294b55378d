// What runs a scheduler's launches: an engine, or a test's stand-in.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace moxie {

/// How a launch is run.
enum class InLoop : uint8_t {
  kNo,     ///< forward pass and draws, with the host between
  kFirst,  ///< the first of a decode loop's session: one token a sequence, drawn without the host
  kNext,   ///< a later one, of the same sequences in the same order: its tokens, drawn by the
           ///< launch before, are on the device, which may hold both launches at once
};

/// The scheduling thread calls build() while another thread may be in another function. That thread
/// makes the other calls one after another, for each launch run() and sample(), or launch() and
/// take().
class StepRunner {
 public:
  struct Limits {
    int32_t max_num_seqs = 1, max_batch_tokens = 1, max_logit_rows = 1;
    int32_t max_loop_streams = 0;  ///< of a launch in the decode loop; 0: there is no loop
    int32_t max_model_len = 1, vocab = 1;
    std::vector<int32_t> stop_ids;  ///< the model's own
  };
  virtual ~StepRunner() = default;
  virtual const Limits& limits() const = 0;
  virtual KvCache& kv() = 0;
  /// Writes the arrays of one launch; the chunks' tokens are the last of their sequences.
  virtual void build(std::span<const Chunk> chunks, InLoop in_loop, HostArrays* arrays) = 0;
  virtual Status run(const HostArrays& arrays) = 0;
  /// One answer for each row of logits of the last run().
  virtual Status sample(std::span<const SampleRequest> requests,
                        std::span<SampleAnswer> answers) = 0;
  /// Starts a launch in the decode loop. `requests` are for kFirst only. With kNext at most
  /// DecodeLoop::kRunAhead - 1 earlier launches may be untaken.
  virtual Status launch(const HostArrays& /*arrays*/, InLoop /*in_loop*/,
                        std::span<const SampleRequest> /*requests*/) {
    return fail("this runner has no decode loop", "step");
  }
  /// Takes the answers of the oldest untaken launch; false if they are not there yet.
  virtual Result<bool> take(std::span<SampleAnswer> /*answers*/) { return false; }
  /// Ends the session and discards launches that were not taken.
  virtual void leave_loop() {}
  /// Waits for the device. Fails if the device has failed for good.
  virtual Status synchronize() = 0;
};

/// Runs launches on an engine, which must outlive the runner. `loops_on_cpu` is for tests: on the
/// CPU a decode loop gains nothing and reports each token one launch late.
std::unique_ptr<StepRunner> make_step_runner(Engine& engine, bool loops_on_cpu = false);

}  // namespace moxie
