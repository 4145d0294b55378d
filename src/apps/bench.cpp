// moxie bench: pp/tg tables with llama-bench's letters, beside the machine's limits.
#include "lab/bench.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/bench_flags.h"
#include "apps/kernels_json.h"
#include "apps/startup.h"
#include "engine/drafts_json.h"
#include "lab/machine_gpu.h"
#include "lab/record.h"
#include "lab/report.h"
#include "lab/stats.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

// The machine's state around the tests; empty without a GPU.
struct GpuWatch {
  std::optional<GpuState> state;
  std::optional<double> joules_before, joules;
};

Json to_json(const Summary& s, const std::vector<double>& samples) {
  return {{"median", s.median}, {"mean", s.mean}, {"stdev", s.stdev}, {"samples", samples}};
}

// `off`: the result of the same test without --batch-invariant, if that is on.
Json to_json(const BenchResult& result, const BenchResult* off, bool is_simulated) {
  const Summary s = summarize(result.tok_s);
  Json launches = Json::object();
  for (const auto& count : result.kernels) launches[count.name] = count.launches;
  Json json = {{"name", result.test.name()},
               {"n_prompt", result.test.n_prompt},
               {"n_gen", result.test.n_gen},
               {"depth", result.test.depth},
               {"streams", result.test.streams},
               {"tok_s", to_json(s, result.tok_s)},
               {"bytes_per_token", result.bytes_per_token},
               {"flops_per_token", result.flops_per_token},
               {"share_of_limit", result.share_of_limit},
               {"read_gb_s", result.read_gb_s},
               {"kernels", kernels_json(result.kernels)},
               {"tile", result.tile},
               {"launches", std::move(launches)}};
  if (result.drafts.num_positions > 0) {
    json["speculation"] = drafts_json(result.drafts);
    json["acceptance"] = is_simulated ? "simulated" : "compared";
  }
  if (off != nullptr) {
    const Summary of_off = summarize(off->tok_s);
    json["batch_invariant_off"] = {{"tok_s", to_json(of_off, off->tok_s)},
                                   {"ratio", s.median / of_off.median},
                                   {"kernels", kernels_json(off->kernels)}};
  }
  return json;
}

// Runs the same tests on an engine without --batch-invariant, which is freed afterwards.
Result<std::vector<BenchResult>> run_without_batch_invariance(const BenchFlags& o,
                                                              std::span<const BenchTest> tests) {
  EngineOptions options = o.engine;
  options.batch_invariant = "off";
  auto engine = Engine::load(options);
  if (!engine) return fail(std::move(engine.error()));
  auto limits = measure_limits((*engine)->device());
  if (!limits) return fail(std::move(limits.error()));
  std::vector<BenchResult> results;
  for (const BenchTest& test : tests) {
    auto result = run_bench(**engine, test, o.repetitions, *limits);
    if (!result) return fail(std::move(result.error()));
    results.push_back(std::move(*result));
  }
  return results;
}

// The record of the whole run: conditions beside the samples.
Record make_record(Engine& engine, const MachineLimits& limits, const Flags& flags,
                   const std::vector<BenchResult>& results, const GpuWatch& gpu) {
  Record record = record_of(engine, limits, flags);
  for (const BenchResult& result : results) {
    record.results.push_back({result.test.name(), "tok/s", result.tok_s, result.bytes_per_token,
                              result.flops_per_token, result.share_of_limit});
    for (const auto& count : result.kernels) {
      record.kernel_path.push_back({count.op->name, count.name, count.launches});
    }
  }
  if (gpu.state) record.environment.gpus.push_back(*gpu.state);
  record.energy_joules = gpu.joules;
  return record;
}

int run(BenchFlags& o, const Flags& flags) {
  const auto tests = tests_of(&o, flags);
  if (!tests) return usage("bench: " + tests.error().message());
  // The cost of batch invariance: first the same tests without it.
  std::vector<BenchResult> off;
  if (o.engine.batch_invariant == "on") {
    if (!o.json) fmt::print("first without --batch-invariant, for its cost\n");
    auto results = run_without_batch_invariance(o, *tests);
    if (!results) return report(results.error());
    off = std::move(*results);
  }
  auto engine = Engine::load(o.engine);
  if (!engine) return report(engine.error());
  Device& device = (*engine)->device();
  const bool on_gpu = device.kind() == DeviceKind::kCuda;
  auto limits = measure_limits(device);
  if (!limits) return report(limits.error());
  GpuWatch gpu;
  if (on_gpu) {
    gpu.state = read_gpu_state(device);
    gpu.joules_before = gpu_energy_joules(device);
  }

  const bool is_simulated = !o.engine.speculation.acceptance.empty();
  Json tests_json = Json::array();
  std::vector<BenchResult> results;
  if (!o.json) {
    print_limits(*limits);
    if (o.verbose) print_startup((*engine)->timeline());
    fmt::print(
        "| {:<24} | {:<14} | {:>20} | {:>12} | {:>8} "
        "|\n|{:-<26}|{:-<16}|{:->22}|{:->14}|{:->10}|\n",
        "model", "test", "tok/s", "bytes/token", "of limit", "", "", ":", ":", ":");
  }
  for (const BenchTest& test : *tests) {
    auto result = run_bench(**engine, test, o.repetitions, *limits);
    if (!result) return report(result.error());
    const BenchResult* const without = off.empty() ? nullptr : &off[results.size()];
    results.push_back(*result);
    tests_json.push_back(to_json(*result, without, is_simulated));
    if (o.json) continue;
    const Summary s = summarize(result->tok_s);
    fmt::print("| {:<24} | {:<14} | {:>20} | {:>12} | {:>7.1f}% |\n", o.engine.model, test.name(),
               fmt::format("{:.2f} ± {:.2f}", s.median, s.stdev),
               format_bytes(static_cast<uint64_t>(result->bytes_per_token)),
               100 * result->share_of_limit);
    if (result->drafts.num_positions > 0) {
      fmt::print("  speculation: {}{}\n", drafts_text(result->drafts),
                 is_simulated ? " (acceptance simulated)" : "");
    }
    if (without != nullptr) {
      const double median = summarize(without->tok_s).median;
      fmt::print("  --batch-invariant on: {:.3f} of the {:.2f} tok/s without it\n",
                 s.median / median, median);
    }
    std::fflush(stdout);
    if (&test == &tests->back()) {
      fmt::print("\nkernels of {}:\n", test.name());
      print_rows(result->kernels);
      if (!result->tile.empty()) fmt::print("  tile     {}\n", result->tile);
    }
  }
  if (on_gpu) {
    finish_gpu_state(device, &*gpu.state);
    if (const auto joules = gpu_energy_joules(device); joules && gpu.joules_before) {
      gpu.joules = *joules - *gpu.joules_before;
    }
  }
  const Json document = {
      {"machine", moxie::to_json(*limits)},
      {"model", model_json(**engine)},
      {"startup", startup_json((*engine)->timeline())},
      {"tests", tests_json},
      {"record", moxie::to_json(make_record(**engine, *limits, flags, results, gpu))}};
  if (!o.report.empty()) {
    const Page page = bench_page(results, *limits, document);
    if (auto status = write_page(page, o.report); !status) return report(status.error());
  }
  if (o.json) fmt::print("{}\n", document.dump(2));
  return kExitDone;
}

}  // namespace

Command bench_command() {
  auto o = std::make_shared<BenchFlags>();
  return {.name = "bench",
          .summary = "Speed by prompt, generation, depth and streams, as shares of the limit",
          .example = "moxie bench --model synthetic:gpt-oss-20b -p 256 -n 32 -d 0,2048 -r 5",
          .declare = [o](Flags& flags) { declare_bench_flags(flags, o.get()); },
          .run = [o](const Flags& flags) { return run(*o, flags); },
          .subcommands = {bench_serve_command()},
          .runs_alone = true};
}

}  // namespace moxie
