// A pool of worker threads for the CPU's steps: run(n, task) calls task(i) for every i in 0..n-1 on
// all threads, the caller included, and returns when all are done.
//
// Workers spin for a short while after a run, since the next step follows in microseconds, then
// sleep: no core is busy when idle. Flush-to-zero is on in every thread while it runs tasks,
// because products of subnormals slow the MXFP4 loops eightfold; the caller's mode is restored.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

namespace moxie {

/// A borrowed callable `void(int64_t task, int thread)`; lives only as long as the call it is
/// passed to.
class TaskRef {
 public:
  template <typename F>
  TaskRef(F& function)  // NOLINT(google-explicit-constructor): borrowed on purpose
      : object_(&function), call_([](void* object, int64_t task, int thread) {
          (*static_cast<F*>(object))(task, thread);
        }) {}
  void operator()(int64_t task, int thread) const { call_(object_, task, thread); }

 private:
  void* object_;
  void (*call_)(void*, int64_t, int);
};

class ThreadPool {
 public:
  /// `num_threads` counts the caller; 0 means one a core this process may use.
  explicit ThreadPool(int num_threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  /// Each thread has a contiguous share of the tasks, which it goes through in order; whoever is
  /// done takes tasks from the ends of others' shares. Not reentrant: one run at a time.
  void run(int64_t num_tasks, TaskRef task);

  /// The same by parts of `unit` (at least 1) of 0..n-1: body(begin, end).
  template <typename F>
  void share(int64_t n, int64_t unit, F&& body) {
    auto part = [&](int64_t i, int) { body(i * unit, std::min(n, (i + 1) * unit)); };
    run((n + unit - 1) / unit, part);
  }

 private:
  struct Shared;

  int num_threads_;
  std::unique_ptr<Shared> shared_;
};

/// Cores this process may run on (the affinity mask), at least 1.
int num_usable_cores();

}  // namespace moxie
