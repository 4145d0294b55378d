// The engine as a runner of steps.
#include "engine/step_runner.h"

namespace moxie {
namespace {

class EngineRunner : public StepRunner {
 public:
  explicit EngineRunner(Engine& engine)
      : engine_(engine),
        limits_{.max_num_seqs = engine.options().max_num_seqs,
                .max_batch_tokens = engine.options().max_batch_tokens,
                .max_logit_rows = engine.options().max_logit_rows,
                .max_model_len = engine.plan().max_model_len,
                .vocab = engine.config().vocab,
                .stop_ids = engine.stop_ids()} {}

  const Limits& limits() const override { return limits_; }
  KvCache& kv() override { return engine_.kv(); }
  void build(std::span<const Chunk> chunks, HostArrays* arrays) override {
    engine_.build(chunks, arrays);
  }
  Status run(const HostArrays& arrays) override {
    auto logits = engine_.run(arrays);
    return logits ? Status{} : Status(fail(std::move(logits.error())));
  }
  Status sample(std::span<const SampleRequest> requests, std::span<SampleAnswer> answers) override {
    return engine_.sample(requests, answers);
  }
  Status synchronize() override { return engine_.synchronize(); }

 private:
  Engine& engine_;
  Limits limits_;
};

}  // namespace

std::unique_ptr<StepRunner> make_step_runner(Engine& engine) {
  return std::make_unique<EngineRunner>(engine);
}

}  // namespace moxie
