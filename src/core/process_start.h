// How long this process has run.
#pragma once

namespace moxie {

/// Seconds since the process was started (exec), to a hundredth. If the system does not say:
/// seconds since the static objects were made.
double seconds_since_process_start();

}  // namespace moxie
