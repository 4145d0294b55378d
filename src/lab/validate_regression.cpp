// Level 5: medians are drawn again and again for their interval.
#include "lab/validate_regression.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "core/bytes.h"
#include "lab/record_read.h"
#include "lab/stats.h"
#include "lab/validate_run.h"

namespace moxie {
namespace {

constexpr int kNumDraws = 2000;

// The median of as many samples, drawn with replacement.
double drawn_median(const std::vector<double>& samples, std::mt19937_64* random,
                    std::vector<double>* scratch) {
  scratch->clear();
  for (size_t i = 0; i < samples.size(); ++i)
    scratch->push_back(samples[(*random)() % samples.size()]);
  return median(*scratch);
}

double change_of(double before, double now) { return now / before - 1; }

bool is_usable(const Series& series) {
  return !series.samples.empty() && std::ranges::all_of(series.samples, [](double sample) {
    return std::isfinite(sample) && sample > 0;
  });
}

}  // namespace

std::vector<FigureChange> figure_changes(const std::vector<Series>& before,
                                         const std::vector<Series>& now) {
  std::vector<FigureChange> changes;
  for (const Series& b : before) {
    const auto n = std::ranges::find_if(
        now, [&](const Series& series) { return series.name == b.name && series.unit == b.unit; });
    if (n == now.end() || b.unit != "tok/s" || !is_usable(b) || !is_usable(*n)) continue;
    FigureChange change{
        .name = b.name, .unit = b.unit, .before = median(b.samples), .now = median(n->samples)};
    change.change = change_of(change.before, change.now);
    std::mt19937_64 random(1);
    std::vector<double> scratch, drawn;
    for (int i = 0; i < kNumDraws; ++i) {
      const double drawn_before = drawn_median(b.samples, &random, &scratch);
      drawn.push_back(change_of(drawn_before, drawn_median(n->samples, &random, &scratch)));
    }
    change.low = percentile(drawn, 0.025);
    change.high = percentile(drawn, 0.975);
    changes.push_back(std::move(change));
  }
  return changes;
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
  const ValidateLevelReport* const bench = report.find(ValidateLevel::kBenchmark);
  CHECK(bench != nullptr);
  const auto changes = figure_changes(before->results, bench->figures);
  run.check("figures in common", !changes.empty(), fmt::format("{}", changes.size()),
            "at least one with the same name and unit");
  for (const FigureChange& c : changes) {
    run.check(
        {.name = c.name,
         .passed = !c.is_regression(),
         .value = fmt::format("{:+.1f}% ({:+.1f}% to {:+.1f}%): {:.4g} {} against {:.4g}",
                              100 * c.change, 100 * c.low, 100 * c.high, c.now, c.unit, c.before),
         .bar = fmt::format("not {:.0f}% slower, with an interval below 0", 100 * kRegression)});
  }
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
