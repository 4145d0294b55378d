// The pool: a generation counter wakes workers, each of which has a share of the tasks.
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

// A run has at most this many parts (16 bits of a share); one of more tasks takes several at a
// time.
constexpr int64_t kMostPartsOfRun = 0xFFFF;

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
  // The run in hand.
  std::atomic<const TaskRef*> task{nullptr};
  std::atomic<int64_t> num_tasks{0};
  std::atomic<int64_t> tasks_a_part{1};

  alignas(kCacheLine) std::atomic<int64_t> num_done{0};  // parts

  // The parts that are left of a thread's share: the low half of the run's generation (high half),
  // the end, the begin (16 bits each). A worker that wakes late finds another run's generation, or
  // nothing left: it cannot take a part of a run it does not know.
  struct alignas(kCacheLine) Share {
    std::atomic<uint64_t> left{0};
  };
  std::vector<Share> shares;

  void deal(uint64_t run, int64_t num_parts) {
    const auto n = static_cast<int64_t>(shares.size());
    for (int64_t i = 0; i < n; ++i) {
      const auto begin = static_cast<uint64_t>(num_parts * i / n);
      const auto end = static_cast<uint64_t>(num_parts * (i + 1) / n);
      shares[static_cast<size_t>(i)].left.store(run << 32 | end << 16 | begin,
                                                std::memory_order_relaxed);
    }
  }

  // A part of the run's share `owner`: its first, or its last if it is another's. -1: none.
  int64_t claim(uint64_t run, size_t owner, bool is_own) {
    std::atomic<uint64_t>& left = shares[owner].left;
    uint64_t seen = left.load(std::memory_order_relaxed);
    for (;;) {
      const uint64_t begin = seen & 0xFFFF, end = seen >> 16 & 0xFFFF;
      if (begin >= end || seen >> 32 != (run & 0xFFFFFFFFu)) return -1;
      const uint64_t rest = is_own ? seen + 1 : seen - 0x10000;
      if (left.compare_exchange_weak(seen, rest, std::memory_order_relaxed))
        return static_cast<int64_t>(is_own ? begin : end - 1);
    }
  }

  // Goes through the own share in order, then takes from the ends of the others'. What is loaded
  // before a part is claimed may be a later run's, but then there is none to claim: a run's values
  // stay until all its parts are done.
  void work(int thread, uint64_t run) {
    FlushToZero flush;
    const TaskRef* const call = task.load(std::memory_order_relaxed);
    const int64_t all = num_tasks.load(std::memory_order_relaxed);
    const int64_t a_part = tasks_a_part.load(std::memory_order_relaxed);
    for (size_t i = 0; i < shares.size(); ++i) {
      const size_t owner = (static_cast<size_t>(thread) + i) % shares.size();
      int64_t done = 0;
      for (int64_t part; (part = claim(run, owner, i == 0)) >= 0; ++done) {
        const int64_t end = std::min(all, (part + 1) * a_part);
        for (int64_t t = part * a_part; t < end; ++t) (*call)(t, thread);
      }
      // At once: the caller need not wait for the search for more.
      if (done > 0) num_done.fetch_add(done, std::memory_order_release);
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
      work(thread, seen);
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
  const int64_t a_part = (num_tasks + kMostPartsOfRun - 1) / kMostPartsOfRun;
  const int64_t num_parts = (num_tasks + a_part - 1) / a_part;
  shared.task.store(&task, std::memory_order_relaxed);
  shared.num_tasks.store(num_tasks, std::memory_order_relaxed);
  shared.tasks_a_part.store(a_part, std::memory_order_relaxed);
  shared.num_done.store(0, std::memory_order_relaxed);
  shared.deal(run, num_parts);
  {
    // Under the lock, so that a worker on its way to sleep cannot miss the change.
    std::lock_guard lock(shared.mutex);
    shared.generation.store(run, std::memory_order_release);
  }
  if (shared.num_sleeping.load() > 0) shared.wake.notify_all();
  shared.work(0, run);
  // Parts are waited for, not workers: one that has lost its core and took none holds up nobody.
  int spins = 0;
  while (shared.num_done.load(std::memory_order_acquire) != num_parts) {
    if (++spins < kSpins)
      cpu_pause();
    else
      sched_yield();
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
