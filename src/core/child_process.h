// Runs command lines as child processes. SIGINT and SIGTERM of this process are sent on to the
// child; this process ends by them after it. A child does not outlive this process.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace moxie {

struct ProcessResult {
  int exit_code = -1;  ///< 128 + n if ended by signal n
  std::string out, err;
  uint64_t peak_bytes = 0;  ///< greatest resident memory of the child
};

/// Gives the child a stdin of its own and collects what it prints. `environment` is added to this
/// process's. Ends the child after `timeout_s`. `clean_up` is called before this process ends by a
/// signal.
ProcessResult run_process(const std::vector<std::string>& arguments, const std::string& input = "",
                          const std::vector<std::string>& environment = {}, int timeout_s = 120,
                          const std::function<void()>& clean_up = {});

/// Runs a child with this environment alone, whose output goes to stderr. Returns its exit code,
/// 128 + n if ended by signal n.
int run_process_on_stderr(const std::vector<std::string>& arguments,
                          const std::vector<std::string>& environment,
                          const std::function<void()>& clean_up = {});

}  // namespace moxie
