// One answer: a request that has a scheduler to itself.
#include <algorithm>

#include "core/clock.h"
#include "engine/engine.h"
#include "engine/step_loop.h"

namespace moxie {

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAborted:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  return "stop";
}

namespace {

// The request's sink: collects what generate() returns.
class Collector {
 public:
  Collector(Generated& result, const Engine::OnToken& on_token)
      : result_(result), on_token_(on_token) {}

  void take(const RequestUpdate& update) {
    for (const SampleAnswer& answer : update.tokens) {
      if (was_stopped_) break;
      take(answer);
    }
    if (update.finish == nullptr) return;
    has_ended_ = true;
    finish_ = *update.finish;
  }
  bool was_stopped() const { return was_stopped_; }
  bool has_ended() const { return has_ended_; }
  const Finish& finish() const { return finish_; }

 private:
  void take(const SampleAnswer& answer) {
    Timing& timing = result_.timing;
    if (result_.ids.empty()) {
      timing.prefill_s = seconds_since(start_);
      start_ = Clock::now();
    }
    result_.ids.push_back(answer.token);
    timing.completion_tokens = static_cast<int64_t>(result_.ids.size());
    timing.decode_s = seconds_since(start_);
    was_stopped_ = on_token_ && !on_token_(answer);
  }

  Generated& result_;
  const Engine::OnToken& on_token_;
  Clock::time_point start_ = Clock::now();
  Finish finish_;
  bool was_stopped_ = false, has_ended_ = false;
};

}  // namespace

Result<Generated> Engine::generate(std::span<const int32_t> prompt, const SamplingOptions& sampling,
                                   const OnToken& on_token, const Drafting& drafting) {
  Generated result;
  result.timing.load_s = load_seconds();
  result.timing.prompt_tokens = static_cast<int64_t>(prompt.size());
  Collector collector(result, on_token);
  ServiceRequest request{.prompt = {prompt.begin(), prompt.end()},
                         .sampling = sampling,
                         .use_prefix_cache = false,
                         .sink = [&](const RequestUpdate& update) { collector.take(update); }};
  Status status = check_request(request, config().vocab);
  if (status) status = check_length(result.timing.prompt_tokens, plan_.max_model_len);
  if (!status) return fail(std::move(status.error()));

  const auto runner = make_step_runner(*this);
  {
    StepLoop loop(*runner,
                  {.max_batch_tokens = options_.max_batch_tokens,
                   .max_loop_streams = runner->limits().max_loop_streams,
                   .prefix_cache = false,
                   .drafting = drafting},
                  {.loop_steps_ahead = DecodeLoop::kRunAhead});
    auto made = make_request(std::move(request), *runner);
    const RequestId id = made->id = 1;
    loop.scheduler().add(std::move(made));
    while (!collector.has_ended()) {
      static_cast<void>(loop.turn());  // a fault ends the request
      if (collector.was_stopped()) loop.scheduler().cancel(id);
    }
  }
  runner->leave_loop();  // nothing of it is left on the device
  if (auto done = synchronize(); !done) return fail(std::move(done.error()));
  const Finish& finish = collector.finish();
  if (finish.reason == FinishReason::kError) return fail(finish.error);
  result.reason = finish.reason;
  result.drafts = finish.drafts;
  if (collector.was_stopped() && finish.reason != FinishReason::kStop) {
    result.reason = FinishReason::kAborted;
  }
  return result;
}

}  // namespace moxie
