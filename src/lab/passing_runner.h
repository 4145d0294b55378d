// A step runner that hands everything to another one; what stands between overrides what it is for.
#pragma once

#include <memory>
#include <utility>

#include "engine/step_runner.h"

namespace moxie {

class PassingRunner : public StepRunner {
 public:
  explicit PassingRunner(std::unique_ptr<StepRunner> runner) : runner_(std::move(runner)) {}

  const Limits& limits() const override { return runner_->limits(); }
  KvCache& kv() override { return runner_->kv(); }
  void build(std::span<const Chunk> chunks, InLoop in_loop, HostArrays* arrays) override {
    runner_->build(chunks, in_loop, arrays);
  }
  Status run(const HostArrays& arrays) override { return runner_->run(arrays); }
  Status sample(std::span<const SampleRequest> requests, std::span<SampleAnswer> answers) override {
    return runner_->sample(requests, answers);
  }
  Status launch(const HostArrays& arrays, InLoop in_loop,
                std::span<const SampleRequest> requests) override {
    return runner_->launch(arrays, in_loop, requests);
  }
  Result<bool> take(std::span<SampleAnswer> answers) override { return runner_->take(answers); }
  void leave_loop() override { runner_->leave_loop(); }
  Status synchronize() override { return runner_->synchronize(); }

 private:
  std::unique_ptr<StepRunner> runner_;
};

}  // namespace moxie
