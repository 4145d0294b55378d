// Readings of the CPU from a folder that looks like the system's.
#include "lab/cpu_state.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/device.h"
#include "lab/run_watch.h"

namespace moxie {
namespace {

namespace fs = std::filesystem;

class CpuStateTest : public testing::Test {
 protected:
  CpuStateTest() : root_(fs::path(testing::TempDir()) / "moxie_cpu_state") {
    fs::remove_all(root_);
  }
  ~CpuStateTest() override { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << "\n";
  }
  CpuState read() const { return read_cpu_state(root_.string()); }
  fs::path root_;
};

TEST_F(CpuStateTest, ReadsWhatIsThere) {
  for (const auto& [core, khz] : {std::pair{"cpu0", "2000000"}, std::pair{"cpu1", "3000000"}}) {
    const std::string folder = std::string("sys/devices/system/cpu/") + core;
    write(folder + "/cpufreq/scaling_cur_freq", khz);
    write(folder + "/thermal_throttle/core_throttle_count", "4");
  }
  write("sys/class/thermal/thermal_zone3/type", "x86_pkg_temp");
  write("sys/class/thermal/thermal_zone3/temp", "51500");
  const CpuState state = read();
  EXPECT_DOUBLE_EQ(state.clock_mhz, 2500);
  EXPECT_EQ(state.throttle_events, 8);
  EXPECT_DOUBLE_EQ(state.temperature_celsius.value_or(0), 51.5);
  EXPECT_TRUE(state.packages.empty());
}

TEST_F(CpuStateTest, IsEmptyWhereNothingIsTold) {
  const CpuState state = read();
  EXPECT_EQ(state.clock_mhz, 0);
  EXPECT_FALSE(state.throttle_events.has_value());
  EXPECT_FALSE(joules_between(state, state).has_value());
}

TEST_F(CpuStateTest, TakesTheClockOfCpuinfoInstead) {
  write("proc/cpuinfo", "model name : x\ncpu MHz\t\t: 2100.5\ncpu MHz\t\t: 2300.5");
  EXPECT_DOUBLE_EQ(read().clock_mhz, 2200.5);
}

TEST_F(CpuStateTest, TellsWhatOthersUsed) {
  write("proc/stat", "cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3");
  CpuState before = read();
  ASSERT_TRUE(before.times.has_value());
  // 10 s of two cores: 4 s busy, of which this process had 1 s.
  write("proc/stat", "cpu  300 0 150 2200 250 50 25 25 0 0");
  CpuState after = read();
  before.times->own_s = 2;
  after.times->own_s = 3;
  EXPECT_NEAR(used_by_others(before, after).value_or(-1), 0.15, 1e-9);
  after.times->own_s = 9;
  EXPECT_EQ(used_by_others(before, after), 0.0);
  EXPECT_FALSE(used_by_others(before, before).has_value());
  write("proc/stat", "intr 5");
  EXPECT_FALSE(read().times.has_value());
}

TEST_F(CpuStateTest, CountsEnergyOverTheEndOfACounter) {
  const auto write_package = [&](const std::string& number, const std::string& uj) {
    const std::string zone = "sys/class/powercap/intel-rapl:" + number;
    write(zone + "/name", "package-" + number);
    write(zone + "/max_energy_range_uj", "65532610987");
    write(zone + "/energy_uj", uj);
  };
  write("sys/class/powercap/intel-rapl:0:0/name", "core");  // a part of the package
  write("sys/class/powercap/intel-rapl:0:0/max_energy_range_uj", "10000000");
  write("sys/class/powercap/intel-rapl:0:0/energy_uj", "1");
  write_package("0", "65531610987");
  write_package("1", "1000000");
  CpuState before = read();
  write_package("0", "500000");
  write_package("1", "1250000");
  const CpuState after = read();
  EXPECT_NEAR(joules_between(before, after).value_or(0), 1.5 + 0.25, 1e-6);
  before.at = after.at - std::chrono::seconds(100);
  EXPECT_TRUE(joules_between(before, after).has_value());
  before.at = after.at - std::chrono::seconds(120);
  EXPECT_FALSE(joules_between(before, after).has_value()) << "it may have gone round twice";
}

TEST_F(CpuStateTest, EnergyAddsUpOverSeveralRounds) {
  const auto write_package = [&](const std::string& uj) {
    write("sys/class/powercap/intel-rapl:0/name", "package-0");
    write("sys/class/powercap/intel-rapl:0/max_energy_range_uj", "65532610987");
    write("sys/class/powercap/intel-rapl:0/energy_uj", uj);
  };
  write_package("0");
  const auto device = make_cpu_device(1);
  RunWatch watch(*device, true, root_.string()), in_part(*device, false, root_.string());
  Record record;
  double expected = 0;
  for (int i = 0; i < 3; ++i) {
    for (const char* uj : {"50000000000", "10000000000"}) {
      write_package(uj);
      watch.finish(&record);
    }
    expected += (i == 0 ? 50000 : 40000) + 25532.610987;
    EXPECT_NEAR(record.energy_joules.value_or(0), expected, 1e-3);
  }
  EXPECT_EQ(record.energy_source, "rapl");
  Record other;
  in_part.finish(&other);
  EXPECT_FALSE(other.energy_joules.has_value()) << "more works than it counts";
  EXPECT_EQ(other.energy_source, "");
}

}  // namespace
}  // namespace moxie
