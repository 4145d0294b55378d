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
    const Given given = given_.front();
    given_.pop_front();
    run(given);
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
  if (plan.in_loop != InLoop::kNo) return run_in_loop(given);
  auto start = Clock::now();
  plan.status = put_tokens(given);
  if (plan.status) plan.status = runner_.run(plan.arrays);
  plan.seconds = seconds_since(start);
  if (!plan.status || plan.num_answers == 0) return;
  if (async_) {
    std::unique_lock lock(mutex_);
    armed_changed_.wait(lock, [&] { return armed_ >= plan.number; });
  }
  start = Clock::now();
  plan.status = runner_.sample(plan.requests, plan.answers);
  plan.put_given();
  plan.seconds += seconds_since(start);
}

// The launch may be on the device already, behind the one before. ServiceOptions::fault is called
// only now, when the tokens are known.
void StepThread::run_in_loop(const Given& given) {
  StepPlan& plan = *given.plan;
  const auto start = Clock::now();
  Status tokens = put_tokens(given);
  if (tokens && !plan.was_launched) launch(&plan);
  if (!tokens) plan.status = std::move(tokens);
  for (bool is_done = false; plan.status && !is_done;) {
    launch_behind();
    auto taken = runner_.take(plan.answers);
    if (!taken) {
      plan.status = fail(std::move(taken.error()));
    } else if (*taken) {
      is_done = true;
    } else {
      std::this_thread::yield();
    }
  }
  if (!plan.status) runner_.leave_loop();
  plan.put_given();
  plan.seconds = seconds_since(start);
}

void StepThread::launch(StepPlan* plan) {
  plan->was_launched = true;
  plan->status = runner_.launch(plan->arrays, plan->in_loop, plan->requests);
}

// Gives the device the launches queued behind the running one, as long as each continues the last.
void StepThread::launch_behind() {
  for (size_t i = 0;; ++i) {
    StepPlan* next = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (i < given_.size()) next = given_[i].plan;
    }
    if (next == nullptr || next->in_loop != InLoop::kNext) return;
    if (!next->was_launched) launch(next);
    if (!next->status) return;
  }
}

// Puts in the tokens that the launch before has drawn; with kNext they are on the device.
Status StepThread::put_tokens(const Given& given) {
  StepPlan& plan = *given.plan;
  for (const auto& [index, answer] : plan.awaited) {
    const int32_t token = given.before->answers[static_cast<size_t>(answer)].token;
    // A row whose draw found no token has ended; the result of this launch for it is dropped.
    plan.arrays.token_ids[static_cast<size_t>(index)] = std::max(0, token);
  }
  return fault_ ? fault_(plan.number, plan.arrays.token_ids) : Status{};
}

}  // namespace moxie
