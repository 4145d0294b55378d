// What `moxie bench` and `moxie profile` share: the switches that say what to run, the machine's
// limits, and how both describe the model and the run.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "apps/cli.h"
#include "apps/speculation_flags.h"
#include "lab/bench.h"
#include "lab/record.h"

namespace moxie {

struct BenchFlags {
  EngineOptions engine;
  SpeculationFlags speculation;
  std::string acceptance, report;
  std::vector<int32_t> n_prompt{512}, n_gen{128}, depth{0}, streams{1};
  int32_t repetitions = 5;
  bool json = false, verbose = false;
};
void declare_bench_flags(Flags& flags, BenchFlags* options);

/// The tests that the switches ask for, with the engine's options made to fit them. Fails with the
/// usage fault's text.
Result<std::vector<BenchTest>> tests_of(BenchFlags* options, const Flags& flags);

/// Of what the engine runs on: measured now.
Result<MachineLimits> measure_limits(Device& device);
/// One line and an empty one to stdout.
void print_limits(const MachineLimits& limits);

/// A line a row: step, name, launches.
void print_rows(const std::vector<KernelChooser::Count>& counts);

nlohmann::ordered_json model_json(Engine& engine);

/// The conditions of a run: environment, machine, switches, weights; no results yet.
Record record_of(Engine& engine, const MachineLimits& limits, const Flags& flags);

}  // namespace moxie
