// moxie bench: pp/tg tables with llama-bench's letters, beside the machine's limits.
#include "lab/bench.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/bench_commands.h"
#include "apps/kernels_json.h"
#include "apps/output.h"
#include "apps/ranks.h"
#include "apps/startup.h"
#include "core/rank_world.h"
#include "engine/drafts_json.h"
#include "lab/bench_rounds.h"
#include "lab/energy.h"
#include "lab/report.h"
#include "lab/run_watch.h"
#include "lab/stats.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const Summary& s, const std::vector<double>& samples) {
  return {{"median", s.median}, {"mean", s.mean}, {"stdev", s.stdev}, {"samples", samples}};
}

// `off`: the result of the same test without --batch-invariant, if that is on.
Json to_json(const BenchResult& result, const BenchResult* off, bool is_simulated) {
  const Summary s = summarize(result.tok_s);
  const auto joules = result.energy.joules_per_token();
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
               {"launches_s", result.launches_s},
               {"joules_per_token", joules ? Json(*joules) : Json()},
               {"loads", result.num_loads},
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
  auto engine = BenchEngine::load(options);
  if (!engine) return fail(std::move(engine.error()));
  auto limits = measure_limits((*engine)->device());
  if (!limits) return fail(std::move(limits.error()));
  std::vector<BenchResult> results;
  for (const BenchTest& test : tests) {
    auto result = run_bench_in_rounds(*engine, test, o.repetitions, *limits);
    if (!result) return fail(std::move(result.error()));
    results.push_back(std::move(*result));
  }
  return results;
}

// A run on one engine: prints each test as it is done, and adds it to the record.
class Run {
 public:
  Run(const BenchFlags& o, BenchEngine& engine, const MachineLimits& limits, const Flags& flags)
      : o_(o),
        engine_(engine),
        limits_(limits),
        watch_(engine->device(), counts_all_energy(*engine)),
        record_(record_of("bench", *engine, limits, flags)),
        startup_(startup_json(engine->timeline())),
        has_energy_(energy_counter_of(*engine).joules().has_value()) {}

  void print_head() const {
    if (o_.json) return;
    print_limits(limits_);
    if (o_.verbose) print_startup(engine_->timeline());
    fmt::print(
        "| {:<24} | {:<14} | {:>20} | {:>12} | {:>8} "
        "|{}\n|{:-<26}|{:-<16}|{:->22}|{:->14}|{:->10}|{}\n",
        "model", "test", "tok/s", "bytes/token", "of limit", has_energy_ ? "  J/token |" : "", "",
        "", ":", ":", ":", has_energy_ ? "---------:|" : "");
  }

  // `off`: the same test without --batch-invariant; null: it is not on.
  Status run(const BenchTest& test, const BenchResult* off) {
    auto result = run_bench_in_rounds(engine_, test, o_.repetitions, limits_);
    if (!result) return fail(std::move(result.error()));
    add_to_record(*result);
    tests_.push_back(to_json(*result, off, is_simulated()));
    if (!o_.json) print(*result, off);
    results_.push_back(std::move(*result));
    return {};
  }

  void print_end() const {
    if (o_.json) {
      print_document(document());
      return;
    }
    const BenchResult& last = results_.back();
    fmt::print("\nkernels of {}:\n", last.test.name());
    print_rows(last.kernels);
    if (!last.tile.empty()) fmt::print("  tile     {}\n", last.tile);
  }
  Status write_report() const {
    if (o_.report.empty()) return {};
    return write_page(bench_page(results_, limits_, document()), o_.report);
  }

  const Record& record() const { return record_; }
  // The record says so where a test failed behind others that did not.
  void set_incomplete(const Error& error) {
    Json details = Json::parse(record_.details);  // made by record_of()
    details["incomplete"] = error.message();
    record_.details = json_text(details);
  }

 private:
  Json document() const {
    return {{"machine", moxie::to_json(limits_)},
            {"model", model_json(*engine_)},
            {"startup", startup_},
            {"tests", tests_},
            {"record", moxie::to_json(record_)}};
  }
  bool is_simulated() const { return !o_.engine.speculation.acceptance.empty(); }

  void add_to_record(const BenchResult& result) {
    const std::string name = result.test.name();
    record_.results.push_back({.name = name,
                               .unit = "tok/s",
                               .samples = result.tok_s,
                               .bytes = result.bytes_per_token,
                               .operations = result.flops_per_token,
                               .share_of_limit = result.share_of_limit,
                               .workload = workload_of(result.test, record_),
                               .limit_gb_s = result.read_gb_s,
                               .limit_launches_s = result.launches_s,
                               .joules_per_token = result.energy.joules_per_token()});
    add_rows(result.kernels, name, engine_->self_test(), &record_);
    watch_.finish(&record_);
  }

  void print(const BenchResult& result, const BenchResult* off) const {
    const Summary s = summarize(result.tok_s);
    fmt::print("| {:<24} | {:<14} | {:>20} | {:>12} | {:>7.1f}% |{}\n", o_.engine.model,
               result.test.name(), fmt::format("{:.2f} ± {:.2f}", s.median, s.stdev),
               format_bytes(static_cast<uint64_t>(result.bytes_per_token)),
               100 * result.share_of_limit, energy_cell(result));
    if (result.drafts.num_positions > 0) {
      fmt::print("  speculation: {}{}\n", drafts_text(result.drafts),
                 is_simulated() ? " (acceptance simulated)" : "");
    }
    if (off != nullptr) {
      const double median = summarize(off->tok_s).median;
      fmt::print("  --batch-invariant on: {:.3f} of the {:.2f} tok/s without it\n",
                 s.median / median, median);
    }
    std::fflush(stdout);
  }

  std::string energy_cell(const BenchResult& result) const {
    if (!has_energy_) return "";
    const auto joules = result.energy.joules_per_token();
    return fmt::format(" {:>8} |", joules ? fmt::format("{:.3g}", *joules) : "-");
  }

  const BenchFlags& o_;
  BenchEngine& engine_;
  const MachineLimits& limits_;
  RunWatch watch_;
  Record record_;
  const Json startup_;     // of the first loading
  const bool has_energy_;  // the counter can be read: the table has its column
  Json tests_ = Json::array();
  std::vector<BenchResult> results_;
};

int run(BenchFlags& o, const Flags& flags) {
  const auto tests = tests_of(&o, flags);
  if (!tests) return usage("bench: " + tests.error().message());
  // On every rank alike, so before they are told apart.
  if (const auto world = rank_world();
      world && *world && (!o.vs.empty() || o.engine.batch_invariant == "on"))
    return usage("bench: several processes load one engine, --vs and --batch-invariant on two");
  if (flags.given("--vs") && o.vs.find_first_not_of(' ') == std::string::npos)
    return usage("bench: --vs names no switch, such as --vs \"--kv-dtype bf16\"");
  if (!o.vs.empty() && !o.report.empty())
    return usage("bench: --vs writes no --report; --record keeps what it measured");
  if (const auto exit_status = run_as_rank(&o.engine)) return *exit_status;
  if (auto status = check_output(o.report); !status)
    return report_to_ranks(o.engine, status.error());
  if (!o.vs.empty()) return bench_against(o, *tests, flags);
  auto keeper = RecordKeeper::open(o.record);
  if (!keeper) return report_to_ranks(o.engine, keeper.error());
  // The cost of batch invariance: first the same tests without it.
  std::vector<BenchResult> off;
  if (o.engine.batch_invariant == "on") {
    if (!o.json) fmt::print("first without --batch-invariant, for its cost\n");
    auto results = run_without_batch_invariance(o, *tests);
    if (!results) return report(results.error());
    off = std::move(*results);
  }
  auto engine = BenchEngine::load(o.engine);
  if (!engine) return report(engine.error());
  auto limits = measure_limits((*engine)->device());
  if (!limits) return report(limits.error());
  Run run(o, *engine, *limits, flags);
  run.print_head();
  for (size_t i = 0; i < tests->size(); ++i) {
    if (auto status = run.run((*tests)[i], off.empty() ? nullptr : &off[i]); !status) {
      run.set_incomplete(status.error());
      report(status.error());
      return keep_and_exit(*keeper, run.record(), kExitFailed);
    }
    keeper->keep_so_far(run.record());
  }
  run.print_end();
  if (auto status = run.write_report(); !status) {
    report(status.error());
    return keep_and_exit(*keeper, run.record(), kExitFailed);
  }
  return keep_and_exit(*keeper, run.record(), kExitDone);
}

}  // namespace

Command bench_command() {
  auto o = std::make_shared<BenchFlags>();
  return {.name = "bench",
          .summary = "Speed by prompt, generation, depth and streams, as shares of the limit",
          .example = "moxie bench --model synthetic:gpt-oss-20b -p 256 -n 32 -d 0,2048 -r 5",
          .declare =
              [o](Flags& flags) {
                declare_bench_flags(flags, o.get());
                flags.text("--vs", &o->vs,
                           "switches of the engine, as one word: measures with and without them, "
                           "sample by sample in turn, with a verdict; without --repetitions as "
                           "many as show a difference of 2.5%");
                flags.number("--vs-seconds", &o->vs_seconds, {0, 86400},
                             "so long --vs samples a test at most without --repetitions");
              },
          .run = [o](const Flags& flags) { return run(*o, flags); },
          .subcommands = {bench_compare_command(), bench_replay_command(), bench_history_command(),
                          bench_serve_command()},
          .runs_alone = true};
}

}  // namespace moxie
