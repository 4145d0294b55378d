// The one way to decode: plan, run and absorb steps over a scheduler, turn by turn. The service has
// a thread that does it for many requests; `moxie run`, bench and tests do it on their own.
//
// How far it plans ahead of the answers: a step late where steps run on a thread of their own;
// in the decode loop, where the device goes from step to step by itself, as many steps as the
// device is to have in hand.
#pragma once

#include <deque>
#include <vector>

#include "engine/scheduler.h"
#include "engine/step_thread.h"

namespace moxie {

class StepLoop {
 public:
  struct Options {
    /// Steps run on a thread beside the caller's; else in turn(), on the caller's.
    bool has_thread = false;
    /// Steps that are planned and not absorbed, at most: in the decode loop, and else.
    int32_t steps_ahead = 1, loop_steps_ahead = 1;
    StepThread::Fault fault;
  };
  /// `runner` must outlive it.
  StepLoop(StepRunner& runner, const Scheduler::Options& scheduler, const Options& options);

  Scheduler& scheduler() { return scheduler_; }
  const Scheduler& scheduler() const { return scheduler_; }
  /// Plans a step if it may and there is one, takes the answers of the oldest if no more is to be
  /// planned before, and tells the sinks. The fault of a step that failed; it has been dealt with.
  Status turn();
  /// No step is on its way. Requests may wait.
  bool is_idle() const { return under_way_.empty(); }
  /// The device has failed for good; all requests have ended.
  bool is_broken() const { return is_broken_; }
  /// Tokens of the largest step so far.
  int32_t most_tokens() const { return most_tokens_; }
  double device_s() const { return device_s_; }  ///< that steps have taken
  double waited_s() const { return waited_s_; }  ///< for them, in turn()

 private:
  bool has_room() const;
  bool plan_ahead();
  void arm_oldest();
  Status finish_oldest();

  StepRunner& runner_;
  const Options options_;
  Scheduler scheduler_;
  StepThread steps_;
  /// One more than can be under way: the step before the oldest, whose answers the step thread may
  /// still be reading.
  std::vector<StepPlan> plans_;
  size_t num_planned_ = 0;
  std::deque<StepPlan*> under_way_;  // the oldest first
  bool oldest_is_armed_ = false, is_broken_ = false;
  int32_t most_tokens_ = 0;
  double device_s_ = 0, waited_s_ = 0;
};

}  // namespace moxie
