// What a scheduler runs its steps on: an engine, or a test's stand-in.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace moxie {

/// build() is called by the scheduling thread while run() and sample() may be under way on another;
/// those two are called in turn, step by step.
class StepRunner {
 public:
  struct Limits {
    int32_t max_num_seqs = 1, max_batch_tokens = 1, max_logit_rows = 1;
    int32_t max_model_len = 1, vocab = 1;
    std::vector<int32_t> stop_ids;  ///< the model's own
  };
  virtual ~StepRunner() = default;
  virtual const Limits& limits() const = 0;
  virtual KvCache& kv() = 0;
  /// The arrays of one launch; the chunks' tokens are the last of their sequences.
  virtual void build(std::span<const Chunk> chunks, HostArrays* arrays) = 0;
  virtual Status run(const HostArrays& arrays) = 0;
  /// One answer for each row of logits of the last run().
  virtual Status sample(std::span<const SampleRequest> requests,
                        std::span<SampleAnswer> answers) = 0;
  /// Waits for the device; fails where it has failed for good.
  virtual Status synchronize() = 0;
};

/// Steps on an engine, which must outlive the runner.
std::unique_ptr<StepRunner> make_step_runner(Engine& engine);

}  // namespace moxie
