// The reports of `moxie profile` and `moxie bench`: what was measured as charts and tables, with
// the conditions, on one page (report_page.h).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>

#include "lab/bench.h"
#include "lab/profile.h"
#include "lab/report_charts.h"
#include "lab/report_page.h"

namespace moxie {

/// `document`: what the command prints with --json; its "model" and "record" are shown, and the
/// whole of it is kept at the page's end.
Page profile_page(std::span<const PhaseProfile> phases, const MachineLimits& limits,
                  const nlohmann::ordered_json& document);
Page bench_page(std::span<const BenchResult> results, const MachineLimits& limits,
                const nlohmann::ordered_json& document);

/// What of a profile's last repetition is shown: of decode one token (a step, with several
/// streams), from an `embed` to the next one, of median length; of prefill the whole prompt. Empty
/// if nothing was recorded.
Timeline timeline_of(const PhaseProfile& phase);

}  // namespace moxie
