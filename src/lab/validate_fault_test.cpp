// Faults around the rows (choice, runner, service, samples, record): each is found by the level
// that should.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

#include "lab/testing/validate_case.h"
#include "lab/validate_regression.h"

namespace moxie::testing {
namespace {

using Level = ValidateLevel;

// Loads with another row than the options have.
Result<std::unique_ptr<Engine>> load_with_reference_out(EngineOptions options) {
  options.kernels.emplace_back("out=reference");
  return Engine::load(options);
}

TEST_F(ValidateTest, LevelOneFindsAModelThatDoesNotLoad) {
  ValidateOptions o = options(Level::kPath);
  o.engine.model = "/no/such/model";
  expect_caught(run(o), Level::kSmoke, "ran to its end");
}

TEST_F(ValidateTest, LevelOneAndAHalfFindsAnotherRow) {
  ValidateOptions o = options(Level::kCorrectness);
  o.seams.load = load_with_reference_out;
  const ValidateReport report = run(o);
  expect_caught(report, Level::kPath, "rows that ran");
  ASSERT_EQ(report.invalid_because.size(), 1u);
  EXPECT_NE(report.invalid_because[0].find("out=out_reference ran"), std::string::npos)
      << report.invalid_because[0];
}

TEST_F(ValidateTest, LevelOneAndAHalfFindsALaunchThatRanTwice) {
  class TwiceRunner : public PassingRunner {
   public:
    using PassingRunner::PassingRunner;
    Status run(const HostArrays& arrays) override {
      if (arrays.token_ids.size() == 17) static_cast<void>(PassingRunner::run(arrays));
      return PassingRunner::run(arrays);
    }
  };
  ValidateOptions o = options(Level::kCorrectness);
  o.seams.make_runner = [](Engine& engine, bool loops) {
    return std::make_unique<TwiceRunner>(make_step_runner(engine, loops));
  };
  expect_caught(run(o), Level::kPath, "rows that ran");
}

TEST_F(ValidateTest, LevelOneAndAHalfLooksForExpectedAndForbiddenRows) {
  ValidateOptions o = options(Level::kPath);
  o.engine.kernels = {"out=reference"};
  o.expect = {"out=reference"};
  o.forbid = {"qkv=reference"};
  expect_sound(run(o));
  o.expect = {"qkv=reference"};
  expect_caught(run(o), Level::kPath, "--expect qkv=reference");
  o.expect = {};
  o.forbid = {"out=out_reference"};
  const ValidateReport report = run(o);
  expect_caught(report, Level::kPath, "--forbid out=out_reference");
  EXPECT_EQ(report.invalid_because.size(), 1u);
}

TEST_F(ValidateTest, AnUnknownRowIsAnError) {
  ValidateOptions o = options(Level::kPath);
  o.expect = {"experts=experts_any_f32_gemv_portabl"};
  const auto report = validate(o);
  ASSERT_FALSE(report.has_value());
  EXPECT_NE(report.error().message().find("--expect"), std::string::npos);
  EXPECT_NE(report.error().message().find("experts_any_f32_gemv_portable"), std::string::npos);
}

TEST_F(ValidateTest, LevelTwoFindsAStalePrefix) {
  // A prompt that begins behind pages of the cache finds other keys in the first of them.
  class StaleRunner : public PassingRunner {
   public:
    StaleRunner(Engine& engine, bool loops)
        : PassingRunner(make_step_runner(engine, loops)), engine_(engine) {}
    Status run(const HostArrays& arrays) override {
      if (arrays.positions[0] > 0 && arrays.token_ids.size() > 1) {
        std::vector<KvLayer> layers;
        engine_.kv().layer_views(arrays.full_tables.data(), arrays.window_tables.data(),
                                 arrays.table_stride, &layers);
        for (const KvLayer& layer : layers)
          if (const int32_t page = layer.page_of(0, 0); page >= 0)
            std::memset(layer.k + page * layer.page_stride_bytes, 0,
                        static_cast<size_t>(layer.page_stride_bytes));
      }
      return PassingRunner::run(arrays);
    }

   private:
    Engine& engine_;
  };
  ValidateOptions o = options(Level::kStress);
  o.seams.make_runner = [](Engine& engine, bool loops) {
    return std::make_unique<StaleRunner>(engine, loops);
  };
  expect_caught(run(o), Level::kCorrectness, "same tokens, from the prefix cache");
}

TEST_F(ValidateTest, LevelTwoFindsAGraphThatDiffersFromTheLaunches) {
  class OtherLoop : public PassingRunner {
   public:
    using PassingRunner::PassingRunner;
    Result<bool> take(std::span<SampleAnswer> answers) override {
      auto taken = PassingRunner::take(answers);
      if (taken && *taken && ++num_taken_ == 5) answers[0].token ^= 1;
      return taken;
    }

   private:
    int num_taken_ = 0;
  };
  ValidateOptions o = options(Level::kStress);
  o.seams.make_runner = [](Engine& engine, bool loops) {
    return std::make_unique<OtherLoop>(make_step_runner(engine, loops));
  };
  expect_caught(run(o), Level::kCorrectness, "same tokens, in the decode loop");
}

// Calls `leak` for each launch of a prompt, on the thread that owns the cache.
class LeakingRunner : public PassingRunner {
 public:
  LeakingRunner(std::unique_ptr<StepRunner> runner, std::function<void(KvCache&)> leak)
      : PassingRunner(std::move(runner)), leak_(std::move(leak)) {}
  void build(std::span<const Chunk> chunks, InLoop in_loop, HostArrays* arrays) override {
    PassingRunner::build(chunks, in_loop, arrays);
    if (arrays->token_ids.size() == 32) leak_(kv());  // a prompt of level 3
  }

 private:
  std::function<void(KvCache&)> leak_;
};

TEST_F(ValidateTest, LevelThreeFindsAPageOfTheCacheThatIsNeverFreed) {
  ValidateOptions o = options(Level::kBenchmark);
  int num_leaked = 0;
  o.seams.make_runner = [&](Engine& engine, bool loops) {
    return std::make_unique<LeakingRunner>(make_step_runner(engine, loops), [&](KvCache& kv) {
      if (num_leaked < 2 && kv.append(kv.add_sequence(), 1)) ++num_leaked;
    });
  };
  expect_caught(run(o), Level::kStress, "pages of the cache still held");
  EXPECT_EQ(num_leaked, 2);
}

TEST_F(ValidateTest, LevelThreeFindsAHeapThatGrowsByAPageARequest) {
  ValidateOptions o = options(Level::kBenchmark);
  o.prefix_cache = false;  // so that every request has a launch of its whole prompt
  std::vector<std::unique_ptr<char[]>> leaked;
  leaked.reserve(10000);
  o.seams.make_runner = [&](Engine& engine, bool loops) {
    return std::make_unique<LeakingRunner>(make_step_runner(engine, loops), [&](KvCache&) {
      leaked.push_back(std::make_unique<char[]>(4096));
    });
  };
  expect_caught(run(o), Level::kStress, "growth of the heap");
}

TEST_F(ValidateTest, LevelThreeFindsResidentMemoryThatGrows) {
  ValidateOptions o = options(Level::kBenchmark);
  uint64_t grown_bytes = 0;
  o.seams.memory = [&] {
    MemoryInUse use = memory_in_use();
    use.resident_bytes += grown_bytes += uint64_t{64} << 20;
    return use;
  };
  expect_caught(run(o), Level::kStress, "growth of resident memory");
}

TEST_F(ValidateTest, LevelThreeFindsARequestThatIsLostAmongOthers) {
  ValidateOptions o = options(Level::kBenchmark);
  std::atomic<bool> is_stress = false;
  o.on_progress = [&](const std::string& line) {
    if (line.starts_with("level 3,")) is_stress = true;
  };
  o.seams.make_service = [&](std::unique_ptr<StepRunner> runner, ServiceOptions service) {
    // Every launch of so many: the scheduler starts its requests anew a few times, then ends them.
    service.fault = [&](int64_t, std::span<const int32_t> ids) -> Status {
      if (is_stress && ids.size() == 4) return fail("planted");
      return {};
    };
    return Service::create(std::move(runner), service);
  };
  expect_caught(run(o), Level::kStress, "at once");
}

TEST_F(ValidateTest, LevelFourFindsAPrefixCacheThatIsOn) {
  ValidateOptions o = options(Level::kBenchmark);
  bool is_bench = false;
  o.on_progress = [&](const std::string& line) {
    is_bench = is_bench || line.starts_with("level 4,");
  };
  o.seams.make_service = [&](std::unique_ptr<StepRunner> runner, ServiceOptions service) {
    if (is_bench) service.prefix_cache = true;
    return Service::create(std::move(runner), service);
  };
  expect_caught(run(o), Level::kBenchmark, "prompts were computed");
}

TEST_F(ValidateTest, LevelFourFindsAnotherRowInItsLaunches) {
  ValidateOptions o = options(Level::kRegression);
  o.seams.run_bench = [](Engine& engine, const BenchTest& test, int32_t repetitions,
                         const MachineLimits& limits) -> Result<BenchResult> {
    auto other = load_with_reference_out(engine.options());
    if (!other) return fail(std::move(other.error()));
    return run_bench(**other, test, repetitions, limits);
  };
  const ValidateReport report = run(o);
  expect_caught(report, Level::kBenchmark, "rows of these launches");
  EXPECT_FALSE(report.invalid_because.empty());
}

TEST_F(ValidateTest, LevelFourFindsATestWithoutASpeed) {
  ValidateOptions o = options(Level::kBenchmark);
  o.seams.run_bench = [](Engine& engine, const BenchTest& test, int32_t repetitions,
                         const MachineLimits& limits) {
    auto result = run_bench(engine, test, repetitions, limits);
    if (result && test.n_gen == 128) result->tok_s.back() = 0;
    return result;
  };
  expect_caught(run(o), Level::kBenchmark, "speeds");
}

// Level 5 on given speeds and memory, so that nothing depends on the machine.
struct Measured {
  double factor = 1;
  uint64_t memory_bytes = 3'000'000'000;
  double launches_s = 5e5;
};

class RegressionTest : public ValidateTest {
 protected:
  static ValidateOptions measured(const Measured& m) {
    ValidateOptions o = options(Level::kRegression);
    o.seams.peak_memory_bytes = [m] { return m.memory_bytes; };
    o.seams.cpu_state = [] { return CpuState(); };
    o.seams.limits = [](Device&) { return MachineLimits{.num_threads = 2, .read_gb_s = 20}; };
    o.seams.run_bench = [m](Engine& engine, const BenchTest& test, int32_t repetitions,
                            const MachineLimits& limits) {
      auto result = run_bench(engine, test, repetitions, limits);
      if (!result) return result;
      result->read_gb_s.clear();
      const double noise[] = {0.996, 1.004, 1, 0.998, 1.001};
      for (size_t i = 0; i < result->tok_s.size(); ++i)
        result->tok_s[i] = 1000 * m.factor * noise[i % std::size(noise)];
      result->launches_s.assign(result->tok_s.size(), m.launches_s);
      return result;
    };
    return o;
  }
  // The record of a run before.
  static std::string record_of_before() {
    static const std::string path = make_record();
    return path;
  }

 private:
  static std::string make_record() {
    ValidateOptions o = measured({});
    o.last = Level::kBenchmark;
    const std::string path = ::testing::TempDir() + "moxie-validate-record.json";
    const Status written = write_record(record_of(run(o), {}), path);
    CHECK(written.has_value(), written ? "" : written.error().message());
    return path;
  }
};

TEST_F(RegressionTest, LevelFiveFindsAKernelThatIsFivePercentSlower) {
  ValidateOptions o = measured({.factor = 0.95});
  o.against = record_of_before();
  expect_caught(run(o), Level::kRegression, "tg32");
}

// A host that starts kernels more slowly is no slower kernel either.
TEST_F(RegressionTest, LevelFiveOmitsWhatTheHostsRateOfLaunchesExplains) {
  ValidateOptions o = measured({.factor = 0.76, .launches_s = 3.75e5});
  o.against = record_of_before();
  const ValidateReport report = run(o);
  expect_sound(report);
  const auto& omitted = report.levels.back().omissions;
  EXPECT_TRUE(std::ranges::any_of(omitted, [](const auto& one) {
    return one.name == "tg32" && one.reason.find("the host starts kernels") != std::string::npos;
  }));
}

// A machine that is slow while one test runs is no slower kernel.
TEST_F(RegressionTest, LevelFiveMeasuresAgainWhatIsSlower) {
  for (const int slow_runs : {1, 2, 3}) {
    ValidateOptions o = measured({});
    o.against = record_of_before();
    const auto steady = o.seams.run_bench;
    int num_runs = 0;
    o.seams.run_bench = [&](Engine& engine, const BenchTest& test, int32_t repetitions,
                            const MachineLimits& limits) {
      auto result = steady(engine, test, repetitions, limits);
      if (result && test.name() == "tg32" && num_runs++ < slow_runs)
        for (double& speed : result->tok_s) speed *= 0.9;
      return result;
    };
    const ValidateReport report = run(o);
    EXPECT_EQ(num_runs, std::min(slow_runs, 2) + 1);
    if (slow_runs == 3)
      expect_caught(report, Level::kRegression, "tg32");
    else
      expect_sound(report);
  }
}

TEST_F(RegressionTest, LevelFiveFindsTwoGigabytesMore) {
  ValidateOptions o = measured({.memory_bytes = 5'000'000'000});
  o.against = record_of_before();
  expect_caught(run(o), Level::kRegression, "peak of memory");
}

TEST_F(RegressionTest, LevelFivePassesWhatIsTheSameOrOnePercentSlower) {
  const std::string before = record_of_before();
  for (const double factor : {1.0, 0.99}) {
    ValidateOptions o = measured({.factor = factor});
    o.against = before;
    expect_sound(run(o));
  }
}

TEST_F(RegressionTest, LevelFiveWithoutARecordIsNotRun) {
  const ValidateReport report = run(measured({}));
  EXPECT_FALSE(report.passed());
  EXPECT_TRUE(report.find(Level::kBenchmark)->passed());
  EXPECT_NE(report.find(Level::kRegression)->not_run.find("--against"), std::string::npos);
}

TEST_F(RegressionTest, ARecordThatCannotBeReadIsAnErrorBeforeAnythingRuns) {
  const std::string path = ::testing::TempDir() + "moxie-validate-no-record.json";
  for (const char* text :
       {"", "{", "[]", R"({"results": 3})", R"({"results": [{"name": "a"}]})",
        R"({"results": [{"name": "a", "unit": "s", "samples": ["x"]}]})", R"({"results": []})"}) {
    std::ofstream(path) << text;
    ValidateOptions o = measured({});
    o.against = path;
    const auto report = validate(o);
    ASSERT_FALSE(report.has_value()) << text;
    EXPECT_NE(report.error().message().find(path), std::string::npos);
  }
}

}  // namespace
}  // namespace moxie::testing
