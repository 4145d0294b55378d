// How long this process has run.
#pragma once

namespace moxie {

/// Seconds since the process was started (exec), to a hundredth: what whoever started it has
/// waited. Where the system does not say, since its static objects were made.
double seconds_since_process_start();

}  // namespace moxie
