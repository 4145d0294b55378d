// Runs planned steps, one after another, on a thread of its own or on the caller's: puts in the
// tokens that the step before has drawn, runs the forward pass, waits for what the draws want, and
// draws. While it does, the scheduling thread plans the next step and tells the sinks of the last.
// Of steps in the decode loop it gives the device those behind, too, while it waits for answers.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "engine/scheduler.h"

namespace moxie {

class StepThread {
 public:
  using Fault = std::function<Status(int64_t number, std::span<const int32_t> token_ids)>;
  /// Without `async` begin() does nothing and run() does all of it at once.
  StepThread(StepRunner& runner, bool async, Fault fault);
  ~StepThread();
  StepThread(const StepThread&) = delete;
  StepThread& operator=(const StepThread&) = delete;

  /// Gives it a step; `before` is the one given last, if that has not been waited for. If that one
  /// fails, this one is not run. Both stay the thread's until wait().
  void begin(StepPlan* plan, const StepPlan* before);
  /// Scheduler::arm() has been done for the step.
  void allow_draws(StepPlan* plan);
  /// Until the step is done: its status and answers are there.
  void wait(StepPlan* plan);

 private:
  struct Given {
    StepPlan* plan = nullptr;
    const StepPlan* before = nullptr;
  };
  void loop();
  void run(const Given& given);
  void run_in_loop(const Given& given);
  Status put_tokens(const Given& given);
  void launch(StepPlan* plan);
  void launch_behind();

  StepRunner& runner_;
  const bool async_;
  const Fault fault_;
  std::mutex mutex_;
  std::condition_variable given_changed_, armed_changed_, done_changed_;
  std::deque<Given> given_;
  int64_t armed_ = 0, done_ = 0;  // numbers of the last such steps
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace moxie
