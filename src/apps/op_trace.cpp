// moxie op trace: runs the workloads of a flashinfer-trace tree, judges the outputs against the
// host's reference row (of large workloads a sample of tokens), and appends traces.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/op.h"
#include "apps/output.h"
#include "core/clock.h"
#include "core/formats.h"
#include "lab/low_bit.h"
#include "lab/moe_fp8_inputs.h"
#include "lab/record.h"
#include "lab/stats.h"
#include "lab/trace_tree.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

struct TraceFlags {
  std::string dataset, definition, solution, author = "moxie", kernel = "auto", eval_config, uuid;
  int32_t max_tokens = kMostCount, iterations = 0, reference_tokens = 512;
  OpDevice on;
  float rtol = 0, atol = 0, ratio = 0;
  uint64_t seed = 1;
  bool dry_run = false, json = false;
};

// What a run of the command counts.
struct Tally {
  int passed = 0, failed = 0, left_out = 0, unreadable = 0;
  std::vector<Json> traces;  // for --json
};

Result<LowBitTolerance> tolerance_of(const TraceFlags& o, const Flags& flags,
                                     const TraceDefinition& definition) {
  LowBitOverrides overrides;
  if (flags.given("--rtol")) overrides.rtol = o.rtol;
  if (flags.given("--atol")) overrides.atol = o.atol;
  if (flags.given("--required-matched-ratio")) overrides.required_matched_ratio = o.ratio;
  Json config = Json::object();
  if (!o.eval_config.empty()) {
    auto text = read_text(o.eval_config, 1 << 20);
    if (!text) return fail(text.error());
    config = Json::parse(*text, nullptr, false);
  }
  return low_bit_tolerance(config, definition.name, definition.op_type, overrides,
                           o.eval_config.empty() ? "--eval-config" : o.eval_config);
}

Json environment_json(const Environment& environment, MoeFp8Runner& runner) {
  const std::string& hardware =
      runner.on_gpu() ? runner.device().properties().name : environment.cpu;
  return {{"hardware", hardware}, {"libs", {{"moxie", environment.version}}}};
}

// The reference row's output for all tokens of a workload, or for a sample of them.
struct TraceReference {
  std::vector<int32_t> tokens;  // in ascending order
  std::vector<uint16_t> output;
  double seconds = 0;
  bool is_sample = false;
};

Result<TraceReference> reference_of(const TraceFlags& o, const MoeFp8Inputs& inputs,
                                    MoeFp8Runner& runner) {
  const int32_t num_tokens = inputs.params().num_tokens;
  const int32_t most = o.reference_tokens == 0 ? num_tokens : o.reference_tokens;
  TraceReference reference{.tokens = sample_tokens(num_tokens, most, o.seed)};
  reference.is_sample = most < num_tokens;
  const MoeFp8Inputs some = inputs.only(reference.tokens);
  const auto start = Clock::now();
  if (auto ran = runner.run_reference(some.params()); !ran) return fail(ran.error());
  reference.seconds = seconds_since(start);
  reference.output = some.output_values();
  return reference;
}

// Judges the outputs of the reference's tokens, and that no output at all is NaN or infinity.
LowBitVerdict judge(const MoeFp8Inputs& inputs, const TraceReference& reference,
                    const LowBitTolerance& tolerance) {
  const std::vector<uint16_t>& output = inputs.output_values();
  const auto hidden = static_cast<size_t>(inputs.params().hidden);
  std::vector<uint16_t> compared;
  for (const int32_t token : reference.tokens) {
    const auto begin = output.begin() + static_cast<ptrdiff_t>(token * hidden);
    compared.insert(compared.end(), begin, begin + static_cast<ptrdiff_t>(hidden));
  }
  LowBitVerdict verdict = judge_low_bit(compared, reference.output, tolerance);
  const bool is_finite = std::all_of(output.begin(), output.end(), [](uint16_t value) {
    return std::isfinite(bf16_to_f32(value));
  });
  if (!is_finite) verdict.is_finite = verdict.passes = false;
  return verdict;
}

std::string log_of(const LowBitVerdict& verdict, const TraceReference& reference,
                   int32_t num_tokens) {
  std::string log = verdict.is_finite ? "" : "the output has a NaN or an infinity";
  if (reference.is_sample)
    log += fmt::format(
        "{}compared {} of {} tokens, drawn from the seed; the reference's latency "
        "is not measured",
        log.empty() ? "" : "; ", reference.tokens.size(), num_tokens);
  return log;
}

// The trace of one row on one workload, judged against the reference's output.
Result<Json> trace_row(const TraceFlags& o, const Row<MoeFp8Params>& row,
                       const TraceReference& reference, const LowBitTolerance& tolerance,
                       const TraceDefinition& definition, const TraceWorkload& workload,
                       MoeFp8Inputs& inputs, MoeFp8Runner& runner, const Environment& environment) {
  const int iterations = o.iterations > 0 ? o.iterations : runner.on_gpu() ? 50 : 5;
  auto seconds = runner.time(row, inputs.params(), iterations);
  if (!seconds) return fail(seconds.error());
  const LowBitVerdict verdict = judge(inputs, reference, tolerance);
  const double latency = median(*seconds);
  const int32_t num_tokens = inputs.params().num_tokens;
  Json evaluation{{"status", verdict.passes ? "PASSED" : "INCORRECT_NUMERICAL"},
                  {"environment", environment_json(environment, runner)},
                  {"timestamp", environment.time_utc},
                  {"log", log_of(verdict, reference, num_tokens)}};
  evaluation["correctness"] = {{"max_relative_error", verdict.max_relative_error},
                               {"max_absolute_error", verdict.max_absolute_error},
                               {"extra", {{"matched_ratio", verdict.matched_ratio}}}};
  // As the public traces: only a solution that passes has a performance.
  evaluation["performance"] = nullptr;
  if (verdict.passes) {
    evaluation["performance"] = {{"latency_ms", 1e3 * latency}};
    if (!reference.is_sample) {
      evaluation["performance"]["reference_latency_ms"] = 1e3 * reference.seconds;
      evaluation["performance"]["speedup_factor"] = reference.seconds / latency;
    }
  }
  const std::string solution = o.solution.empty() ? row.name : o.solution;
  const std::string compared =
      reference.is_sample ? fmt::format(" of {} tokens", reference.tokens.size()) : "";
  if (!o.json)
    fmt::print("{} T={} {} {}: {:.4f} matched{}, {:.3f} ms{}\n", workload.uuid.substr(0, 8),
               num_tokens, row.name, verdict.passes ? "PASSED" : "INCORRECT_NUMERICAL",
               verdict.matched_ratio, compared, 1e3 * latency,
               verdict.is_finite ? "" : ", NaN or infinity in the output");
  return Json{{"definition", definition.name},
              {"workload", workload.json},
              {"solution", solution},
              {"evaluation", evaluation}};
}

Status trace_workload(const TraceFlags& o, const TraceDefinition& definition,
                      const TraceWorkload& workload, const LowBitTolerance& tolerance,
                      WorkloadTensors& tensors, MoeFp8Runner& runner,
                      const Environment& environment, std::vector<Json>* traces, Tally* tally) {
  // One that cannot be read is told, and the others go on.
  const auto unreadable = [tally](const Error& error) {
    show_error(error);
    ++tally->unreadable;
    return Status();
  };
  auto of_workload = tensors.tensors_of(workload);
  if (!of_workload) return unreadable(of_workload.error());
  auto inputs = MoeFp8Inputs::from(*of_workload, workload.where);
  if (!inputs) return unreadable(inputs.error());
  const MoeFp8Params& p = inputs->params();
  std::vector<const Row<MoeFp8Params>*> rows;
  if (o.kernel == "all") {
    rows = runner.rows_for(p);
  } else {
    auto row = runner.row_for(p, o.kernel);
    if (!row) return fail(row.error());
    rows.push_back(*row);
  }
  auto reference = reference_of(o, *inputs, runner);
  if (!reference) return fail(reference.error());
  for (const auto* row : rows) {
    auto trace = trace_row(o, *row, *reference, tolerance, definition, workload, *inputs, runner,
                           environment);
    if (!trace) return fail(trace.error());
    const bool passes = (*trace)["evaluation"]["status"] == "PASSED";
    ++(passes ? tally->passed : tally->failed);
    traces->push_back(std::move(*trace));
  }
  return {};
}

Status trace_definition(const TraceFlags& o, const Flags& flags, const TraceDefinition& definition,
                        MoeFp8Runner& runner, Tally* tally) {
  auto tolerance = tolerance_of(o, flags, definition);
  if (!tolerance) return fail(tolerance.error());
  auto workloads = read_workloads(o.dataset, definition);
  if (!workloads) return fail(workloads.error());
  const auto place =
      o.dry_run ? Result<std::string>() : place_of_traces(o.dataset, o.author, definition);
  if (!place) return fail(place.error());
  if (!o.json)
    fmt::print("{}: rtol {}, atol {}, matched ratio {}\n", definition.name, tolerance->rtol,
               tolerance->atol, tolerance->required_matched_ratio);
  const Environment environment = collect_environment();
  WorkloadTensors tensors(o.dataset, definition, o.seed, runner.pool());
  for (const TraceWorkload& workload : *workloads) {
    if (!o.uuid.empty() && !workload.uuid.starts_with(o.uuid)) continue;
    const auto too_many = [&](const auto& axis) { return axis.second > o.max_tokens; };
    if (std::any_of(workload.axes.begin(), workload.axes.end(), too_many)) {
      ++tally->left_out;
      continue;
    }
    std::vector<Json> traces;
    auto traced = trace_workload(o, definition, workload, *tolerance, tensors, runner, environment,
                                 &traces, tally);
    if (!traced) return traced;
    if (o.json) tally->traces.insert(tally->traces.end(), traces.begin(), traces.end());
    if (o.dry_run) continue;
    // After each workload, so that an end by force loses one at most.
    if (auto appended = append_traces(*place, traces); !appended) return appended;
  }
  return {};
}

int trace(const TraceFlags& o, const Flags& flags) {
  if (o.dataset.empty()) return usage("op trace needs --dataset");
  if (!o.solution.empty() && o.kernel == "all")
    return usage("op trace: --solution-name names one solution, --kernel all has several");
  if (!is_plain_name(o.author))
    return usage("op trace: --author '" + o.author + "' is no plain name: it becomes a folder");
  auto definitions = read_definitions(o.dataset, o.definition);
  if (!definitions) return report(definitions.error());
  auto runner = open_runner(o.on);
  if (!runner) return report(runner.error());
  Tally tally;
  for (const TraceDefinition& definition : *definitions)
    if (auto traced = trace_definition(o, flags, definition, *runner, &tally); !traced)
      return report(traced.error());
  if (o.json)
    print_document(Json{{"passed", tally.passed},
                        {"failed", tally.failed},
                        {"left_out", tally.left_out},
                        {"unreadable", tally.unreadable},
                        {"traces", tally.traces}});
  else
    fmt::print("{} passed, {} not, {} left out by --max-tokens{}\n", tally.passed, tally.failed,
               tally.left_out,
               tally.unreadable == 0 ? "" : fmt::format(", {} not readable", tally.unreadable));
  if (tally.passed + tally.failed + tally.unreadable == 0)
    return report({"no workload ran", o.dataset, "see --workload and --max-tokens"});
  return tally.failed + tally.unreadable == 0 ? kExitDone : kExitFailed;
}

}  // namespace

Command op_trace_command() {
  auto o = std::make_shared<TraceFlags>();
  return {
      .name = "trace",
      .summary = "Run and judge the workloads of a flashinfer-trace tree, and append traces",
      .example = "moxie op trace --dataset flashinfer-trace --max-tokens 100",
      .declare =
          [o](Flags& flags) {
            flags.text("--dataset", &o->dataset, "the tree's root");
            flags.text("--definition", &o->definition, "one definition; default: all that fit");
            flags.text("--workload", &o->uuid, "workloads whose uuid begins so");
            flags.integer("--max-tokens", &o->max_tokens, kFromOne, "leave out larger workloads");
            flags.integer("--reference-tokens", &o->reference_tokens, kFromZero,
                          "compare this many tokens of a larger workload, drawn from --seed: the "
                          "reference row is slow; 0: all");
            flags.text("--kernel", &o->kernel, "a row's name, reference, auto or all");
            flags.text("--solution-name", &o->solution, "in the traces; default: the row's name");
            flags.text("--author", &o->author, "the folder below traces/");
            flags.text("--eval-config", &o->eval_config,
                       "JSON with definition_config, op_type_config and defaults of rtol, atol and "
                       "required_matched_ratio");
            flags.number("--rtol", &o->rtol, {0, 1e30f}, "overrides the config; else 0.01");
            flags.number("--atol", &o->atol, {0, 1e30f}, "overrides the config; else 0.01");
            flags.number("--required-matched-ratio", &o->ratio, {0, 1},
                         "overrides the config; else 0.95");
            flags.integer("--iterations", &o->iterations, {0, 10000},
                          "timed runs, cold caches; 0: 50 on CUDA, 5 on a CPU");
            declare_op_device(flags, &o->on);
            flags.unsigned64("--seed", &o->seed, {0, UINT32_MAX},
                             "of random inputs and compared tokens");
            flags.toggle("--dry-run", &o->dry_run, "append no traces");
            flags.toggle("--json", &o->json, "print one JSON document, with the traces");
          },
      .run = [o](const Flags& flags) { return trace(*o, flags); }};
}

}  // namespace moxie
