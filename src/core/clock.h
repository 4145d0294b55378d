// Time as the project measures it: seconds of the steady clock.
#pragma once

#include <chrono>

namespace moxie {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace moxie
