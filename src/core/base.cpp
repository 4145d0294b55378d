// Error text, CHECK's message, and the log.
#include "core/base.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace moxie {

std::string Error::message() const {
  std::string text = where.empty() ? what : where + ": " + what;
  if (!hint.empty()) text += " (" + hint + ")";
  return text;
}

void check_failed(const char* expression, const std::string& detail,
                  const std::source_location& location) {
  std::fprintf(stderr, "moxie: CHECK failed: %s%s%s\n  at %s:%u in %s\n", expression,
               detail.empty() ? "" : ": ", detail.c_str(), location.file_name(),
               static_cast<unsigned>(location.line()), location.function_name());
  std::fflush(stderr);
  std::abort();
}

namespace {
std::atomic<LogLevel> g_level{LogLevel::kInfo};
}  // namespace

void set_log_level(LogLevel level) { g_level.store(level, std::memory_order_relaxed); }
LogLevel log_level() { return g_level.load(std::memory_order_relaxed); }

void log_line(LogLevel level, std::string_view text) {
  if (level < log_level()) return;
  static constexpr const char* kNames[] = {"debug", "info", "warn", "error"};
  const int index = static_cast<int>(level);
  if (index < 0 || index > 3) return;
  std::string line = "moxie ";
  line += kNames[index];
  line += ": ";
  line += text;
  line += '\n';
  // One write per line, so that lines of several threads do not mix.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace moxie
