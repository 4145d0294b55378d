// The streams of C keep that a write failed, not why.
#include "apps/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "apps/cli.h"
#include "core/whole_file.h"

namespace moxie {
namespace {

std::error_code last_error() { return {errno, std::generic_category()}; }

}  // namespace

Status check_output(const std::string& path) {
  return path.empty() ? Status{} : try_whole_file(path, "output");
}

void hold_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    // The lowest free number is this one.
    static_cast<void>(::open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY));
  }
}

int finish_output(int exit_code, std::error_code reason) {
  if (std::fflush(stdout) != 0 && !reason) reason = last_error();
  if (std::ferror(stdout) == 0 && !reason) return exit_code;
  // The output has a hole: one newline more does not harm it, and tells why.
  if (!reason) reason = ::write(STDOUT_FILENO, "\n", 1) < 0 ? last_error() : reason;
  if (reason != std::errc::broken_pipe) {
    report({.what = "the output could not be written",
            .where = "stdout",
            .hint = reason ? reason.message() : "a write failed"});
  }
  return exit_code == kExitDone ? kExitFailed : exit_code;
}

}  // namespace moxie
