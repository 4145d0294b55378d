// A pool of worker threads for the CPU's steps: run(n, task) calls task(i) for every i in 0..n-1 on
// all threads, the caller included, and returns when all are done.
//
// Threads are assigned to cores in order of NUMA nodes. With several nodes, a worker is kept on the
// cores of its node. Within a node the kernel's scheduler decides, since it knows which cores other
// processes use. The caller's thread is not bound.
//
// Workers spin for a short while after a run, since the next step follows in microseconds, then
// sleep, so that an idle pool keeps no core busy. Flush-to-zero is on in every thread while it runs
// tasks, because products of subnormals slow the MXFP4 loops eightfold; the caller's mode is
// restored.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <latch>
#include <memory>
#include <span>
#include <vector>

#include "core/numa.h"

namespace moxie {

/// A borrowed callable `void(int64_t task, int thread)`; valid during the call it is passed to.
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
  explicit ThreadPool(int num_threads = 0, std::vector<UsableCore> cores = usable_cores());
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }
  /// The kernel's number of the NUMA node that a thread is meant for; does not fall as `thread`
  /// rises.
  int node_of(int thread) const { return cores_[core_of(thread)].node; }
  /// The number of NUMA nodes of the threads; 1 if nothing needs placing.
  int num_nodes() const;

  /// Each thread goes through a contiguous share of the tasks in order. A thread that is done takes
  /// tasks from the ends of other threads' shares. Not reentrant: one run at a time.
  void run(int64_t num_tasks, TaskRef task);

  /// Two rounds of tasks in one run, each shared out as above. A thread that finds no task left in
  /// the first round goes on with the second while others still run tasks of the first. So a task
  /// of the second round must wait for the results of the first that it needs (wait_for below).
  void run(int64_t num_first, TaskRef first, int64_t num_second, TaskRef second);

  /// Names memory that a later run will read, shared out among the threads like tasks. A thread
  /// that has nothing left to do in a run prefetches the first kMostAheadBytes of its share. Empty:
  /// nothing. The memory is only prefetched, never read, so it may be freed meanwhile.
  void read_ahead(std::span<const std::byte> memory);
  /// For one thread: what its core's L2 cache holds besides the data that it works on.
  static constexpr int64_t kMostAheadBytes = 192 << 10;

  /// run() over contiguous pieces of 0..n-1, multiples of `unit` (at least 1): body(begin, end).
  template <typename F>
  void share(int64_t n, int64_t unit, F&& body) {
    auto part = [&](int64_t i, int) { body(i * unit, std::min(n, (i + 1) * unit)); };
    run((n + unit - 1) / unit, part);
  }

 private:
  struct Shared;
  struct Round {
    int64_t num_tasks;
    TaskRef task;
  };
  void run_rounds(std::span<const Round> rounds);

  size_t core_of(int thread) const {
    return static_cast<size_t>(thread) * cores_.size() / static_cast<size_t>(num_threads_);
  }
  void bind(int thread) const;

  std::vector<UsableCore> cores_;
  int num_threads_;
  std::unique_ptr<Shared> shared_;
};

/// Waits for tasks that other threads of a pool are running, which takes microseconds: spins, then
/// yields.
void wait_for(const std::latch& latch);

}  // namespace moxie
