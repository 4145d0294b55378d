// Seconds of the steady clock, with which the project measures time.
#pragma once

#include <chrono>

namespace moxie {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace moxie
