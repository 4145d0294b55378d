// Energy of samples by a counter that is told what to say.
#include "lab/energy.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "lab/bench_rounds.h"
#include "lab/bench_sampler.h"

namespace moxie {
namespace {

namespace fs = std::filesystem;

// A device that takes `watts`, and a clock.
class FakeDevice {
 public:
  explicit FakeDevice(double step_s = 0.1)
      : meter_({[this] {
                  ++num_readings;
                  return joules_;
                },
                step_s}) {}

  FakeDevice& pause(double seconds, double watts) {
    pass(seconds, watts);
    return *this;
  }
  FakeDevice& sample(double tokens, double seconds, double watts) {
    meter_.begin(now_);
    pass(seconds, watts);
    meter_.end(tokens, now_);
    return *this;
  }
  void set_counter(std::optional<double> joules) { joules_ = joules; }
  const EnergyUse& use() const { return meter_.use(); }
  double joules_per_token() const { return use().joules_per_token().value_or(-1); }

  int num_readings = 0;

 private:
  void pass(double seconds, double watts) {
    now_ += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    if (joules_) *joules_ += seconds * watts;
  }

  std::optional<double> joules_ = 5000;
  Clock::time_point now_{};
  EnergyMeter meter_;
};

TEST(EnergyMeter, DividesByTheTokensOfAllSamples) {
  FakeDevice device;
  device.sample(100, 2, 300).sample(100, 2, 500);
  EXPECT_NEAR(device.joules_per_token(), 1600.0 / 200, 1e-9);
}

TEST(EnergyMeter, LeavesOutWhatLiesBetweenSamples) {
  FakeDevice device;
  device.pause(9, 100).sample(50, 2, 300).pause(1, 700).sample(50, 2, 300).pause(9, 100);
  EXPECT_NEAR(device.joules_per_token(), 1200.0 / 100, 1e-9);
  EXPECT_NEAR(device.use().seconds, 4, 1e-9);
  EXPECT_NEAR(device.use().unsure_s, 0.2, 1e-9);
}

TEST(EnergyMeter, SamplesWithHardlyAPauseAreOneStretch) {
  FakeDevice device;
  for (int i = 0; i < 5; ++i) device.sample(10, 0.4, 300).pause(0.004, 100);
  EXPECT_NEAR(device.joules_per_token(), (5 * 120 + 4 * 0.4) / 50, 1e-9);
  EXPECT_NEAR(device.use().unsure_s, 0.1, 1e-9);
  EXPECT_EQ(device.num_readings, 6);
}

TEST(EnergyMeter, SaysNothingOfShortTests) {
  FakeDevice shorter, longer, torn, fine(0.001);
  EXPECT_EQ(shorter.sample(100, 0.99, 300).joules_per_token(), -1);
  EXPECT_NEAR(longer.sample(100, 1.01, 300).joules_per_token(), 3.03, 1e-9);
  for (int i = 0; i < 5; ++i) {  // 2 s in all, each by itself
    torn.sample(10, 0.4, 300).pause(0.1, 100);
    fine.sample(10, 0.4, 300).pause(0.1, 100);
  }
  EXPECT_EQ(torn.joules_per_token(), -1);
  EXPECT_NEAR(fine.joules_per_token(), 12, 1e-9);
  EXPECT_EQ(FakeDevice().joules_per_token(), -1) << "no sample";
}

TEST(EnergyMeter, SaysNothingIfAReadingFails) {
  FakeDevice never, at_last, back, still;
  never.set_counter({});
  never.sample(100, 2, 300).sample(100, 2, 300);
  EXPECT_EQ(never.joules_per_token(), -1);
  EXPECT_EQ(never.num_readings, 1) << "is not asked again";
  at_last.sample(100, 2, 300).set_counter({});
  at_last.sample(100, 2, 300).set_counter(9000);
  EXPECT_EQ(at_last.sample(100, 2, 300).joules_per_token(), -1);
  EXPECT_EQ(back.sample(100, 2, 300).sample(100, 2, -200).joules_per_token(), -1);
  EXPECT_EQ(still.sample(100, 2, 0).joules_per_token(), -1) << "a counter that never advances";
  EnergyMeter none{EnergyCounter{}};
  none.begin();
  none.end(100);
  EXPECT_FALSE(none.use().joules_per_token().has_value());
}

TEST(EnergyUse, AddsUpRounds) {
  FakeDevice a, b, unreadable;
  EnergyUse all = a.sample(100, 2, 300).use();
  all.add(b.sample(300, 2, 500).use());
  EXPECT_NEAR(all.joules_per_token().value_or(-1), 1600.0 / 400, 1e-9);
  EXPECT_NEAR(all.unsure_s, 0.2, 1e-9);
  unreadable.set_counter({});
  all.add(unreadable.sample(100, 2, 300).use());
  EXPECT_FALSE(all.joules_per_token().has_value());
}

class SampledEnergy : public testing::Test {
 protected:
  void SetUp() override {
    EngineOptions options{.device = "cpu", .threads = 2, .show_progress = false};
    fit_engine({kPrompt, kDecode}, &options);
    auto engine = Engine::load(options);
    ASSERT_TRUE(engine.has_value()) << engine.error().message();
    engine_ = std::move(*engine);
    limits_.read_gb_s = 10;
    limits_.fp32.rate = 50;
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }
  void write_package(const std::string& uj) {
    const fs::path zone = root_ / "sys/class/powercap/intel-rapl:0";
    fs::create_directories(zone);
    std::ofstream(zone / "name") << "package-0\n";
    std::ofstream(zone / "max_energy_range_uj") << "65532610987\n";
    std::ofstream(zone / "energy_uj") << uj << "\n";
  }

  static constexpr BenchTest kPrompt{.n_prompt = 6, .depth = 5};
  static constexpr BenchTest kDecode{.n_gen = 3, .depth = 5, .streams = 2};
  const fs::path root_ = fs::path(testing::TempDir()) / "moxie_energy";
  std::unique_ptr<Engine> engine_;
  MachineLimits limits_;
};

TEST_F(SampledEnergy, CountsTheTokensOfAllStreamsAndNoWarmUp) {
  for (const BenchTest& test : {kPrompt, kDecode}) {
    double joules = 0;
    auto sampler =
        BenchSampler::start(*engine_, test, limits_, {[&joules] { return joules += 100; }, 0});
    ASSERT_TRUE(sampler.has_value()) << sampler.error().message();
    EXPECT_EQ(joules, 0) << "the warm-up is not measured";
    for (int i = 0; i < 3; ++i) ASSERT_TRUE((*sampler)->sample(false).has_value());
    const BenchResult one = (*sampler)->result();
    EXPECT_EQ(one.energy.joules, 300);
    EXPECT_EQ(one.energy.tokens, 3 * 6);
    EXPECT_GT(one.energy.seconds, 0);
    BenchRounds rounds;
    rounds.add(one);
    rounds.add(one);
    EXPECT_EQ(rounds.result().energy.joules, 600);
    EXPECT_EQ(rounds.result().energy.tokens, 6 * 6);
  }
}

TEST_F(SampledEnergy, ReadsThePackagesOfTheCpu) {
  write_package("65531610987");
  const EnergyCounter counter = energy_counter_of(*engine_, root_.string());
  const double before = counter.joules().value_or(-1);
  write_package("65532110987");
  EXPECT_NEAR(counter.joules().value_or(-1) - before, 0.5, 1e-6);
  write_package("250000");  // behind the end of the counter
  EXPECT_NEAR(counter.joules().value_or(-1) - before, 1.25, 1e-6);
  fs::remove_all(root_);
  EXPECT_FALSE(counter.joules().has_value());
  EXPECT_FALSE(energy_counter_of(*engine_, root_.string()).joules().has_value());
}

}  // namespace
}  // namespace moxie
