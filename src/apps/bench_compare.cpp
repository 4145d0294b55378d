// moxie bench compare: two records side by side, or the two sides of one, with a verdict for each
// series.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "apps/bench_commands.h"
#include "apps/output.h"
#include "lab/record_read.h"

namespace moxie {
namespace {

struct CompareFlags {
  std::vector<std::string> files;
  bool json = false;
};

// The end of a long text of a condition, where what differs mostly stands.
std::string shortened(const std::string& text) {
  constexpr size_t kMost = 60;
  return text.size() <= kMost ? text : std::string("...").append(text, text.size() - kMost);
}

int show(const CompareFlags& o, const Comparison& comparison, const std::string& name_a,
         const std::string& name_b) {
  if (o.json)
    print_document(to_json(comparison));
  else
    print_comparison(comparison, name_a, name_b);
  return comparison.has_regression() ? kExitFailed : kExitDone;
}

int run(const CompareFlags& o) {
  if (o.files.empty() || o.files.size() > 2)
    return usage("bench compare takes two records, A.json B.json, or one of bench --vs");
  auto a = read_record(o.files[0]);
  if (!a) return report(a.error());
  if (o.files.size() == 1) {
    const auto comparison = compare_sides(*a, o.files[0]);
    if (!comparison) return report(comparison.error());
    return show(o, *comparison, "as given", "with " + switches_of_second(*a));
  }
  auto b = read_record(o.files[1]);
  if (!b) return report(b.error());
  const auto comparison = compare_records(*a, *b, o.files[0], o.files[1]);
  if (!comparison) return report(comparison.error());
  return show(o, *comparison, o.files[0], o.files[1]);
}

}  // namespace

std::string difference_text(const Difference& d) {
  return fmt::format("{:+.1f}% ({:+.1f}% to {:+.1f}%)", 100 * d.relative, 100 * d.low,
                     100 * d.high);
}

void print_comparison(const Comparison& comparison, const std::string& name_a,
                      const std::string& name_b) {
  fmt::print("A: {}\nB: {}\n\n", name_a, name_b);
  for (const ChangedCondition& one : comparison.changed) {
    log_warn(
        fmt::format("not alike: {}: '{}' and '{}'", one.what, shortened(one.a), shortened(one.b)));
  }
  fmt::print("| {:<20} | {:<8} | {:>12} | {:>12} | {:>28} | {:<8} |\n", "series", "unit", "A", "B",
             "difference (95%)", "verdict");
  fmt::print("|{:-<22}|{:-<10}|{:->14}|{:->14}|{:->30}|{:-<10}|\n", "", "", ":", ":", ":", "");
  for (const SeriesDifference& one : comparison.series) {
    fmt::print("| {:<20} | {:<8} | {:>12.4g} | {:>12.4g} | {:>28} | {:<8} |\n", one.name, one.unit,
               one.median_a, one.median_b, difference_text(one.difference), one.verdict());
  }
  for (const SeriesDifference& one : comparison.series) {
    if (!one.difference.because.empty()) fmt::print("{}: {}\n", one.name, one.difference.because);
    if (one.difference.is_regression())
      fmt::print("{}: a regression past {:.0f}%\n", one.name, 100 * kRegression);
  }
  if (!comparison.only_a.empty()) fmt::print("only in A: {}\n", fmt::join(comparison.only_a, ", "));
  if (!comparison.only_b.empty()) fmt::print("only in B: {}\n", fmt::join(comparison.only_b, ", "));
}

Command bench_compare_command() {
  auto o = std::make_shared<CompareFlags>();
  return {.name = "compare",
          .summary = "The difference of two records, or of one's two sides, with a verdict",
          .example = "moxie bench compare before.json after.json",
          .declare =
              [o](Flags& flags) {
                flags.positional(
                    "records", &o->files,
                    "two files of --record, or of bench --json: before, after; or one of --vs",
                    true);
                flags.toggle("--json", &o->json, "print one JSON document");
              },
          .run = [o](const Flags&) { return run(*o); }};
}

}  // namespace moxie
