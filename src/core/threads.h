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

  /// Tasks are handed out in order by a shared counter. Not reentrant: one run at a time.
  void run(int64_t num_tasks, TaskRef task);

  /// body(begin, end) over parts of `unit` (at least 1) of 0..n-1. Each thread has a contiguous
  /// share, which it goes through in order; whoever is done takes parts from the ends of others'
  /// shares.
  template <typename F>
  void share(int64_t n, int64_t unit, F&& body) {
    const int64_t num_shares = std::min<int64_t>(num_threads_, (n + unit - 1) / unit);
    if (num_shares <= 1) {
      auto all = [&](int64_t, int) { body(0, n); };
      run(n > 0 ? 1 : 0, all);
      return;
    }
    deal(n, num_shares);
    auto work = [&](int64_t own, int) {
      for (Range part = claim(own, num_shares, unit); part.begin < part.end;
           part = claim(own, num_shares, unit)) {
        body(part.begin, part.end);
      }
    };
    run(num_shares, work);
  }

  /// Splits 0..n-1 into one contiguous range a thread: body(begin, end).
  template <typename F>
  void ranges(int64_t n, int64_t grain, F&& body) {
    const int64_t num_parts =
        n <= grain ? 1 : std::min<int64_t>(num_threads_, (n + grain - 1) / grain);
    auto part = [&](int64_t i, int) { body(n * i / num_parts, n * (i + 1) / num_parts); };
    if (num_parts == 1) {
      part(0, 0);
      return;
    }
    run(num_parts, part);
  }

 private:
  struct Range {
    int64_t begin, end;
  };
  struct Shared;

  void deal(int64_t n, int64_t num_shares);
  /// The next part of the own share, else the last of another; empty if nothing is left.
  Range claim(int64_t own, int64_t num_shares, int64_t unit);

  int num_threads_;
  std::unique_ptr<Shared> shared_;
};

/// Cores this process may run on (the affinity mask), at least 1.
int num_usable_cores();

}  // namespace moxie
