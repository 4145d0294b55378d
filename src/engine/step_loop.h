// The one way to decode: plans, runs and absorbs a scheduler's launches, turn by turn. The service
// takes turns on a thread for many requests; `moxie run`, bench and tests on their own threads.
//
// How far it plans ahead of the answers: one launch where launches run on a thread of their own; in
// the decode loop, where the device goes from launch to launch without the host, as many launches
// as the device should have queued.
#pragma once

#include <deque>
#include <vector>

#include "engine/scheduler.h"
#include "engine/step_thread.h"

namespace moxie {

class StepLoop {
 public:
  struct Options {
    /// True: launches run on a thread of their own. False: in turn(), on the caller's thread.
    bool has_thread = false;
    /// The most launches that are planned and not absorbed: outside the decode loop, and in it.
    int32_t steps_ahead = 1, loop_steps_ahead = 1;
    StepThread::Fault fault;
  };
  /// `runner` must outlive the loop.
  StepLoop(StepRunner& runner, const Scheduler::Options& scheduler, const Options& options);

  Scheduler& scheduler() { return scheduler_; }
  const Scheduler& scheduler() const { return scheduler_; }
  /// Plans a launch if the limits allow and there is work; absorbs the oldest launch unless more
  /// may be planned first; calls the sinks. Returns the fault of a failed launch, which the
  /// scheduler has already handled.
  Status turn();
  /// No launch is under way; requests may wait.
  bool is_idle() const { return under_way_.empty(); }
  /// The device has failed for good; all requests have ended.
  bool is_broken() const { return is_broken_; }
  /// Tokens of the largest launch so far.
  int32_t most_tokens() const { return most_tokens_; }
  double device_s() const { return device_s_; }  ///< seconds that launches have taken
  double waited_s() const { return waited_s_; }  ///< seconds that turn() has waited for them

 private:
  bool has_room() const;
  bool plan_ahead();
  void arm_oldest();
  Status finish_oldest();

  StepRunner& runner_;
  const Options options_;
  Scheduler scheduler_;
  StepThread steps_;
  /// One more than can be under way: the step thread may still read the answers of the launch
  /// before the oldest.
  std::vector<StepPlan> plans_;
  size_t num_planned_ = 0;
  std::deque<StepPlan*> under_way_;  // the oldest first
  bool oldest_is_armed_ = false, is_broken_ = false;
  int32_t most_tokens_ = 0;
  double device_s_ = 0, waited_s_ = 0;
};

}  // namespace moxie
