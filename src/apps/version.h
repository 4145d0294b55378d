// What `moxie --version` prints: version, commit, build, and what code is compiled in.
#pragma once

#include <string>

namespace moxie {

/// Lines for people; the first is "moxie 0.1.0".
std::string version_text();
/// {"version", "commit", "local_changes", "build_type", "compiler", "architecture", "cpu_features",
/// "cuda": null or {"version", "architectures"}}.
std::string version_json();

}  // namespace moxie
