// The thread pool, the CPU device with its buffers and arena, shapes and errors.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <latch>
#include <numeric>
#include <span>
#include <thread>
#include <vector>

#include "core/base.h"
#include "core/device.h"
#include "core/tensor.h"
#include "core/threads.h"

namespace moxie {
namespace {

TEST(ThreadPool, EveryTaskRunsOnce) {
  for (int num_threads : {1, 2, 3, 8}) {
    ThreadPool pool(num_threads);
    EXPECT_EQ(pool.num_threads(), num_threads);
    for (int64_t n : {0, 1, 2, 3, 7, 64, 1000, 1, 5, 0, 333, 65536, 200'001}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(n));
      std::atomic<int> num_bad_threads{0};
      auto task = [&](int64_t i, int thread) {
        runs[static_cast<size_t>(i)].fetch_add(1);
        if (thread < 0 || thread >= num_threads) num_bad_threads.fetch_add(1);
      };
      pool.run(n, task);
      for (const auto& count : runs) ASSERT_EQ(count.load(), 1);
      EXPECT_EQ(num_bad_threads.load(), 0);
    }
  }
}

TEST(ThreadPool, ManyRunsInARowLoseNoTaskAndSeeTheRunBefore) {
  ThreadPool pool(3);
  std::vector<int64_t> values(97, 0);
  for (int64_t round = 0; round < 5000; ++round) {
    auto task = [&](int64_t i, int) {
      auto& value = values[static_cast<size_t>(i)];
      if (value == round) ++value;  // plain memory: a run orders all that came before
    };
    pool.run(97, task);
  }
  for (int64_t value : values) ASSERT_EQ(value, 5000);
}

// Memory is asked for, never read: where nothing is mapped any more no run notices.
TEST(ThreadPool, ReadsAheadWhateverTheMemory) {
  constexpr size_t kBytes = 1 << 20;
  ThreadPool pool(3);
  const std::vector<std::byte> memory(kBytes);
  void* const gone = ::mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(gone, MAP_FAILED);
  ASSERT_EQ(::munmap(gone, kBytes), 0);
  const std::span<const std::byte> memories[] = {
      memory, {}, {static_cast<const std::byte*>(gone), kBytes}};
  std::atomic<int64_t> num_runs{0};
  auto task = [&](int64_t, int) { num_runs.fetch_add(1); };
  for (int round = 0; round < 3000; ++round) {
    pool.read_ahead(memories[round % 3]);
    pool.run(5, task);
  }
  EXPECT_EQ(num_runs.load(), 5 * 3000);
}

TEST(ThreadPool, WakesWorkersThatFellAsleep) {
  ThreadPool pool(2);
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic<int> num_runs{0};
    auto task = [&](int64_t, int) { num_runs.fetch_add(1); };
    pool.run(10, task);
    EXPECT_EQ(num_runs.load(), 10);
  }
}

#if defined(__x86_64__) || defined(__aarch64__)
float smallest_normal_times(float factor) {
  volatile float a = 0x1p-126f, b = factor;
  return a * b;
}

TEST(ThreadPool, SharesCoverAllOnceHoweverUnequalTheThreads) {
  for (const int num_threads : {1, 2, 3, 8}) {
    ThreadPool pool(num_threads);
    for (const int64_t n : {0, 1, 2, 7, 100, 1001}) {
      for (const int64_t unit : {1, 3, 64}) {
        std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
        std::atomic<int> too_long{0};
        pool.share(n, unit, [&](int64_t begin, int64_t end) {
          // The first share takes far longer than the others, which take from it.
          if (begin == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          if (num_threads > 1 && n > unit && end - begin > unit) ++too_long;
          for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
        });
        EXPECT_EQ(too_long, 0);
        for (const auto& count : seen) EXPECT_EQ(count, 1) << num_threads << ' ' << n;
      }
    }
  }
}

TEST(ThreadPool, ASecondRoundFindsWhatItWaitsForOfTheFirst) {
  for (const int num_threads : {1, 2, 3, 8}) {
    ThreadPool pool(num_threads);
    for (const int64_t num_groups : {1, 4, 37}) {
      for (int round = 0; round < 50; ++round) {
        constexpr int64_t kParts = 5;
        std::deque<std::latch> made;
        for (int64_t i = 0; i < num_groups; ++i) made.emplace_back(kParts);
        std::vector<int> first(static_cast<size_t>(num_groups * kParts), 0);  // plain memory
        std::vector<std::atomic<int>> second(static_cast<size_t>(num_groups));
        auto make = [&](int64_t i, int) {
          // The first parts take far longer than the others.
          if (i == 0 && round < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          first[static_cast<size_t>(i)] = 1;
          made[static_cast<size_t>(i / kParts)].count_down();
        };
        auto use = [&](int64_t i, int) {
          wait_for(made[static_cast<size_t>(i)]);
          const auto begin = first.begin() + i * kParts;
          second[static_cast<size_t>(i)] += std::accumulate(begin, begin + kParts, 0);
        };
        pool.run(num_groups * kParts, make, num_groups, use);
        for (const auto& sum : second) ASSERT_EQ(sum, kParts) << num_threads;
      }
    }
  }
}

TEST(ThreadPool, FlushesToZeroInTasksAndRestoresTheCaller) {
  ASSERT_NE(smallest_normal_times(0.5f), 0.0f) << "the caller keeps subnormals";
  for (int num_threads : {1, 2}) {
    ThreadPool pool(num_threads);
    std::atomic<int> num_kept{0};
    auto task = [&](int64_t, int) {
      if (smallest_normal_times(0.5f) != 0.0f) num_kept.fetch_add(1);
    };
    for (int64_t n : {1, 64}) pool.run(n, task);
    EXPECT_EQ(num_kept.load(), 0);
    EXPECT_NE(smallest_normal_times(0.5f), 0.0f) << "the caller's mode was not restored";
  }
}
#endif

TEST(CpuDevice, CopiesFillsAndRefusesTheImpossible) {
  const auto device = make_cpu_device(1);
  EXPECT_EQ(device->kind(), DeviceKind::kCpu);
  EXPECT_GE(device->properties().num_units, 1);
  EXPECT_GT(device->properties().memory_bytes, 0u);
  auto stream = device->make_stream();
  ASSERT_TRUE(stream.has_value());
  ASSERT_NE((*stream)->pool, nullptr);
  auto buffer = device->allocate(4096);
  ASSERT_TRUE(buffer.has_value());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 256, 0u);
  std::vector<uint8_t> from(4096), to(4096);
  std::iota(from.begin(), from.end(), uint8_t{0});
  ASSERT_TRUE(device->copy_from_host(buffer->data(), from.data(), 4096, **stream).has_value());
  ASSERT_TRUE(device->fill_zero(buffer->data(), 16, **stream).has_value());
  ASSERT_TRUE(device->copy_to_host(to.data(), buffer->data(), 4096, **stream).has_value());
  ASSERT_TRUE((*stream)->synchronize().has_value());
  EXPECT_EQ(to[15], 0);
  EXPECT_EQ(to[16], 16);
  const auto impossible = device->allocate(uint64_t{1} << 62);
  ASSERT_FALSE(impossible.has_value());
  EXPECT_NE(impossible.error().what.find(std::to_string(uint64_t{1} << 62)), std::string::npos);
}

TEST(Buffer, MovesItsMemory) {
  const auto device = make_cpu_device(1);
  Buffer a = device->allocate(1024).value();
  std::byte* data = a.data();
  Buffer b = std::move(a);
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(b.bytes(), 1024u);
  b.reset();
  EXPECT_EQ(b.data(), nullptr);
  EXPECT_EQ(b.bytes(), 0u);
}

TEST(Arena, HandsOutAlignedPartsThatDoNotOverlap) {
  const auto device = make_cpu_device(1);
  Arena arena(device->allocate(4096).value());
  std::byte* last_end = arena.buffer().data();
  for (uint64_t bytes : {1, 255, 256, 257, 700}) {
    std::byte* part = arena.take(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(part) % 256, 0u);
    EXPECT_GE(part, last_end);
    last_end = part + bytes;
  }
  EXPECT_LE(last_end, arena.buffer().data() + arena.buffer().bytes());
  arena.rewind();
  EXPECT_EQ(arena.used(), 0u);
  EXPECT_EQ(reinterpret_cast<std::byte*>(arena.take_array<float>(1024)), arena.buffer().data());
  EXPECT_DEATH(arena.take(1), "arena of 4096 bytes, 4096 used, asked for 1");
}

TEST(Tensor, SizesOfDataTypes) {
  EXPECT_EQ(dtype_bytes(DType::kMXFP4, 64), 34u);
  EXPECT_EQ(dtype_bytes(DType::kQ8_0, 64), 68u);
  EXPECT_EQ(dtype_bytes(DType::kBF16, 3), 6u);
  const Shape shape{4, 5, 6};
  EXPECT_EQ(shape.num_elements(), 120);
  EXPECT_EQ(shape.to_string(), "[4, 5, 6]");
  EXPECT_EQ(Shape{}.num_elements(), 1);
  EXPECT_FALSE(shape == (Shape{4, 5}));
}

TEST(Base, ErrorsNameWhereWhatAndHint) {
  const Status status = fail("found 3, expected 4", "a.json: key k", "mend it");
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().message(), "a.json: key k: found 3, expected 4 (mend it)");
  EXPECT_EQ((Error{.what = "bad"}).message(), "bad");
}

TEST(Base, CheckPrintsTheConditionAndTheValues) {
  EXPECT_DEATH(CHECK(1 == 2, "values 1 and 2"), "1 == 2: values 1 and 2");
}

TEST(Base, CheckedArithmeticSeesOverflow) {
  uint64_t out = 0;
  EXPECT_TRUE(checked_mul(uint64_t{1} << 31, uint64_t{1} << 32, &out));
  EXPECT_FALSE(checked_mul(uint64_t{1} << 32, uint64_t{1} << 32, &out));
  EXPECT_FALSE(checked_add(~uint64_t{0}, 1, &out));
}

}  // namespace
}  // namespace moxie
