// Turns of plan, arm, absorb and deliver.
#include "engine/step_loop.h"

#include <algorithm>
#include <utility>

namespace moxie {

StepLoop::StepLoop(StepRunner& runner, const Scheduler::Options& scheduler, const Options& options)
    : runner_(runner),
      options_(options),
      scheduler_(runner, scheduler),
      steps_(runner, options.has_thread, options.fault),
      plans_(static_cast<size_t>(std::max(options.steps_ahead, options.loop_steps_ahead)) + 1) {}

Status StepLoop::turn() {
  const bool planned = has_room() && plan_ahead();
  arm_oldest();
  Status status;
  if (!under_way_.empty() && !(planned && has_room())) {
    status = finish_oldest();
    arm_oldest();
  }
  scheduler_.deliver();
  return status;
}

bool StepLoop::has_room() const {
  const bool in_loop = !under_way_.empty() && under_way_.back()->in_loop != InLoop::kNo;
  return std::cmp_less(under_way_.size(),
                       in_loop ? options_.loop_steps_ahead : options_.steps_ahead);
}

bool StepLoop::plan_ahead() {
  StepPlan* next = &plans_[num_planned_ % plans_.size()];
  if (!scheduler_.plan(next)) {
    CHECK(!under_way_.empty() || scheduler_.num_running() == 0);
    return false;
  }
  ++num_planned_;
  most_tokens_ = std::max(most_tokens_, next->num_tokens);
  steps_.begin(next, under_way_.empty() ? nullptr : under_way_.back());
  under_way_.push_back(next);
  return true;
}

// Called when the tokens of all earlier launches are known.
void StepLoop::arm_oldest() {
  if (under_way_.empty() || oldest_is_armed_) return;
  scheduler_.arm(under_way_.front());
  steps_.allow_draws(under_way_.front());
  oldest_is_armed_ = true;
}

// Waits for the oldest launch and absorbs it. If it failed, the launches behind it are dropped.
Status StepLoop::finish_oldest() {
  const auto start = Clock::now();
  StepPlan* step = under_way_.front();
  steps_.wait(step);
  waited_s_ += seconds_since(start);
  device_s_ += step->seconds;
  under_way_.pop_front();
  oldest_is_armed_ = false;
  if (step->status) {
    scheduler_.absorb(step);
    return {};
  }
  Status fault = step->status;
  scheduler_.fail_step(step, fault.error());
  for (StepPlan* behind : std::exchange(under_way_, {})) {
    steps_.wait(behind);
    scheduler_.drop_step(behind);
  }
  if (auto status = runner_.synchronize(); !status) {
    scheduler_.fail_all(status.error());
    is_broken_ = true;
    fault = std::move(status);
  }
  return fault;
}

}  // namespace moxie
