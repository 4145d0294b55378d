// The error with which this process ends, for whoever tells others of the end.
#pragma once

#include <string>

namespace moxie {

/// Says that the process is about to end with a fault. Any thread.
void set_exit_fault(const std::string& text);
/// The last such text; empty: the process has not failed.
std::string exit_fault();

}  // namespace moxie
