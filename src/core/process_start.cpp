// From /proc/self/stat: the 22nd field is the start in clock ticks since the system's.
#include "core/process_start.h"

#include <time.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "core/clock.h"

namespace moxie {
namespace {

const Clock::time_point g_made = Clock::now();
// Loading a program takes less; a system that reports more counts from something else.
constexpr double kMostBefore = 10;

double seconds_by_system() {
  std::ifstream file("/proc/self/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t name_end = text.rfind(')');  // the name may hold anything
  if (name_end == text.npos) return -1;
  std::istringstream fields(text.substr(name_end + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  double ticks = -1;
  timespec now{};
  const long ticks_per_s = sysconf(_SC_CLK_TCK);
  if (!(fields >> ticks) || ticks_per_s <= 0 || clock_gettime(CLOCK_BOOTTIME, &now) != 0) return -1;
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9 -
         ticks / static_cast<double>(ticks_per_s);
}

}  // namespace

double seconds_since_process_start() {
  // The difference is constant; the clock is read each time.
  static const double before = [] {
    const double since_made = seconds_since(g_made);
    const double more = seconds_by_system() - since_made;
    return more >= 0 && more <= kMostBefore ? more : 0;
  }();
  return before + seconds_since(g_made);
}

}  // namespace moxie
