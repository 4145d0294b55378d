// moxie validate: the levels of one configuration, as lines or as JSON.
#include "lab/validate.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/cli.h"
#include "apps/output.h"
#include "apps/record_flags.h"
#include "apps/speculation_flags.h"
#include "lab/stats.h"

namespace moxie {
namespace {

struct ValidateFlags {
  ValidateOptions options;
  SpeculationFlags speculation;
  std::string level = "4", prefix_cache = "on", record;
  bool json = false;
};

void print_report(const ValidateReport& report) {
  const ValidateConditions& c = report.conditions;
  if (c.url.empty()) {
    fmt::print("{} on {}: {} cache, context {}, {} tokens a launch", c.model, c.device, c.kv_dtype,
               c.max_model_len, c.max_batch_tokens);
  } else {
    fmt::print("{} at {}: context {}", c.model, c.url, c.max_model_len);
  }
  fmt::print("{}\n\n", c.is_quick ? ", quick" : "");
  for (const ValidateLevelReport& level : report.levels) {
    const char* const verdict = level.passed()           ? "passed"
                                : !level.not_run.empty() ? "not run"
                                                         : "FAILED";
    fmt::print("level {:<4} {:<12} {}{}\n", level_number(level.level), level_title(level.level),
               verdict, level.not_run.empty() ? "" : ": " + level.not_run);
    for (const ValidateCheck& check : level.checks) {
      fmt::print("  {} {}: {}\n", check.passed ? "+" : "-", check.name, check.value);
      if (!check.passed) fmt::print("      bar: {}\n", check.bar);
    }
    for (const ValidateOmission& one : level.omissions)
      fmt::print("  . {}: not checked: {}\n", one.name, one.reason);
    for (const Series& series : level.figures) {
      const Summary s = summarize(series.samples);
      fmt::print("    {:<28} {:>10.2f} {:<6} p99 {:>10.2f}, MAD {:.1f}%\n", series.name, s.median,
                 series.unit, s.p99, s.median > 0 ? 100 * s.mad / s.median : 0);
    }
  }
  for (const std::string& reason : report.invalid_because)
    fmt::print("\nINVALID, no figure of this configuration counts: {}\n", reason);
  fmt::print("\n{}\n", report.passed() ? "valid" : "not valid");
}

int run(ValidateFlags& o, const Flags& flags) {
  if (o.level == "6") return usage("validate: level 6 is `moxie matrix`");
  const auto level = parse_validate_level(o.level);
  if (!level) return usage("validate: " + level.error().message());
  if (!o.options.against.empty() && *level != ValidateLevel::kRegression)
    return usage("validate: --against is for --level 5");
  if (!o.options.url.empty() && flags.given("--model"))
    return usage("validate: give --model or --url, not both");
  if (auto status = o.speculation.complete(flags); !status)
    return usage("validate: " + status.error().message());
  auto keeper = RecordKeeper::open({.record = o.record, .history = {}});
  if (!keeper) return report(keeper.error());
  o.options.last = *level;
  o.options.engine.speculation = o.speculation.options;
  o.options.engine.show_progress = false;
  o.options.prefix_cache = o.prefix_cache == "on";
  o.options.on_progress = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
  const auto found = validate(o.options);
  if (!found) return report(found.error());
  if (o.json)
    print_document(to_json(*found));
  else
    print_report(*found);
  Record record = record_of(*found, {});
  describe_command("validate", "validate", flags, &record);
  return keep_and_exit(*keeper, record, found->passed() ? kExitDone : kExitFailed);
}

}  // namespace

Command validate_command() {
  auto o = std::make_shared<ValidateFlags>();
  return {
      .name = "validate",
      .summary = "Levels of checks: answers, kernel path, correctness, stress, speed, regression",
      .example = "moxie validate --level 2 --expect experts=gemv --json",
      .declare =
          [o](Flags& flags) {
            declare_model_flags(flags, &o->options.engine);
            flags.unsigned64("--seed", &o->options.engine.seed, {0, UINT64_MAX},
                             "of synthetic weights");
            o->speculation.declare(flags);
            flags.choice("--level", &o->level, {"1", "1.5", "2", "3", "4", "5", "6"},
                         "the last level that is run; each needs those before it");
            flags.texts("--expect", &o->options.expect,
                        "STEP=NAME: level 1.5 fails unless this row, or one of this kind, runs; "
                        "repeatable");
            flags.texts("--forbid", &o->options.forbid,
                        "STEP=NAME: level 1.5 fails if it runs; repeatable");
            flags.check("--expect", check_step);
            flags.check("--forbid", check_step);
            flags.text("--against", &o->options.against,
                       "a record that --record wrote: level 5 compares with it");
            flags.text("--url", &o->options.url,
                       "a running server, checked over HTTP as far as that can be, instead of a "
                       "model");
            flags.text("--api-key", &o->options.api_key,
                       "with --url: sent as Authorization: Bearer");
            flags.choice("--prefix-cache", &o->prefix_cache, {"on", "off"},
                         "of the requests of level 3");
            flags.toggle("--quick", &o->options.quick,
                         "fewer requests and repetitions; the report says so");
            flags.text("--record", &o->record, "write figures and conditions to this file");
            flags.toggle("--json", &o->json, "print one JSON document");
          },
      .run = [o](const Flags& flags) { return run(*o, flags); }};
}

}  // namespace moxie
