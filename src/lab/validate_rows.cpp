// Checks of rows that ran, for levels in this process and by a server's answer alike.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lab/validate_run.h"

namespace moxie {
namespace {

// The rows that did the step, as text.
std::string rows_of(const RowLaunches& ran, const std::string& step) {
  std::vector<std::string> names;
  for (const auto& [key, times] : ran)
    if (key.first == step) names.push_back(key.second);
  return names.empty() ? "no row" : fmt::format("{}", fmt::join(names, ", "));
}

void check_named(Validation& run, const RowLaunches& ran, const std::string& text,
                 bool is_expected) {
  const char* const flag = is_expected ? "--expect" : "--forbid";
  const auto rows = parse_named_rows(text, flag);
  CHECK(rows.has_value());  // validate() has looked
  const bool did_run = std::ranges::any_of(ran, [&](const auto& entry) {
    return entry.first.first == rows->step &&
           std::ranges::find(rows->names, entry.first.second) != rows->names.end();
  });
  const bool passed = did_run == is_expected;
  run.check(fmt::format("{} {}", flag, text), passed, rows_of(ran, rows->step),
            is_expected ? "it ran" : "it did not run");
  if (!passed) {
    run.report().invalid_because.push_back(
        fmt::format("level {}: {} {}: {} ran", level_number(run.report().levels.back().level), flag,
                    text, rows_of(ran, rows->step)));
  }
}

}  // namespace

void check_steps(Validation& run, const RowLaunches& ran) {
  std::set<std::string> steps, names;
  for (const auto& [key, times] : ran) {
    steps.insert(key.first);
    names.insert(key.second);
    run.say(fmt::format("    {} {} x{}", key.first, key.second, times));
  }
  constexpr const char* kSteps[] = {"embed", "qkv", "attend", "out", "route", "experts", "unembed"};
  std::vector<std::string> missing;
  for (const char* step : kSteps)
    if (!steps.contains(step)) missing.emplace_back(step);
  run.check("kernels are counted", missing.empty(),
            missing.empty() ? fmt::format("{}", fmt::join(names, ", "))
                            : fmt::format("none for {}", fmt::join(missing, ", ")),
            "a row for every step");
}

void check_named_rows(Validation& run, const RowLaunches& ran) {
  for (const std::string& text : run.options().expect) check_named(run, ran, text, true);
  for (const std::string& text : run.options().forbid) check_named(run, ran, text, false);
}

}  // namespace moxie
