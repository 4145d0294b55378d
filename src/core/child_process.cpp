// fork, exec, poll.
#include "core/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

namespace moxie {
namespace {

struct Pipe {
  int read_end = -1, write_end = -1;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) == 0) read_end = ends[0], write_end = ends[1];
  }
  static void close(int& end) {
    if (end >= 0) ::close(end);
    end = -1;
  }
  ~Pipe() {
    close(read_end);
    close(write_end);
  }
};

}  // namespace

ProcessResult run_process(const std::vector<std::string>& arguments, const std::string& input,
                          const std::vector<std::string>& environment, int timeout_s) {
  ::signal(SIGPIPE, SIG_IGN);  // a child that does not read its input
  Pipe in, out, err;
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(in.read_end, 0);
    ::dup2(out.write_end, 1);
    ::dup2(err.write_end, 2);
    ::signal(SIGPIPE, SIG_DFL);
    for (const std::string& variable : environment) ::putenv(const_cast<char*>(variable.c_str()));
    std::vector<char*> argv;
    for (const std::string& argument : arguments)
      argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  Pipe::close(in.read_end);
  Pipe::close(out.write_end);
  Pipe::close(err.write_end);
  ::fcntl(in.write_end, F_SETFL, O_NONBLOCK);

  ProcessResult result;
  size_t written = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(timeout_s);
  if (input.empty()) Pipe::close(in.write_end);
  while (out.read_end >= 0 || err.read_end >= 0) {
    pollfd fds[3] = {
        {out.read_end, POLLIN, 0}, {err.read_end, POLLIN, 0}, {in.write_end, POLLOUT, 0}};
    ::poll(fds, 3, 1000);
    if (std::chrono::steady_clock::now() > deadline) ::kill(child, SIGKILL);
    const auto drain = [](int& end, short events, std::string& text) {
      if (end < 0 || !(events & (POLLIN | POLLHUP))) return;
      char block[65536];
      const ssize_t count = ::read(end, block, sizeof(block));
      if (count > 0)
        text.append(block, static_cast<size_t>(count));
      else
        Pipe::close(end);
    };
    drain(out.read_end, fds[0].revents, result.out);
    drain(err.read_end, fds[1].revents, result.err);
    if (in.write_end >= 0 && (fds[2].revents & (POLLOUT | POLLERR))) {
      const ssize_t count = ::write(in.write_end, input.data() + written, input.size() - written);
      if (count > 0) written += static_cast<size_t>(count);
      if (count < 0 || written == input.size()) Pipe::close(in.write_end);
    }
  }
  int status = 0;
  rusage usage{};
  ::wait4(child, &status, 0, &usage);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.peak_bytes = static_cast<uint64_t>(usage.ru_maxrss) * 1024;
  return result;
}

}  // namespace moxie
