// Cores and nodes by sched_getaffinity and /sys, memory by mbind.
#include "core/numa.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

namespace moxie {
namespace {

constexpr int kMostCores = CPU_SETSIZE;
constexpr int kMostNodes = 1024;

// The number that `text` consists of, or -1.
int number_of(std::string_view text) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() ? value : -1;
}

std::vector<int> affinity_mask() {
  std::vector<int> cores;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int core = 0; core < kMostCores; ++core)
      if (CPU_ISSET(static_cast<size_t>(core), &set)) cores.push_back(core);
  }
  if (cores.empty()) cores.push_back(0);
  return cores;
}

}  // namespace

std::vector<int> parse_core_list(std::string_view list) {
  std::vector<int> cores;
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    std::string_view range = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    while (!range.empty() && range.back() <= ' ') range.remove_suffix(1);
    const size_t dash = std::min(range.find('-'), range.size());
    const int first = number_of(range.substr(0, dash));
    const int last = dash < range.size() ? number_of(range.substr(dash + 1)) : first;
    if (first < 0 || last >= kMostCores) continue;
    for (int core = first; core <= last; ++core) cores.push_back(core);
  }
  return cores;
}

int num_usable_cores() { return static_cast<int>(affinity_mask().size()); }

std::vector<UsableCore> usable_cores(const std::string& nodes_folder) {
  std::vector<UsableCore> cores;
  for (const int core : affinity_mask()) cores.push_back({core, 0});
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(nodes_folder, error)) {
    const std::string name = entry.path().filename();
    const int node = name.starts_with("node") ? number_of(std::string_view(name).substr(4)) : -1;
    std::string list;
    if (node < 0 || !std::getline(std::ifstream(entry.path() / "cpulist"), list)) continue;
    for (const int core : parse_core_list(list)) {
      const auto at = std::find(cores.begin(), cores.end(), UsableCore{core, 0});
      if (at != cores.end()) at->node = node;
    }
  }
  std::sort(cores.begin(), cores.end(), [](const UsableCore& a, const UsableCore& b) {
    return std::pair(a.node, a.core) < std::pair(b.node, b.core);
  });
  return cores;
}

bool keep_on(std::span<const UsableCore> cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const UsableCore& core : cores) CPU_SET(static_cast<size_t>(core.core), &set);
  return sched_setaffinity(0, sizeof(set), &set) == 0;
}

Status prefer_node(const std::byte* begin, const std::byte* end, int node) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = round_up(reinterpret_cast<uintptr_t>(begin), page);
  const uintptr_t last = reinterpret_cast<uintptr_t>(end) / page * page;
  if (first >= last) return {};
  CHECK(node >= 0 && node < kMostNodes, std::to_string(node));
  constexpr int kWordBits = 8 * sizeof(unsigned long);
  std::array<unsigned long, kMostNodes / kWordBits> mask{};
  mask[static_cast<size_t>(node / kWordBits)] = 1ul << (node % kWordBits);
  // The kernel reads one bit less than the number passed.
  if (syscall(SYS_mbind, first, last - first, MPOL_PREFERRED, mask.data(), kMostNodes + 1ul, 0) !=
      0)
    return fail(std::string("mbind: ") + std::strerror(errno), "NUMA node " + std::to_string(node),
                "weights are read from wherever their pages are; in a container allow mbind");
  return {};
}

}  // namespace moxie
