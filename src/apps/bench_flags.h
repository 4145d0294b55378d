// What `moxie bench` and `moxie profile` share: the switches that say what to run, the machine's
// limits, and how both describe the model and the run.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "apps/cli.h"
#include "apps/record_flags.h"
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
  RecordFlags record;
  std::string vs;          ///< of bench alone
  float vs_seconds = 300;  ///< of bench alone: a test of --vs may take so long
};
void declare_bench_flags(Flags& flags, BenchFlags* options);
/// Of these, the switches of the engine, which `moxie bench --vs` may set for a second one.
void declare_engine_flags(Flags& flags, BenchFlags* options);

/// Completes the engine's options by what was read. Fails with the usage fault's text.
Status complete_engine_flags(BenchFlags* options, const Flags& flags);
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

/// The conditions of a run: command, environment, machine, switches, weights; no results yet.
Record record_of(const std::string& kind, Engine& engine, const MachineLimits& limits,
                 const Flags& flags);

/// What one test of bench asks for.
Workload workload_of(const BenchTest& test, const Record& record);
/// The rows that ran, as those of the series `of`, and whether `test` has proven them.
void add_rows(const std::vector<KernelChooser::Count>& counts, const std::string& of,
              const SelfTestUse& test, Record* record);

}  // namespace moxie
