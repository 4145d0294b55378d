// Runs planned launches, one after another, on a thread of its own or on the caller's: puts in the
// tokens that the launch before has drawn, runs the forward pass, waits until the draws are armed,
// and draws. Meanwhile the scheduling thread plans the next launch and calls the sinks of the last.
// While it waits for answers of the decode loop, it also gives the device the launches behind.
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
  /// Without `async` begin() only queues the launch, and wait() runs it.
  StepThread(StepRunner& runner, bool async, Fault fault);
  ~StepThread();
  StepThread(const StepThread&) = delete;
  StepThread& operator=(const StepThread&) = delete;

  /// Queues a launch. `before` is the launch queued last, if it has not been waited for, else null;
  /// if `before` fails, `plan` is not run. Both belong to the step thread until wait().
  void begin(StepPlan* plan, const StepPlan* before);
  /// Scheduler::arm() has been called for the launch.
  void allow_draws(StepPlan* plan);
  /// Returns when the launch is done: its status and answers are set.
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
  int64_t armed_ = 0, done_ = 0;  // number of the last launch armed, and of the last one done
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace moxie
