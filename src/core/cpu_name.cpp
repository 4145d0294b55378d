// Names of cores are those of Arm's and the makers' manuals, by the numbers of their MIDR
// registers.
#include "core/cpu_name.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace moxie {
namespace {

struct Core {
  const char* implementer;
  const char* part;
  const char* name;
};

constexpr Core kCores[] = {
    {"0x41", "0xd03", "Cortex-A53"},  {"0x41", "0xd05", "Cortex-A55"},
    {"0x41", "0xd08", "Cortex-A72"},  {"0x41", "0xd0b", "Cortex-A76"},
    {"0x41", "0xd0c", "Neoverse-N1"}, {"0x41", "0xd40", "Neoverse-V1"},
    {"0x41", "0xd41", "Cortex-A78"},  {"0x41", "0xd42", "Cortex-A78AE"},
    {"0x41", "0xd44", "Cortex-X1"},   {"0x41", "0xd49", "Neoverse-N2"},
    {"0x41", "0xd4f", "Neoverse-V2"}, {"0x41", "0xd84", "Neoverse-V3"},
    {"0x41", "0xd85", "Cortex-X925"}, {"0x41", "0xd87", "Cortex-A725"},
    {"0x41", "0xd8e", "Neoverse-N3"}, {"0x4e", "0x004", "Carmel"},
    {"0xc0", "0xac3", "Ampere-1"},
};

std::string core_name(const std::string& implementer, const std::string& part) {
  for (const Core& core : kCores) {
    if (implementer == core.implementer && part == core.part) return core.name;
  }
  return "part " + part + " of implementer " + implementer;
}

}  // namespace

std::string cpu_name_of(std::istream& cpuinfo) {
  std::vector<std::pair<std::string, int>> kinds;  // in the order of their first core
  std::string line, implementer;
  while (std::getline(cpuinfo, line)) {
    const auto colon = line.find(": ");
    if (colon == std::string::npos) continue;
    const std::string value = line.substr(colon + 2);
    if (line.starts_with("model name")) return value;
    if (line.starts_with("CPU implementer")) implementer = value;
    if (!line.starts_with("CPU part")) continue;
    const std::string name = core_name(implementer, value);
    auto kind = std::find_if(kinds.begin(), kinds.end(),
                             [&](const auto& known) { return known.first == name; });
    if (kind == kinds.end()) kind = kinds.insert(kind, {name, 0});
    ++kind->second;
  }
  std::string text;
  for (const auto& [name, count] : kinds) {
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " x " + name;
  }
  return text.empty() ? "CPU" : text;
}

}  // namespace moxie
