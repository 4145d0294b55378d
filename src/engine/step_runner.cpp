// The engine as a runner of launches.
#include "engine/step_runner.h"

#include <algorithm>

namespace moxie {
namespace {

class EngineRunner : public StepRunner {
 public:
  EngineRunner(Engine& engine, bool loops)
      : engine_(engine),
        limits_{.max_num_seqs = engine.options().max_num_seqs,
                .max_batch_tokens = engine.options().max_batch_tokens,
                .max_logit_rows = engine.options().max_logit_rows,
                .max_loop_streams = loops ? engine.decode_loop().max_streams() : 0,
                .max_model_len = engine.plan().max_model_len,
                .vocab = engine.config().vocab,
                .stop_ids = engine.stop_ids()} {}
  ~EngineRunner() override { leave_loop(); }

  const Limits& limits() const override { return limits_; }
  KvCache& kv() override { return engine_.kv(); }
  void build(std::span<const Chunk> chunks, InLoop in_loop, HostArrays* arrays) override {
    if (in_loop == InLoop::kNo) return engine_.build(chunks, arrays);
    if (in_loop == InLoop::kNext) return build_next_arrays(chunks, kv(), arrays);
    build_arrays(chunks, kv(), 0, arrays);  // table_stride 0: the loop has its own tables
  }
  Status run(const HostArrays& arrays) override {
    if (auto status = engine_.end_decoding(); !status) return status;
    auto logits = engine_.run(arrays);
    return logits ? Status{} : Status(fail(std::move(logits.error())));
  }
  Status sample(std::span<const SampleRequest> requests, std::span<SampleAnswer> answers) override {
    return engine_.sample(requests, answers);
  }
  Status launch(const HostArrays& arrays, InLoop in_loop,
                std::span<const SampleRequest> requests) override {
    if (in_loop == InLoop::kNext) return engine_.decode_next(arrays);
    return engine_.begin_decoding(arrays, requests);
  }
  Result<bool> take(std::span<SampleAnswer> answers) override {
    auto ready = engine_.decoded();
    if (!ready || !*ready) return ready;
    const auto drawn = engine_.decode_loop().next();
    if (!drawn) return fail(drawn.error());
    std::copy(drawn->begin(), drawn->end(), answers.begin());
    return true;
  }
  // A fault of the device shows in synchronize(), too.
  void leave_loop() override { static_cast<void>(engine_.end_decoding()); }
  Status synchronize() override { return engine_.synchronize(); }

 private:
  Engine& engine_;
  Limits limits_;
};

}  // namespace

std::unique_ptr<StepRunner> make_step_runner(Engine& engine, bool loops_on_cpu) {
  // Of several ranks on a CPU only the first draws.
  const bool loops =
      engine.device().kind() != DeviceKind::kCpu || (loops_on_cpu && engine.num_ranks() == 1);
  return std::make_unique<EngineRunner>(engine, loops);
}

}  // namespace moxie
