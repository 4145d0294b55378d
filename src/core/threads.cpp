// The pool: a generation counter wakes workers, a task counter hands out work.
#include "core/threads.h"

#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "core/base.h"

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

// What idle workers watch, what tasks are claimed by and what their end is counted by lie apart:
// who waits must not slow down who works.
struct ThreadPool::Shared {
  static constexpr size_t kCacheLine = 64;

  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<int> num_sleeping{0};

  alignas(kCacheLine) std::atomic<uint64_t> generation{0};
  std::atomic<bool> stopping{false};

  // The run in hand. `ticket` holds its generation (high half) and the next task (low half).
  alignas(kCacheLine) std::atomic<const TaskRef*> task{nullptr};
  std::atomic<int64_t> num_tasks{0};
  alignas(kCacheLine) std::atomic<uint64_t> ticket{0};
  alignas(kCacheLine) std::atomic<int64_t> num_done{0};

  // What is left of each share: begin in the low half, end in the high half.
  struct alignas(kCacheLine) Share {
    std::atomic<uint64_t> left{0};
  };
  std::vector<Share> shares;

  // Claims tasks until there are none. A worker that wakes late may claim one of a later run than
  // that which woke it: it is as good as any other.
  void work(int thread) {
    FlushToZero flush;
    int64_t done = 0;
    for (;;) {
      const uint64_t claimed = ticket.fetch_add(1, std::memory_order_acq_rel);
      const auto i = static_cast<int64_t>(claimed & 0xFFFFFFFFu);
      if (i >= num_tasks.load(std::memory_order_acquire)) break;
      // A task keeps its run from ending. If the run is another by now, this was none of its tasks,
      // and the number of tasks above is another run's.
      if (ticket.load(std::memory_order_acquire) >> 32 != claimed >> 32) break;
      (*task.load(std::memory_order_relaxed))(i, thread);
      ++done;
    }
    if (done > 0) num_done.fetch_add(done, std::memory_order_release);
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
    }
  }
};

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(num_threads > 0 ? num_threads : num_usable_cores()),
      shared_(std::make_unique<Shared>()) {
  shared_->shares = std::vector<Shared::Share>(static_cast<size_t>(num_threads_));
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
  CHECK(num_tasks >= 0 && num_tasks < (int64_t{1} << 31));
  Shared& shared = *shared_;
  if (num_threads_ == 1 || num_tasks <= 1) {
    FlushToZero flush;
    for (int64_t i = 0; i < num_tasks; ++i) task(i, 0);
    return;
  }
  const uint64_t run = shared.generation.load(std::memory_order_relaxed) + 1;
  // First a ticket that no task count reaches: a late worker that already sees the new count must
  // not take its old ticket for one of this run.
  const uint64_t first_ticket = (run & 0xFFFFFFFFu) << 32;
  shared.ticket.store(first_ticket | 0x80000000u, std::memory_order_relaxed);
  shared.task.store(&task, std::memory_order_relaxed);
  shared.num_tasks.store(num_tasks, std::memory_order_release);
  shared.num_done.store(0, std::memory_order_relaxed);
  shared.ticket.store(first_ticket, std::memory_order_release);
  {
    // Under the lock, so that a worker on its way to sleep cannot miss the change.
    std::lock_guard lock(shared.mutex);
    shared.generation.store(run, std::memory_order_release);
  }
  if (shared.num_sleeping.load() > 0) shared.wake.notify_all();
  shared.work(0);
  // Tasks are waited for, not workers: one that has lost its core and took no task holds up nobody.
  int spins = 0;
  while (shared.num_done.load(std::memory_order_acquire) != num_tasks) {
    if (++spins < kSpins)
      cpu_pause();
    else
      sched_yield();
  }
}

void ThreadPool::deal(int64_t n, int64_t num_shares) {
  CHECK(n < (int64_t{1} << 31));
  for (int64_t i = 0; i < num_shares; ++i) {
    const auto begin = static_cast<uint64_t>(n * i / num_shares);
    const auto end = static_cast<uint64_t>(n * (i + 1) / num_shares);
    // run() publishes it with its tasks.
    shared_->shares[static_cast<size_t>(i)].left.store(begin | end << 32,
                                                       std::memory_order_relaxed);
  }
}

ThreadPool::Range ThreadPool::claim(int64_t own, int64_t num_shares, int64_t unit) {
  for (int64_t i = 0; i < num_shares; ++i) {
    const auto owner = static_cast<size_t>((own + i) % num_shares);
    std::atomic<uint64_t>& left = shared_->shares[owner].left;
    uint64_t seen = left.load(std::memory_order_relaxed);
    for (;;) {
      const auto begin = static_cast<int64_t>(seen & 0xFFFFFFFFu);
      const auto end = static_cast<int64_t>(seen >> 32);
      if (begin >= end) break;
      const int64_t count = std::min(unit, end - begin);
      const Range part = i == 0 ? Range{begin, begin + count} : Range{end - count, end};
      const Range rest = i == 0 ? Range{part.end, end} : Range{begin, part.begin};
      const uint64_t wanted = static_cast<uint64_t>(rest.begin) | static_cast<uint64_t>(rest.end)
                                                                      << 32;
      if (left.compare_exchange_weak(seen, wanted, std::memory_order_relaxed)) return part;
    }
  }
  return {0, 0};
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
