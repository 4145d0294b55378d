// How a long command ends early: the first signal asks it to keep what it has and stop, the second
// ends the process.
#pragma once

#include <atomic>
#include <initializer_list>

namespace moxie {

/// From now on the first of these signals (SIGINT, SIGTERM) sets stop_asked(); the second, of
/// whichever kind, has its default effect.
void stop_at(std::initializer_list<int> signals);
const std::atomic<bool>& stop_asked();

}  // namespace moxie
