// Level 5: what two runs cannot tell is omitted, and said.
#include "lab/validate_regression.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/bytes.h"
#include "lab/record_read.h"
#include "lab/validate_run.h"

namespace moxie {
namespace {

void check_speed(Validation& run, const SeriesDifference& one) {
  const Difference& d = one.difference;
  const std::string value = fmt::format(
      "{}: {:+.1f}% ({:+.1f}% to {:+.1f}%), {:.4g} {} against {:.4g}", one.verdict(),
      100 * d.relative, 100 * d.low, 100 * d.high, one.median_b, one.unit, one.median_a);
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
  const auto differences = speed_differences(*before, record_of(report, {}));
  const auto num_unclear =
      std::ranges::count(differences, SpeedVerdict::kUnclear,
                         [](const SeriesDifference& one) { return one.difference.verdict; });
  run.check("figures in common", !differences.empty(),
            fmt::format("{}, of which {} cannot be told apart from noise", differences.size(),
                        num_unclear),
            "at least one with the same name and unit");
  for (const SeriesDifference& one : differences) check_speed(run, one);
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
