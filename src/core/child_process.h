// Runs a command line as a child process, with its own stdin, and collects what it prints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moxie {

struct ProcessResult {
  int exit_code = -1;  ///< 128 + n if ended by signal n
  std::string out, err;
  uint64_t peak_bytes = 0;  ///< greatest resident memory of the child
};

/// `environment` is added to this process's. Ends the child after `timeout_s`.
ProcessResult run_process(const std::vector<std::string>& arguments, const std::string& input = "",
                          const std::vector<std::string>& environment = {}, int timeout_s = 120);

}  // namespace moxie
