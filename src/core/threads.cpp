// The pool: a generation counter wakes workers, a task counter hands out work.
#include "core/threads.h"

#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace moxie {
namespace {

inline void cpu_pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Flush-to-zero and denormals-are-zero for as long as this object lives.
class FlushToZero {
 public:
#if defined(__x86_64__)
  FlushToZero() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040u); }
  ~FlushToZero() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  FlushToZero() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" ::"r"(saved_ | (uint64_t{1} << 24)));
  }
  ~FlushToZero() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }

 private:
  uint64_t saved_;
#endif
};

constexpr int kSpins = 4000;  // about 50 microseconds: longer than the gap between two steps

}  // namespace

struct ThreadPool::Shared {
  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<uint64_t> generation{0};
  std::atomic<bool> stopping{false};
  std::atomic<int> num_sleeping{0};

  const TaskRef* task = nullptr;
  int64_t num_tasks = 0;
  std::atomic<int64_t> next_task{0};
  std::atomic<int> num_active{0};

  void work(int thread) {
    FlushToZero flush;
    for (;;) {
      const int64_t i = next_task.fetch_add(1, std::memory_order_relaxed);
      if (i >= num_tasks) return;
      (*task)(i, thread);
    }
  }

  void worker(int thread) {
    uint64_t seen = 0;
    for (;;) {
      int spins = 0;
      while (generation.load(std::memory_order_acquire) == seen && !stopping.load()) {
        if (++spins < kSpins) {
          cpu_pause();
          continue;
        }
        std::unique_lock lock(mutex);
        num_sleeping.fetch_add(1);
        wake.wait(lock, [&] { return generation.load() != seen || stopping.load(); });
        num_sleeping.fetch_sub(1);
      }
      if (stopping.load()) return;
      seen = generation.load(std::memory_order_acquire);
      work(thread);
      num_active.fetch_sub(1, std::memory_order_acq_rel);
    }
  }
};

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(num_threads > 0 ? num_threads : num_usable_cores()),
      shared_(std::make_unique<Shared>()) {
  for (int i = 1; i < num_threads_; ++i) {
    shared_->workers.emplace_back([this, i] { shared_->worker(i); });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(shared_->mutex);
    shared_->stopping.store(true);
  }
  shared_->wake.notify_all();
  for (auto& worker : shared_->workers) worker.join();
}

void ThreadPool::run(int64_t num_tasks, TaskRef task) {
  Shared& shared = *shared_;
  shared.task = &task;
  shared.num_tasks = num_tasks;
  shared.next_task.store(0, std::memory_order_relaxed);
  if (num_threads_ == 1 || num_tasks <= 1) {
    shared.work(0);
    return;
  }
  shared.num_active.store(num_threads_ - 1, std::memory_order_relaxed);
  {
    // Under the lock, so that a worker on its way to sleep cannot miss the change.
    std::lock_guard lock(shared.mutex);
    shared.generation.fetch_add(1, std::memory_order_release);
  }
  if (shared.num_sleeping.load() > 0) shared.wake.notify_all();
  shared.work(0);
  int spins = 0;
  while (shared.num_active.load(std::memory_order_acquire) != 0) {
    // A worker may have lost its core to another process: let it run.
    if (++spins < kSpins) cpu_pause();
    else sched_yield();
  }
}

int num_usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    const int count = CPU_COUNT(&set);
    if (count > 0) return count;
  }
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace moxie
