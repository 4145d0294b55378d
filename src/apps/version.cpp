// Version and build, from the lab's description of the build and the tables of rows.
#include "apps/version.h"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "core/cuda_archs.h"
#include "kernels/registry.h"
#include "lab/record.h"

namespace moxie {
namespace {

#if defined(__x86_64__)
constexpr const char* kArchitecture = "x86_64";
constexpr Features kOfOtherCpus = kNeon | kNeonDot | kNeonI8mm | kNeonBf16;
#elif defined(__aarch64__)
constexpr const char* kArchitecture = "aarch64";
constexpr Features kOfOtherCpus = 0;  // rows of x86-64 are in no other build's tables
#else
constexpr const char* kArchitecture = "unknown";
constexpr Features kOfOtherCpus = kNeon | kNeonDot | kNeonI8mm | kNeonBf16;
#endif

// What the CPU rows were compiled for. Rows of NEON stand in the table of every build, without
// their code where it is another CPU's.
std::string cpu_rows() {
  Features features = kFeatureNone;
  for (const RowInfo& row : all_rows()) {
    if (row.device == DeviceKind::kCpu) features |= row.needs;
  }
  return feature_names(features & ~kOfOtherCpus);
}

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  return std::vector<std::string>(std::istream_iterator<std::string>(stream), {});
}

// "sm_80", "sm_90a", ...
std::vector<std::string> cuda_architectures() {
  std::vector<std::string> names = words(cuda_archs());
  for (std::string& name : names) name.insert(0, "sm_");
  return names;
}

}  // namespace

std::string version_text() {
  const Environment build = build_environment();
  std::string text = fmt::format("moxie {}\n", build.version);
  text += fmt::format("commit    {}{}\n", build.commit, build.dirty ? " with local changes" : "");
  text += fmt::format("build     {}, {}, {}\n", build.build_type, build.compiler, kArchitecture);
  text += fmt::format("CPU rows  portable {}\n", cpu_rows());
  text += build.cuda_version.empty() ? "CUDA      without CUDA"
                                     : fmt::format("CUDA      {}, for {}", build.cuda_version,
                                                   fmt::join(cuda_architectures(), " "));
  return text;
}

std::string version_json() {
  const Environment build = build_environment();
  nlohmann::ordered_json cuda;
  if (!build.cuda_version.empty()) {
    cuda = {{"version", build.cuda_version}, {"architectures", cuda_architectures()}};
  }
  const nlohmann::ordered_json document = {
      {"version", build.version},          {"commit", build.commit},
      {"local_changes", build.dirty},      {"build_type", build.build_type},
      {"compiler", build.compiler},        {"architecture", kArchitecture},
      {"cpu_features", words(cpu_rows())}, {"cuda", cuda}};
  return document.dump(2);
}

}  // namespace moxie
