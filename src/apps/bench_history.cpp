// moxie bench history: what a file of --history holds, as a list, plots or JSON.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/bench_commands.h"
#include "apps/output.h"
#include "lab/history.h"
#include "lab/text_plot.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

struct HistoryFlags {
  std::string history;
  HistoryFilter filter;
  bool plot = false, json = false;
};

Json to_json(const HistoryPoint& point) {
  return {{"time_utc", point.time_utc}, {"kind", point.kind},   {"model", point.model},
          {"commit", point.commit},     {"dirty", point.dirty}, {"machine", point.machine},
          {"series", point.series},     {"unit", point.unit},   {"better", point.better},
          {"median", point.median},     {"mad", point.mad},     {"samples", point.samples},
          {"switches", point.switches}};
}

void print_list(const std::vector<HistoryPoint>& points) {
  fmt::print("| {:<20} | {:<12} | {:<20} | {:<20} | {:>12} | {:>10} | {:<8} | switches |\n", "time",
             "commit", "model", "series", "median", "MAD", "unit");
  fmt::print("|{:-<22}|{:-<14}|{:-<22}|{:-<22}|{:->14}|{:->12}|{:-<10}|----------|\n", "", "", "",
             "", ":", ":", "");
  for (const HistoryPoint& point : points) {
    fmt::print("| {:<20} | {:<12} | {:<20} | {:<20} | {:>12.5g} | {:>10.3g} | {:<8} | {} |\n",
               point.time_utc, point.commit.substr(0, 11) + (point.dirty ? "+" : ""), point.model,
               point.series, point.median, point.mad, point.unit, point.switches);
  }
}

// A plot for each series of each model, machine and choice of switches, in the order in which they
// first came.
void print_plots(const std::vector<HistoryPoint>& points) {
  std::vector<std::pair<std::string, std::vector<double>>> plots;
  for (const HistoryPoint& point : points) {
    const std::string title =
        fmt::format("{}, {}, {}{}{} ({}, {} is better)", point.series, point.model, point.machine,
                    point.switches.empty() ? "" : ", ", point.switches, point.unit, point.better);
    auto at = std::find_if(plots.begin(), plots.end(),
                           [&](const auto& plot) { return plot.first == title; });
    if (at == plots.end()) at = plots.insert(plots.end(), {title, {}});
    at->second.push_back(point.median);
  }
  for (const auto& [title, values] : plots)
    fmt::print("{}: {} runs\n{}\n", title, values.size(), text_plot(values));
}

int run(const HistoryFlags& o) {
  if (o.history.empty()) return usage("bench history: --history FILE says which");
  auto history = History::open_to_read(o.history);
  if (!history) return report(history.error());
  const auto points = history->points(o.filter);
  if (!points) return report(points.error());
  if (o.json) {
    Json list = Json::array();
    for (const HistoryPoint& point : *points) list.push_back(to_json(point));
    print_document(Json{{"points", std::move(list)}});
  } else if (points->empty()) {
    fmt::print("{}: nothing of this kind\n", o.history);
  } else if (o.plot) {
    print_plots(*points);
  } else {
    print_list(*points);
  }
  return kExitDone;
}

}  // namespace

Command bench_history_command() {
  auto o = std::make_shared<HistoryFlags>();
  return {.name = "history",
          .summary = "The records of a history: list, plot, JSON",
          .example = "moxie bench history --history speed.db --series tg128 --plot",
          .declare =
              [o](Flags& flags) {
                flags.text("--history", &o->history, "the file that --history of bench wrote");
                flags.text("--series", &o->filter.series, "only this series, such as tg128");
                flags.text("--model-name", &o->filter.model, "only models with this in their name");
                flags.text("--commit", &o->filter.commit, "only commits that begin with this");
                flags.text("--kind", &o->filter.kind,
                           "only records of this command, such as bench");
                flags.toggle("--plot", &o->plot, "draw each series over the runs");
                flags.toggle("--json", &o->json, "print one JSON document");
              },
          .run = [o](const Flags&) { return run(*o); }};
}

}  // namespace moxie
