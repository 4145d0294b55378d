// Level 5: what two runs cannot tell is omitted, and said.
#include "lab/validate_regression.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/bytes.h"
#include "lab/record_read.h"
#include "lab/validate_run.h"

namespace moxie {
namespace {

// The samples of a speed once more, twice as many; nothing if it is no test of an engine.
Result<std::optional<Series>> measured_again(Validation& run, const Series& first) {
  if (!run.options().url.empty()) return std::nullopt;
  const auto tests = speed_tests();
  const auto test = std::ranges::find(tests, first.name, &BenchTest::name);
  if (test == tests.end()) return std::nullopt;
  const auto gpus = run.report().environment.gpus;  // as level 4 left them
  if (auto opened = run.open(); !opened) return fail(std::move(opened.error()));
  run.report().environment.gpus = gpus;
  const auto repetitions = static_cast<int32_t>(2 * first.samples.size());
  auto result = run.seams().run_bench(run.engine(), *test, repetitions, run.report().machine);
  if (!result) return fail(std::move(result.error()));
  Series again = first;
  again.samples = std::move(result->tok_s);
  again.limit_gb_s = std::move(result->read_gb_s);
  again.limit_launches_s = std::move(result->launches_s);
  again.joules_per_token = result->energy.joules_per_token();
  return again;
}

// A machine may be slow for the second that a short test takes, and a model that was loaded anew
// lies elsewhere in memory: a speed is slower only if it still is when it is measured again, and
// again with the model loaded anew.
Status confirm(Validation& run, const Record& before, const Record& now, SeriesDifference* one,
               int* times) {
  const auto named = [&](const Record& record) {
    return std::ranges::find_if(record.results, [&](const Series& series) {
      return series.name == one->name && series.unit == one->unit;
    });
  };
  for (*times = 0; *times < 2 && one->difference.is_regression(); ++*times) {
    if (*times == 1) run.close();
    const auto again = measured_again(run, *named(now));
    if (!again) return fail(again.error());
    if (!again->has_value()) return {};
    *one = difference_of(before, now, *named(before), **again);
  }
  return {};
}

void check_speed(Validation& run, const SeriesDifference& one, int times) {
  const Difference& d = one.difference;
  const std::string value =
      fmt::format("{}: {:+.1f}% ({:+.1f}% to {:+.1f}%), {:.4g} {} against {:.4g}{}", one.verdict(),
                  100 * d.relative, 100 * d.low, 100 * d.high, one.median_b, one.unit, one.median_a,
                  times == 0   ? ""
                  : times == 1 ? ", measured twice"
                               : ", measured three times");
  if (d.verdict == SpeedVerdict::kUnclear)
    return run.omit(one.name, fmt::format("{}; {}", value, d.because));
  run.check({.name = one.name,
             .passed = !d.is_regression(),
             .value = value,
             .bar = fmt::format("not {:.0f}% slower", 100 * kRegression)});
}

}  // namespace

std::vector<SeriesDifference> speed_differences(const Record& before, const Record& now) {
  std::vector<SeriesDifference> differences;
  for (const Series& b : before.results) {
    const auto n = std::ranges::find_if(now.results, [&](const Series& series) {
      return series.name == b.name && series.unit == b.unit;
    });
    if (n == now.results.end() || b.unit != "tok/s") continue;
    differences.push_back(difference_of(before, now, b, *n));
  }
  return differences;
}

Status run_regression(Validation& run) {
  const std::string& path = run.options().against;
  ValidateReport& report = run.report();
  if (path.empty()) {
    report.levels.back().not_run = "no record to compare with: give --against RECORD";
    return {};
  }
  const auto before = read_record(path);
  if (!before) return fail(before.error());
  run.check("the record is valid", before->valid != false,
            before->valid == false ? before->invalid_because.front() : "not invalid",
            "its kernels were proven");
  const Record now = record_of(report, {});
  auto differences = speed_differences(*before, now);
  std::vector<int> times(differences.size(), 0);
  for (size_t i = 0; i < differences.size(); ++i)
    if (auto status = confirm(run, *before, now, &differences[i], &times[i]); !status)
      return status;
  const auto num_unclear =
      std::ranges::count(differences, SpeedVerdict::kUnclear,
                         [](const SeriesDifference& one) { return one.difference.verdict; });
  run.check("figures in common", !differences.empty(),
            fmt::format("{}, of which {} cannot be told apart from noise", differences.size(),
                        num_unclear),
            "at least one with the same name and unit");
  for (size_t i = 0; i < differences.size(); ++i) check_speed(run, differences[i], times[i]);
  if (!run.options().url.empty()) {
    run.omit("peak of memory", "a server's is not told");
    return {};
  }
  const uint64_t now_bytes = run.seams().peak_memory_bytes();
  report.memory_peak_bytes = now_bytes;
  run.check({.name = "peak of memory",
             .passed = now_bytes <= before->memory_peak_bytes + kMostMoreBytes,
             .value = fmt::format("{} against {}", format_bytes(now_bytes),
                                  format_bytes(before->memory_peak_bytes)),
             .bar = "at most 1 GB more"});
  return {};
}

}  // namespace moxie
