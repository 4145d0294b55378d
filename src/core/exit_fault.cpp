#include "core/exit_fault.h"

#include <mutex>

namespace moxie {
namespace {

std::mutex g_mutex;
std::string& text_of_fault() {
  static auto* text = new std::string();  // also at the end of the process
  return *text;
}

}  // namespace

void set_exit_fault(const std::string& text) {
  const std::lock_guard lock(g_mutex);
  text_of_fault() = text;
}

std::string exit_fault() {
  const std::lock_guard lock(g_mutex);
  return text_of_fault();
}

}  // namespace moxie
