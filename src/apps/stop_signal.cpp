#include "apps/stop_signal.h"

#include <csignal>

namespace moxie {
namespace {

std::atomic<bool> g_stop{false};  // a handler reaches nothing else
void on_signal(int signal) {
  if (!g_stop.exchange(true)) return;
  std::signal(signal, SIG_DFL);
  std::raise(signal);  // once the handler has returned
}

}  // namespace

void stop_at(std::initializer_list<int> signals) {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  for (const int signal : signals) sigaction(signal, &action, nullptr);
}
const std::atomic<bool>& stop_asked() { return g_stop; }

}  // namespace moxie
