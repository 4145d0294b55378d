// Reads sysfs; every file may be missing, and on virtual machines most are.
#include "lab/cpu_state.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace moxie {
namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

template <typename T>
std::optional<T> value_of(const fs::path& path) {
  std::ifstream file(path);
  T value{};
  return file >> value ? std::optional(value) : std::nullopt;
}

template <typename F>
void for_each_entry(const fs::path& folder, const std::string& prefix, F&& visit) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (at->path().filename().string().starts_with(prefix)) visit(at->path());
  }
}

// Where there is no scaling of frequencies, /proc/cpuinfo may tell a clock.
double clock_of_cpuinfo(const fs::path& root) {
  std::ifstream file(root / "proc/cpuinfo");
  std::string line;
  double sum = 0;
  int count = 0;
  while (std::getline(file, line)) {
    const size_t colon = line.find(':');
    if (!line.starts_with("cpu MHz") || colon == std::string::npos) continue;
    sum += std::strtod(line.c_str() + colon + 1, nullptr);
    ++count;
  }
  return count > 0 ? sum / count : 0;
}

void read_cores(const fs::path& root, CpuState* state) {
  double khz = 0;
  int num_clocks = 0;
  for_each_entry(root / "sys/devices/system/cpu", "cpu", [&](const fs::path& core) {
    if (const auto clock = value_of<double>(core / "cpufreq/scaling_cur_freq")) {
      khz += *clock;
      ++num_clocks;
    }
    if (const auto events = value_of<int64_t>(core / "thermal_throttle/core_throttle_count")) {
      state->throttle_events = state->throttle_events.value_or(0) + *events;
    }
  });
  state->clock_mhz = num_clocks > 0 ? khz * 1e-3 / num_clocks : clock_of_cpuinfo(root);
}

// "cpu  user nice system idle iowait irq softirq steal ...", in ticks of all cores.
std::optional<CpuState::Times> read_times(const fs::path& root) {
  std::ifstream file(root / "proc/stat");
  std::string name;
  double ticks[8] = {};
  file >> name;
  for (double& value : ticks) file >> value;
  const auto ticks_a_second = static_cast<double>(::sysconf(_SC_CLK_TCK));
  if (!file || name != "cpu" || ticks_a_second <= 0) return {};
  constexpr size_t kIdle = 3, kWaiting = 4;
  CpuState::Times times;
  for (size_t i = 0; i < std::size(ticks); ++i) {
    times.total_s += ticks[i] / ticks_a_second;
    if (i != kIdle && i != kWaiting) times.busy_s += ticks[i] / ticks_a_second;
  }
  rusage own{};
  if (::getrusage(RUSAGE_SELF, &own) != 0) return {};
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  times.own_s = seconds(own.ru_utime) + seconds(own.ru_stime);
  return times;
}

}  // namespace

CpuState read_cpu_state(const std::string& root_path) {
  const fs::path root = root_path;
  CpuState state;
  read_cores(root, &state);
  state.times = read_times(root);
  for_each_entry(root / "sys/class/thermal", "thermal_zone", [&](const fs::path& zone) {
    const auto millidegrees = value_of<double>(zone / "temp");
    if (millidegrees && first_line(zone / "type") == "x86_pkg_temp")
      state.temperature_celsius = *millidegrees * 1e-3;
  });
  CpuState energy = read_cpu_energy(root_path);
  state.packages = std::move(energy.packages);
  state.at = energy.at;
  return state;
}

CpuState read_cpu_energy(const std::string& root) {
  CpuState state;
  state.at = Clock::now();
  for_each_entry(fs::path(root) / "sys/class/powercap", "intel-rapl:", [&](const fs::path& zone) {
    const std::string name = first_line(zone / "name");  // "package-0"; "dram" lies within
    const auto uj = value_of<uint64_t>(zone / "energy_uj");
    const auto range = value_of<uint64_t>(zone / "max_energy_range_uj");
    if (name.starts_with("package") && uj && range) state.packages[name] = {*uj, *range};
  });
  return state;
}

std::optional<double> used_by_others(const CpuState& before, const CpuState& after) {
  if (!before.times || !after.times) return {};
  const double total_s = after.times->total_s - before.times->total_s;
  const double others_s =
      after.times->busy_s - before.times->busy_s - (after.times->own_s - before.times->own_s);
  if (!(total_s > 0)) return {};
  return std::clamp(others_s / total_s, 0.0, 1.0);
}

std::optional<double> joules_between(const CpuState& before, const CpuState& after) {
  // More than any package takes. A counter of 65 kJ goes round in less than two minutes of it.
  constexpr double kMostWatts = 600;
  const double most_joules =
      kMostWatts * std::chrono::duration<double>(after.at - before.at).count();
  double joules = 0;
  bool is_known = false;
  for (const auto& [name, end] : after.packages) {
    const auto start = before.packages.find(name);
    if (start == before.packages.end()) continue;
    if (most_joules > 1e-6 * static_cast<double>(end.range_uj)) return std::nullopt;
    const uint64_t round = end.uj < start->second.uj ? end.range_uj : 0;
    joules += 1e-6 * static_cast<double>(end.uj + round - start->second.uj);
    is_known = true;
  }
  return is_known ? std::optional(joules) : std::nullopt;
}

std::optional<double> CpuEnergy::joules() {
  if (!sum_) return sum_;
  const CpuState now = read_cpu_energy(root_);
  const auto more = joules_between(std::exchange(last_, now), now);
  sum_ = more ? std::optional(*sum_ + *more) : std::nullopt;
  return sum_;
}

}  // namespace moxie
