// The start-up timeline as `moxie run` and `moxie bench` print it.
#pragma once

#include <nlohmann/json.hpp>

#include "model/weights.h"

namespace moxie {

/// Seconds of each stage, and read_bytes.
nlohmann::ordered_json startup_json(const StartupTimeline& timeline);
/// One line to stderr.
void print_startup(const StartupTimeline& timeline);

}  // namespace moxie
