// The pool: a generation counter wakes the workers, each of which has a share of the tasks.
#include "core/threads.h"

#include <sched.h>

#include <algorithm>
#include <array>
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

// Waits until is_over(): polls kSpins times, then yields the core between polls. As long as
// meanwhile() finds something to do, it is called between polls.
template <typename IsOver, typename Meanwhile>
void spin_until(IsOver is_over, Meanwhile meanwhile) {
  for (int spins = 0; !is_over();) {
    if (meanwhile()) continue;
    if (++spins < kSpins)
      cpu_pause();
    else
      sched_yield();
  }
}

// A run has at most this many parts (16 bits of a share); one of more tasks takes several at a
// time.
constexpr int64_t kMostPartsOfRun = 0xFFFF;

}  // namespace

// The counter that idle workers watch, the shares that tasks are claimed from and the count of done
// tasks are on different cache lines, so that waiting threads do not slow down working ones.
struct ThreadPool::Shared {
  static constexpr size_t kCacheLine = 64;

  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<int> num_sleeping{0};

  alignas(kCacheLine) std::atomic<uint64_t> generation{0};
  std::atomic<bool> stopping{false};

  alignas(kCacheLine) std::atomic<int64_t> num_done{0};  // parts, of all rounds

  // The parts that are left of a thread's share: the low half of the run's generation (in the high
  // 32 bits), the end, the begin (16 bits each). A worker that wakes late finds another generation,
  // or nothing left, so it cannot take a part of a run that it does not know.
  struct alignas(kCacheLine) Share {
    std::atomic<uint64_t> left{0};
  };

  // A round of the current run.
  struct alignas(kCacheLine) DealtRound {
    std::atomic<const TaskRef*> task{nullptr};
    std::atomic<int64_t> num_tasks{0};
    std::atomic<int64_t> tasks_a_part{1};
    std::vector<Share> shares;

    // Returns the number of parts.
    int64_t deal(uint64_t run, const Round& round) {
      const auto n = static_cast<int64_t>(shares.size());
      const int64_t a_part = std::max<int64_t>(1, ceil_div(round.num_tasks, kMostPartsOfRun));
      const int64_t num_parts = ceil_div(round.num_tasks, a_part);
      task.store(&round.task, std::memory_order_relaxed);
      num_tasks.store(round.num_tasks, std::memory_order_relaxed);
      tasks_a_part.store(a_part, std::memory_order_relaxed);
      for (int64_t i = 0; i < n; ++i) {
        const auto begin = static_cast<uint64_t>(num_parts * i / n);
        const auto end = static_cast<uint64_t>(num_parts * (i + 1) / n);
        shares[static_cast<size_t>(i)].left.store(run << 32 | end << 16 | begin,
                                                  std::memory_order_relaxed);
      }
      return num_parts;
    }
  };
  static constexpr size_t kMostRounds = 2;
  std::array<DealtRound, kMostRounds> rounds;
  std::atomic<size_t> num_rounds{0};

  // The memory to read ahead. A thread that sees a half-done change prefetches memory that nobody
  // reads, or that does not exist: neither is an error.
  struct alignas(kCacheLine) Ahead {
    std::atomic<uint64_t> number{0};  // of changes
    std::atomic<const std::byte*> data{nullptr};
    std::atomic<int64_t> bytes_a_thread{0};
  };
  Ahead ahead;

  // A thread's progress in reading ahead.
  struct Reader {
    int64_t thread;
    uint64_t number = 0;
    int64_t done = 0;

    // Prefetches a few cache lines; false if none are left.
    bool ask(const Ahead& ahead) {
      const uint64_t now = ahead.number.load(std::memory_order_acquire);
      if (number != now) number = now, done = 0;
      const int64_t bytes = ahead.bytes_a_thread.load(std::memory_order_relaxed);
      if (done >= std::min(bytes, kMostAheadBytes)) return false;
      constexpr int64_t kLines = 8;  // between two polls
      const std::byte* at = ahead.data.load(std::memory_order_relaxed) + thread * bytes + done;
      for (int64_t i = 0; i < kLines; ++i) __builtin_prefetch(at + i * kLineBytes, 0, 2);
      done += kLines * kLineBytes;
      return true;
    }
    static constexpr int64_t kLineBytes = 64;
  };
  Reader caller{0};

  // Claims a part of a share: the first of the thread's own share, the last of another's. -1: none.
  static int64_t claim(uint64_t run, Share& share, bool is_own) {
    std::atomic<uint64_t>& left = share.left;
    uint64_t seen = left.load(std::memory_order_relaxed);
    for (;;) {
      const uint64_t begin = seen & 0xFFFF, end = seen >> 16 & 0xFFFF;
      if (begin >= end || seen >> 32 != (run & 0xFFFFFFFFu)) return -1;
      const uint64_t rest = is_own ? seen + 1 : seen - 0x10000;
      if (left.compare_exchange_weak(seen, rest, std::memory_order_relaxed))
        return static_cast<int64_t>(is_own ? begin : end - 1);
    }
  }

  // Runs the thread's own share in order, then parts from the ends of other shares, then the next
  // round. Values loaded before a part is claimed may belong to a later run, but then no part can
  // be claimed: a run's values stay until all its parts are done.
  void work(int thread, uint64_t run) {
    FlushToZero flush;
    const size_t last = num_rounds.load(std::memory_order_relaxed);
    for (size_t r = 0; r < last; ++r) work(rounds[r], thread, run);
  }

  void work(DealtRound& round, int thread, uint64_t run) {
    const TaskRef* const call = round.task.load(std::memory_order_relaxed);
    const int64_t all = round.num_tasks.load(std::memory_order_relaxed);
    const int64_t a_part = round.tasks_a_part.load(std::memory_order_relaxed);
    const size_t num_threads = round.shares.size();
    for (size_t i = 0; i < num_threads; ++i) {
      Share& share = round.shares[(static_cast<size_t>(thread) + i) % num_threads];
      int64_t done = 0;
      for (int64_t part; (part = claim(run, share, i == 0)) >= 0; ++done) {
        const int64_t end = std::min(all, (part + 1) * a_part);
        for (int64_t t = part * a_part; t < end; ++t) (*call)(t, thread);
      }
      // At once: the caller need not wait for the search for more.
      if (done > 0) num_done.fetch_add(done, std::memory_order_release);
    }
  }

  void worker(int thread) {
    uint64_t seen = 0;
    Reader reader{thread};
    for (;;) {
      int spins = 0;
      while (generation.load(std::memory_order_acquire) == seen && !stopping.load()) {
        if (reader.ask(ahead)) continue;
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

ThreadPool::ThreadPool(int num_threads, std::vector<UsableCore> cores)
    : cores_(std::move(cores)),
      num_threads_(num_threads > 0 ? num_threads : static_cast<int>(cores_.size())),
      shared_(std::make_unique<Shared>()) {
  for (Shared::DealtRound& round : shared_->rounds)
    round.shares = std::vector<Shared::Share>(static_cast<size_t>(num_threads_));
  for (int i = 1; i < num_threads_; ++i) {
    shared_->workers.emplace_back([this, i] {
      bind(i);
      shared_->worker(i);
    });
  }
}

int ThreadPool::num_nodes() const {
  int num_nodes = 1;
  for (int i = 1; i < num_threads_; ++i) num_nodes += node_of(i) != node_of(i - 1);
  return num_nodes;
}

void ThreadPool::bind(int thread) const {
  if (num_nodes() == 1) return;
  const auto [first, last] =
      std::equal_range(cores_.begin(), cores_.end(), cores_[core_of(thread)],
                       [](const UsableCore& a, const UsableCore& b) { return a.node < b.node; });
  keep_on({first, last});
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(shared_->mutex);
    shared_->stopping.store(true);
  }
  shared_->wake.notify_all();
  for (auto& worker : shared_->workers) worker.join();
}

void ThreadPool::read_ahead(std::span<const std::byte> memory) {
  Shared::Ahead& ahead = shared_->ahead;
  ahead.data.store(memory.data(), std::memory_order_relaxed);
  ahead.bytes_a_thread.store(static_cast<int64_t>(memory.size()) / num_threads_,
                             std::memory_order_relaxed);
  ahead.number.fetch_add(1, std::memory_order_release);
}

void ThreadPool::run(int64_t num_tasks, TaskRef task) {
  const Round round{num_tasks, task};
  run_rounds({&round, 1});
}

void ThreadPool::run(int64_t num_first, TaskRef first, int64_t num_second, TaskRef second) {
  const Round rounds[] = {{num_first, first}, {num_second, second}};
  run_rounds(rounds);
}

void ThreadPool::run_rounds(std::span<const Round> rounds) {
  Shared& shared = *shared_;
  bool is_small = true;
  for (const Round& round : rounds) {
    CHECK(round.num_tasks >= 0 && round.num_tasks < (int64_t{1} << 31));
    is_small = is_small && round.num_tasks <= 1;
  }
  if (num_threads_ == 1 || is_small) {
    FlushToZero flush;
    for (const Round& round : rounds)
      for (int64_t i = 0; i < round.num_tasks; ++i) round.task(i, 0);
    return;
  }
  const uint64_t run = shared.generation.load(std::memory_order_relaxed) + 1;
  int64_t num_parts = 0;
  for (size_t r = 0; r < rounds.size(); ++r) num_parts += shared.rounds[r].deal(run, rounds[r]);
  shared.num_rounds.store(rounds.size(), std::memory_order_relaxed);
  shared.num_done.store(0, std::memory_order_relaxed);
  {
    // Under the lock, so that a worker about to sleep cannot miss the change.
    std::lock_guard lock(shared.mutex);
    shared.generation.store(run, std::memory_order_release);
  }
  if (shared.num_sleeping.load() > 0) shared.wake.notify_all();
  shared.work(0, run);
  // Waits for parts, not for workers: a worker that lost its core and claimed no part holds up
  // nobody.
  spin_until([&] { return shared.num_done.load(std::memory_order_acquire) == num_parts; },
             [&] { return shared.caller.ask(shared.ahead); });
}

void wait_for(const std::latch& latch) {
  spin_until([&] { return latch.try_wait(); }, [] { return false; });
}

}  // namespace moxie
