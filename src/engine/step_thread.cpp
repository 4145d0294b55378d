// The thread beside the scheduler's.
#include "engine/step_thread.h"

#include <utility>

namespace moxie {

StepThread::StepThread(StepRunner& runner, bool async, Fault fault)
    : runner_(runner), async_(async), fault_(std::move(fault)) {
  if (async_) thread_ = std::thread([this] { loop(); });
}

StepThread::~StepThread() {
  if (!async_) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  given_changed_.notify_one();
  thread_.join();
}

void StepThread::begin(StepPlan* plan, const StepPlan* before) {
  {
    const std::lock_guard lock(mutex_);
    given_.push_back({plan, before});
  }
  if (async_) given_changed_.notify_one();
}

void StepThread::allow_draws(StepPlan* plan) {
  {
    const std::lock_guard lock(mutex_);
    armed_ = plan->number;
  }
  armed_changed_.notify_one();
}

void StepThread::wait(StepPlan* plan) {
  if (!async_) {
    CHECK(!given_.empty() && given_.front().plan == plan);
    run(given_.front());
    given_.pop_front();
    return;
  }
  std::unique_lock lock(mutex_);
  done_changed_.wait(lock, [&] { return done_ >= plan->number; });
}

void StepThread::loop() {
  for (;;) {
    Given given;
    {
      std::unique_lock lock(mutex_);
      given_changed_.wait(lock, [&] { return stopping_ || !given_.empty(); });
      if (given_.empty()) return;
      given = given_.front();
      given_.pop_front();
    }
    run(given);
    const int64_t number = given.plan->number;
    {
      const std::lock_guard lock(mutex_);
      done_ = number;
    }
    done_changed_.notify_one();
  }
}

void StepThread::run(const Given& given) {
  StepPlan& plan = *given.plan;
  plan.was_run = given.before == nullptr || given.before->status.has_value();
  if (!plan.was_run) {
    plan.status = fail("the step before failed", "step");
    return;
  }
  auto start = Clock::now();
  plan.status = forward(given);
  plan.seconds = seconds_since(start);
  if (!plan.status || plan.num_answers == 0) return;
  if (async_) {
    std::unique_lock lock(mutex_);
    armed_changed_.wait(lock, [&] { return armed_ >= plan.number; });
  }
  start = Clock::now();
  plan.status = runner_.sample(plan.requests, plan.answers);
  plan.seconds += seconds_since(start);
}

Status StepThread::forward(const Given& given) {
  StepPlan& plan = *given.plan;
  for (const auto& [index, answer] : plan.awaited) {
    const int32_t token = given.before->answers[static_cast<size_t>(answer)].token;
    // A row whose draw found no token ends there; what it computes now is dropped.
    plan.arrays.token_ids[static_cast<size_t>(index)] = std::max(0, token);
  }
  if (fault_) {
    if (auto status = fault_(plan.number, plan.arrays.token_ids); !status) return status;
  }
  return runner_.run(plan.arrays);
}

}  // namespace moxie
