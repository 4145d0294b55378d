// A pool of worker threads for the CPU's steps: run(n, task) calls task(i) for every i in 0..n-1 on
// all threads, the caller included, and returns when all are done.
//
// Threads have the cores in order of their NUMA nodes, and where there are several nodes a worker
// is kept on the cores of its own. Within a node the kernel's scheduler knows better who has lost a
// core to a neighbour. The caller's thread is not ours to bind.
//
// Workers spin for a short while after a run, since the next step follows in microseconds, then
// sleep: no core is busy when idle. Flush-to-zero is on in every thread while it runs tasks,
// because products of subnormals slow the MXFP4 loops eightfold; the caller's mode is restored.
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
  explicit ThreadPool(int num_threads = 0, std::vector<UsableCore> cores = usable_cores());
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }
  /// The kernel's number of the NUMA node that a thread is meant for; rises with the thread.
  int node_of(int thread) const { return cores_[core_of(thread)].node; }
  /// Of the threads; 1 where nothing needs placing.
  int num_nodes() const;

  /// Each thread has a contiguous share of the tasks, which it goes through in order; whoever is
  /// done takes tasks from the ends of others' shares. Not reentrant: one run at a time.
  void run(int64_t num_tasks, TaskRef task);

  /// Two rounds of tasks in one run, each shared out like that. A thread that finds none left of
  /// the first round goes on with the second while others finish what they took: what a task of the
  /// second needs of the first, it waits for (wait_for below).
  void run(int64_t num_first, TaskRef first, int64_t num_second, TaskRef second);

  /// What a run that follows will read, each thread its share in order, as tasks are shared out.
  /// Threads that have nothing left to do in a run ask for the first of theirs into their caches
  /// meanwhile (kMostAheadBytes). Empty: nothing. Only asked for, never read: memory that is gone
  /// by then does no harm.
  void read_ahead(std::span<const std::byte> memory);
  /// Of a thread: what its core's second level holds besides what it works on.
  static constexpr int64_t kMostAheadBytes = 192 << 10;

  /// The same by parts of `unit` (at least 1) of 0..n-1: body(begin, end).
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

/// Waits for tasks of a pool that others have in hand, which take microseconds: spins, then yields.
void wait_for(const std::latch& latch);

}  // namespace moxie
