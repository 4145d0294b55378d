#include "apps/stop_signal.h"

#include <csignal>

namespace moxie {
namespace {

std::atomic<bool> g_stop{false};  // a handler reaches nothing else
void on_signal(int) { g_stop = true; }

}  // namespace

void stop_at(std::initializer_list<int> signals) {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : signals) sigaction(signal, &action, nullptr);
}
const std::atomic<bool>& stop_asked() { return g_stop; }

}  // namespace moxie
