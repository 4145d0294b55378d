// fork, exec, poll.
#include "core/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
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

std::atomic<pid_t> g_child{0};  // a handler reaches nothing else
std::atomic<int> g_signal{0};

void send_on(int signal) {
  g_signal = signal;
  if (const pid_t child = g_child; child > 0) ::kill(child, signal);
}

// While it lives, SIGINT and SIGTERM are sent on to the child.
class SignalsSentOn {
 public:
  SignalsSentOn() {
    g_child = 0;
    g_signal = 0;
    struct sigaction action = {};
    action.sa_handler = send_on;
    for (size_t i = 0; i < 2; ++i) {
      ::sigaction(kSignals[i], nullptr, &before_[i]);
      if (before_[i].sa_handler != SIG_IGN) ::sigaction(kSignals[i], &action, nullptr);
    }
  }
  void to(pid_t child) {
    g_child = child;
    if (const int signal = g_signal; signal != 0) ::kill(child, signal);  // it came before
  }
  // Once the child has ended. Where a signal came, this process usually ends here.
  void end(const std::function<void()>& clean_up) {
    g_child = 0;
    for (size_t i = 0; i < 2; ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
    if (g_signal == 0) return;
    if (clean_up) clean_up();
    ::raise(g_signal);
  }

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM};
  struct sigaction before_[2] = {};
};

// In the child: it ends with its parent, also where that cannot send a signal on.
void end_with(pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // it has ended already
}

int exit_code_of(pid_t child, rusage* usage) {
  int status = 0;
  while (::wait4(child, &status, 0, usage) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

int run_process_on_stderr(const std::vector<std::string>& arguments,
                          const std::vector<std::string>& environment,
                          const std::function<void()>& clean_up) {
  const auto argv = pointers_to(arguments), variables = pointers_to(environment);
  SignalsSentOn signals;
  const pid_t parent = ::getpid(), child = ::fork();
  if (child == 0) {
    end_with(parent);
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
    ::execve(argv[0], argv.data(), variables.data());
    ::_exit(127);
  }
  signals.to(child);
  const int exit_code = exit_code_of(child, nullptr);
  signals.end(clean_up);
  return exit_code;
}

ProcessResult run_process(const std::vector<std::string>& arguments, const std::string& input,
                          const std::vector<std::string>& environment, int timeout_s,
                          const std::function<void()>& clean_up) {
  ::signal(SIGPIPE, SIG_IGN);  // a child that does not read its input
  Pipe in, out, err;
  const auto argv = pointers_to(arguments);
  SignalsSentOn signals;
  const pid_t parent = ::getpid(), child = ::fork();
  if (child == 0) {
    end_with(parent);
    ::dup2(in.read_end, 0);
    ::dup2(out.write_end, 1);
    ::dup2(err.write_end, 2);
    ::signal(SIGPIPE, SIG_DFL);
    for (const std::string& variable : environment) ::putenv(const_cast<char*>(variable.c_str()));
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  signals.to(child);
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
  rusage usage{};
  result.exit_code = exit_code_of(child, &usage);
  signals.end(clean_up);
  result.peak_bytes = static_cast<uint64_t>(usage.ru_maxrss) * 1024;
  return result;
}

}  // namespace moxie
