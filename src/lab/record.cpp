// Collects facts of the build and the system: /proc, /sys and uname.
#include "lab/record.h"

#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>
#define XXH_INLINE_ALL  // one hash of one name: no library to link
#include <xxhash.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>

#include "core/device.h"
#include "core/numa.h"
#include "kernels/features.h"
#include "lab/commit.h"

namespace moxie {
namespace {

constexpr const char* kUnknown = "unknown";

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  return std::getline(file, line) ? line : kUnknown;
}

// The value of KEY=value or KEY="value" in a file of such lines.
std::string assigned_value(const char* path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with(key + "=")) continue;
    std::string value = line.substr(key.size() + 1);
    if (value.size() >= 2 && value.front() == '"') value = value.substr(1, value.size() - 2);
    return value;
  }
  return kUnknown;
}

// "always [madvise] never" -> "madvise"
std::string bracketed_word(const std::string& line) {
  const size_t open = line.find('['), close = line.find(']');
  if (open == std::string::npos || close == std::string::npos || close < open) return kUnknown;
  return line.substr(open + 1, close - open - 1);
}

std::string hostname_hash() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return kUnknown;
  char text[17];
  std::snprintf(
      text, sizeof text, "%016llx",
      static_cast<unsigned long long>(XXH3_64bits(name, std::char_traits<char>::length(name))));
  return text;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  return std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts) > 0 ? text : kUnknown;
}

std::string compiler_name() {
#if defined(__clang__)
  return "clang " __clang_version__;
#elif defined(__GNUC__)
  return "g++ " __VERSION__;
#else
  return kUnknown;
#endif
}

}  // namespace

Environment build_environment() {
  Environment environment;
  environment.version = MOXIE_VERSION;
  environment.commit = kCommit;
  environment.dirty = kCommitDirty;
  environment.build_type = MOXIE_BUILD_TYPE;
  environment.build_flags = MOXIE_BUILD_FLAGS;
  environment.compiler = compiler_name();
  environment.cuda_version = MOXIE_CUDA_VERSION;
  return environment;
}

Environment collect_environment() {
  Environment environment = build_environment();
  environment.time_utc = utc_now();
  environment.hostname_hash = hostname_hash();
  environment.system = assigned_value("/etc/os-release", "PRETTY_NAME");
  utsname names{};
  environment.kernel = ::uname(&names) == 0 ? names.release : kUnknown;
  environment.features = feature_names(cpu_features());
  environment.governor = first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  environment.huge_pages =
      bracketed_word(first_line("/sys/kernel/mm/transparent_hugepage/enabled"));
  environment.num_cores = num_usable_cores();
  const auto device = make_cpu_device(1);
  environment.cpu = device->properties().name;
  environment.memory_bytes = device->properties().memory_bytes;
  environment.memory_available_bytes = device->properties().available_bytes;
  if (::getloadavg(environment.load_average.data(), 3) != 3) environment.load_average = {};
  return environment;
}

uint64_t peak_memory_bytes() {
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace moxie
