// The machine's limits: every row gives a rate, the best allowed one is named, and shares follow
// from rates. No time is asserted: machines differ.
#include "lab/machine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "core/clock.h"
#include "lab/machine_loops.h"

namespace moxie {
namespace {

MachineOptions small_options(Features features) {
  return {.features = features,
          .read_buffer_bytes = uint64_t{8} << 20,
          .read_passes = 3,
          .seconds_per_loop = 0.002};
}

std::vector<ReadLoop> allowed_read_loops() {
  std::vector<ReadLoop> loops;
  const auto add = [&](std::span<const ReadLoop> more) {
    for (const ReadLoop& loop : more)
      if ((loop.needs & cpu_features()) == loop.needs) loops.push_back(loop);
  };
  add(read_loops_portable());
#if defined(__x86_64__)
  add(read_loops_avx2());
  add(read_loops_avx512());
#elif defined(__aarch64__)
  add(read_loops_neon());
#endif
  return loops;
}

// A loop that skipped bytes would claim more bandwidth than there is.
// Steps of 7 bytes touch every 64-bit word.
TEST(ReadLoops, ReadEveryWord) {
  std::vector<std::byte> bytes(2 * kReadGrain);
  for (const ReadLoop& loop : allowed_read_loops()) {
    const uint64_t before = loop.run(bytes.data(), bytes.size());
    for (size_t i = 0; i < bytes.size(); i += 7) {
      bytes[i] = std::byte{1};
      ASSERT_NE(loop.run(bytes.data(), bytes.size()), before) << loop.instruction << " byte " << i;
      bytes[i] = std::byte{0};
    }
  }
}

#if defined(__x86_64__)
// The greatest clock seen, in GHz: additions that wait for one another take a cycle each.
double clock_ghz() {
  double best = 0;
  for (int repeat = 0; repeat < 50; ++repeat) {
    constexpr int kIterations = 20000;
    uint64_t sum = 0;
    const auto start = Clock::now();
    for (int i = 0; i < kIterations; ++i) {
      asm volatile("add $1, %0\nadd $1, %0\nadd $1, %0\nadd $1, %0\nadd $1, %0" : "+r"(sum));
    }
    best = std::max(best, 5e-9 * kIterations / seconds_since(start));
  }
  return best;
}

// Chains that begin alike and take the same steps are one to a compiler that sees so, and then the
// peak is up to four times what the machine can do. No core starts more than two products of 512
// bits a cycle.
TEST(ArithmeticLoops, ClaimNoMoreThanTwoVectorsACycle) {
  const auto check = [](std::span<const ArithmeticLoop> loops, double most_a_cycle) {
    for (const ArithmeticLoop& loop : loops) {
      if ((loop.needs & cpu_features()) != loop.needs) continue;
      constexpr int64_t kIterations = 20000;
      double best = 0;
      for (int repeat = 0; repeat < 20; ++repeat) {
        const auto start = Clock::now();
        EXPECT_NE(loop.run(kIterations), 1.25f);  // used, so that it is done
        best = std::max(best, loop.operations_per_iteration * kIterations / seconds_since(start));
      }
      EXPECT_LT(best * 1e-9 / clock_ghz(), 1.2 * most_a_cycle) << loop.instruction;
    }
  };
  check(arithmetic_loops_avx512(), 2 * 32);
  check(arithmetic_loops_avx512_bf16(), 2 * 64);
  check(arithmetic_loops_avx512_vnni(), 2 * 128);
  check(arithmetic_loops_avx_vnni(), 2 * 64);
}
#endif

TEST(MeasureMachine, FillsEveryLimit) {
  const auto device = make_cpu_device(2);
  const auto limits = measure_machine(*device, small_options(cpu_features()));
  ASSERT_TRUE(limits.has_value()) << limits.error().message();
  EXPECT_GT(limits->read_gb_s, 0);
  EXPECT_GE(limits->read_gb_s_best, limits->read_gb_s);
  EXPECT_EQ(limits->read_buffer_bytes, uint64_t{8} << 20);
  EXPECT_EQ(limits->num_threads, 2);
  EXPECT_FALSE(limits->cpu.empty());
  for (const Peak* peak : {&limits->fp32, &limits->bf16, &limits->int8}) {
    EXPECT_GT(peak->rate, 0);
    EXPECT_FALSE(peak->instruction.empty());
  }
}

TEST(MeasureMachine, ReadsABufferThatCachesHoldLittleOfAndSparesMemoryIfAsked) {
  const auto mib = [](const MachineOptions& options, uint64_t cache_mib, uint64_t available_mib) {
    return read_buffer_bytes(options, cache_mib << 20, available_mib << 20) >> 20;
  };
  const MachineOptions sparing{.spares_memory = true};
  for (const MachineOptions& options : {MachineOptions{}, sparing}) {
    EXPECT_EQ(mib(options, 0, 0), 256) << "the system says neither";
    EXPECT_EQ(mib(options, 16, 64 << 10), 256);
    EXPECT_EQ(mib(options, 105, 64 << 10), 840);
    EXPECT_EQ(mib(options, 105, 2 << 10), 512) << "a quarter of what is free";
    EXPECT_EQ(mib(options, 480, 2 << 10), 512);
    EXPECT_EQ(mib(options, 105, 1), 2) << "one part at least";
  }
  EXPECT_EQ(mib({}, 480, 64 << 10), 3840);
  EXPECT_EQ(mib(sparing, 480, 64 << 10), 1024);
  EXPECT_EQ(mib({}, 2304, 256 << 10), 18432);
  EXPECT_EQ(mib(sparing, 2304, 256 << 10), 4608) << "less would be read from the caches";
  EXPECT_EQ(mib({.read_buffer_bytes = uint64_t{2} << 30, .spares_memory = true}, 480, 1024), 2048)
      << "what is asked for";
}

TEST(MeasureMachine, UsesOnlyTheFeaturesAllowed) {
  const auto device = make_cpu_device(1);
  const auto limits = measure_machine(*device, small_options(kFeatureNone));
  ASSERT_TRUE(limits.has_value());
  EXPECT_EQ(limits->read_instruction, read_loops_portable()[0].instruction);
  EXPECT_EQ(limits->features, "none");
  for (const Peak* peak : {&limits->fp32, &limits->bf16, &limits->int8}) {
    EXPECT_TRUE(peak->instruction.starts_with("portable")) << peak->instruction;
  }
}

TEST(MeasureMachine, AgainTakesWhatWasFastest) {
  const auto device = make_cpu_device(2);
  MachineLimits first;
  first.read_instruction = read_loops_portable()[0].instruction;
  first.fp32.instruction = arithmetic_loops_portable()[0].instruction;
  MachineOptions options = small_options(cpu_features());
  options.again = &first;
  const auto limits = measure_machine(*device, options);
  ASSERT_TRUE(limits.has_value()) << limits.error().message();
  EXPECT_GT(limits->read_gb_s, 0);
  EXPECT_EQ(limits->read_instruction, first.read_instruction);
  for (const Peak* peak : {&limits->fp32, &limits->bf16, &limits->int8}) {
    if (peak->rate > 0) {
      EXPECT_TRUE(peak->instruction.starts_with("portable")) << peak->instruction;
    }
  }
}

TEST(MeasureMachine, AgainTriesAllWhereLimitsNameNoneAndFailsWhereTheirsIsUnknown) {
  const auto device = make_cpu_device(2);
  MachineLimits first;
  MachineOptions options = small_options(cpu_features());
  options.again = &first;
  const auto limits = measure_machine(*device, options);
  ASSERT_TRUE(limits.has_value()) << limits.error().message();
  EXPECT_GT(limits->read_gb_s, 0);
  first.read_instruction = "none of ours";
  EXPECT_FALSE(measure_machine(*device, options).has_value());
}

TEST(MeasureMachine, MeanIsOfTheRates) {
  const MachineLimits mean = mean_of(std::array<MachineLimits, 2>{
      {{.read_gb_s = 30, .bf16 = {100, "x"}}, {.read_gb_s = 50, .bf16 = {300, "x"}}}});
  EXPECT_EQ(mean.read_gb_s, 40);
  EXPECT_EQ(mean.bf16.rate, 200);
  EXPECT_EQ(mean.bf16.instruction, "x");
}

TEST(MeasureMachine, JsonHasTheFieldsOfTheContract) {
  MachineLimits limits;
  limits.cpu = "a CPU";
  limits.read_gb_s = 12.5;
  limits.bf16 = {250, "x"};
  const auto json = to_json(limits);
  EXPECT_EQ(json["cpu"], "a CPU");
  EXPECT_TRUE(json["gpu"].is_null());
  EXPECT_EQ(json["read_gb_s"], 12.5);
  EXPECT_EQ(json["peak"]["bf16_gflops"], 250);
  EXPECT_TRUE(json["peak"].contains("fp32_gflops"));
  EXPECT_TRUE(json["peak"].contains("int8_gops"));
  EXPECT_TRUE(json["peak"].contains("fp8_gflops"));
  limits.gpu = "a GPU";
  EXPECT_EQ(to_json(limits)["gpu"], "a GPU");
}

TEST(PeakOfRow, EightBitRowsAreHeldAgainstEightBits) {
  MachineLimits limits;
  limits.bf16 = {100, "x"};
  EXPECT_EQ(peak_of_row(limits, "experts_mxfp4_e4m3_gemm_sm90").rate, 100) << "none was measured";
  limits.fp8 = {190, "y"};
  EXPECT_EQ(peak_of_row(limits, "experts_mxfp4_e4m3_gemm_sm90").rate, 190);
  EXPECT_EQ(peak_of_row(limits, "experts_mxfp4_bf16_gemm_sm90").rate, 100);
  EXPECT_EQ(peak_of_row(limits, "attend_e4m3_prefill_wgmma_sm90").rate, 100) << "of its cache";
  EXPECT_EQ(peak_of_row(limits, "out_mxfp4_i8_gemv_avx2").rate, 100) << "none was measured";
  limits.int8 = {200, "z"};
  EXPECT_EQ(peak_of_row(limits, "out_mxfp4_i8_gemv_avx2").rate, 200);
  EXPECT_EQ(peak_of_row(limits, "out_mxfp4_i16_gemv_avx2").rate, 100);
}

TEST(ShareOfLimit, IsTheNearerOfBandwidthAndArithmetic) {
  MachineLimits limits;
  limits.read_gb_s = 10;
  const Peak peak{.rate = 100, .instruction = "x"};
  EXPECT_DOUBLE_EQ(share_of_limit(limits, peak, 10e9, 1e9, 2.0), 0.5);    // 1 s of reading in 2 s
  EXPECT_DOUBLE_EQ(share_of_limit(limits, peak, 1e9, 100e9, 4.0), 0.25);  // 1 s of arithmetic in 4
  EXPECT_EQ(share_of_limit(limits, peak, 1e9, 1e9, 0), 0);
}

}  // namespace
}  // namespace moxie
