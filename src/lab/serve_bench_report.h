// What a run of the HTTP benchmark found, as JSON, as a table, and as the series of a record.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lab/record.h"
#include "lab/serve_bench.h"

namespace moxie {

struct ServeRun {
  std::vector<EndpointFacts> endpoints;
  Goodput goodput;
  struct Cell {
    ServeTest test;
    ServeBench::Outcome outcome;
  };
  std::vector<Cell> cells;
  bool keeps_prefix_cache = false;  ///< contexts were sent before: other workloads than without
  std::string stopped;              ///< why it ended before the last test; empty: it did not

  int64_t num_errors() const;
};

/// {"endpoints", "tests", "verdicts", "notes", "stopped"}.
nlohmann::ordered_json to_json(const ServeRun& run);
/// The same without samples: what a record tells beside its series.
nlohmann::ordered_json details_of(const ServeRun& run);
/// The table of one test: a line an endpoint for pp and tg, then the percentiles.
std::string table_of(const ServeRun& run, const ServeRun::Cell& cell);
/// What a reader must know beside the figures: cached prompts, counts that differ, a busy client.
std::vector<std::string> notes_of(const ServeRun& run);
/// Errors by kind with the first message of each, a line each.
std::string errors_of(const ServeRun& run);
/// One series a figure (without those that have no sample), named "pp512 tg32 c8 ttft", with " #2"
/// for the second endpoint.
std::vector<Series> series_of(const ServeRun& run);

}  // namespace moxie
