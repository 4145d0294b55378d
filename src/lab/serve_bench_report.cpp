#include "lab/serve_bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lab/stats.h"
#include "lab/verdict.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

// Above this share of a core the client may hold the streams up.
constexpr double kBusyClient = 0.5;
// A first response in less than this share of the time to the first content holds a role alone.
constexpr double kEarlyRole = 0.5;

Json to_json(const ServeSeries& series) {
  const Summary s = summarize(series.samples);
  return {{"unit", series.unit}, {"count", s.count},   {"mean", s.mean},
          {"stdev", s.stdev},    {"median", s.median}, {"p50", s.p50},
          {"p90", s.p90},        {"p99", s.p99},       {"samples", series.samples}};
}

Json to_json(const EndpointFacts& facts) {
  const ServeTraffic& t = facts.traffic;
  return {{"url", facts.url},
          {"model", facts.model},
          {"latency_ms", 1e3 * facts.latency_s},
          {"prompts_counted_by", facts.counts_by},
          {"template_tokens", facts.num_template_tokens},
          {"tells_token_ids", facts.tells_token_ids},
          {"traffic",
           {{"requests", t.num_requests},
            {"prompt_tokens", t.num_prompt},
            {"completion_tokens", t.num_completion},
            {"ttft_s", t.ttft_s},
            {"gaps_s", t.gaps_s},
            {"first_response_s", t.first_response_s}}}};
}

// "ttft_ms", "pp_tok_s"; "output_tok_s" is the number over the whole test.
std::string key_of(const ServeSeries& series) {
  if (series.unit == "ms") return series.name + "_ms";
  return series.name + (series.name == "output" ? "_block_tok_s" : "_tok_s");
}

Json errors_json(const ServeFigures& figures) {
  Json errors = Json::array();
  for (const auto& [kind, count] : figures.errors) {
    const auto message = figures.first_message.find(kind);
    errors.push_back({{"kind", kind},
                      {"count", count},
                      {"first", message == figures.first_message.end() ? "" : message->second}});
  }
  return errors;
}

Json goodput_json(const ServeFigures& figures, const Goodput& goodput) {
  const auto or_null = [](const std::optional<double>& bar) { return bar ? Json(*bar) : Json(); };
  const int64_t num_good = figures.num_good(goodput);
  const double all =
      static_cast<double>(figures.requests.size()) + static_cast<double>(figures.num_errors());
  return {{"ttft_ms", or_null(goodput.ttft_ms)},
          {"tpot_ms", or_null(goodput.tpot_ms)},
          {"e2e_ms", or_null(goodput.e2e_ms)},
          {"requests", num_good},
          {"share", all > 0 ? static_cast<double>(num_good) / all : 0},
          {"requests_s", figures.busy_s > 0 ? static_cast<double>(num_good) / figures.busy_s : 0}};
}

Json test_json(const ServeRun& run, const ServeRun::Cell& cell, size_t index) {
  const ServeTest& test = cell.test;
  const ServeFigures& f = cell.outcome.figures[index];
  int64_t num_events = 0;
  for (const RequestFigures& r : f.requests) num_events += r.num_events;
  Json json = {{"name", test.name()},
               {"url", run.endpoints[index].url},
               {"n_prompt", test.n_prompt},
               {"n_gen", test.n_gen},
               {"depth", test.depth},
               {"concurrency", test.concurrency > 0 ? Json(test.concurrency) : Json()},
               {"rate", test.concurrency > 0 ? Json() : Json(test.rate)},
               {"requests", f.requests.size()},
               {"errors", errors_json(f)},
               {"seconds", f.busy_s},
               {"requests_s", f.requests_s()},
               {"output_tok_s", f.output_tok_s()},
               {"total_tok_s", f.total_tok_s()},
               {"tokens",
                {{"prompt", f.num_prompt()},
                 {"cached", f.num_cached()},
                 {"output", f.num_output()},
                 {"events", num_events},
                 {"prompts_of_other_length", f.num_disagreements}}}};
  for (const ServeSeries& series : f.series()) json[key_of(series)] = to_json(series);
  json["goodput"] = run.goodput.is_asked() ? goodput_json(f, run.goodput) : Json();
  json["client"] = {{"cpu_s", cell.outcome.client_cpu_s}, {"wall_s", cell.outcome.wall_s}};
  json["stopped"] = cell.outcome.stopped.empty() ? Json() : Json(cell.outcome.stopped);
  return json;
}

// The median of each block that two endpoints have in turn, where both have one.
struct BlockMedians {
  std::vector<double> a, b;
};
BlockMedians block_medians(const ServeFigures& first, const ServeFigures& second, size_t figure) {
  const auto blocks_a = first.by_block(), blocks_b = second.by_block();
  BlockMedians medians;
  for (size_t i = 0; i < std::min(blocks_a.size(), blocks_b.size()); ++i) {
    const ServeSeries a = blocks_a[i].series()[figure], b = blocks_b[i].series()[figure];
    if (a.samples.empty() || b.samples.empty()) continue;
    medians.a.push_back(median(a.samples));
    medians.b.push_back(median(b.samples));
  }
  return medians;
}

void append_verdicts(const ServeRun& run, const ServeRun::Cell& cell, Json* verdicts) {
  const auto& figures = cell.outcome.figures;
  for (size_t i = 1; i < figures.size(); ++i) {
    const auto all = figures.front().series();
    for (size_t k = 0; k < all.size(); ++k) {
      const BlockMedians medians = block_medians(figures.front(), figures[i], k);
      const Difference found = judge_paired(
          medians.a, medians.b, all[k].lower_is_better ? Better::kLower : Better::kHigher);
      verdicts->push_back({{"test", cell.test.name()},
                           {"figure", all[k].name},
                           {"a", run.endpoints.front().url},
                           {"b", run.endpoints[i].url},
                           {"change", found.relative},
                           {"interval", {found.low, found.high}},
                           {"p", found.p},
                           {"pairs", found.units},
                           {"verdict", verdict_name(found.verdict)},
                           {"because", found.because}});
    }
  }
}

Json verdicts_json(const ServeRun& run) {
  Json verdicts = Json::array();
  for (const ServeRun::Cell& cell : run.cells) append_verdicts(run, cell, &verdicts);
  return verdicts;
}

// Without the seed, which is another each run.
Workload workload_of(const ServeRun& run, const ServeTest& test) {
  return {.num_prompt_tokens = test.n_prompt,
          .num_output_tokens = test.n_gen,
          .depth = test.depth,
          .concurrency = test.concurrency,
          .prefix_cache = run.keeps_prefix_cache};
}

std::vector<std::string> notes_of_requests(const ServeTest& test, const ServeFigures& f) {
  std::vector<std::string> notes;
  int64_t num_events = 0, num_short = 0, num_early = 0;
  for (const RequestFigures& r : f.requests) {
    num_events += r.num_events;
    num_short += r.num_output < test.n_gen ? 1 : 0;
    num_early += r.ttfr_ms < kEarlyRole * r.ttft_ms ? 1 : 0;
  }
  if (num_early > static_cast<int64_t>(f.requests.size()) / 2) {
    notes.emplace_back(
        "the role of an answer comes long before its text, so that pp (the time to the first "
        "response) is not the speed of the prompt; pp_ttft is");
  }
  if (f.num_cached() > 0) {
    notes.push_back(fmt::format("{} of {} prompt tokens came from the prefix cache", f.num_cached(),
                                f.num_prompt()));
  }
  if (f.num_disagreements > 0) {
    notes.push_back(
        fmt::format("{} prompts have another length by usage than asked for", f.num_disagreements));
  }
  if (num_short > 0) {
    notes.push_back(
        fmt::format("{} answers are shorter than {} tokens (--ignore-eos, where the "
                    "endpoint knows it, makes them full)",
                    num_short, test.n_gen));
  }
  if (num_events < f.num_output()) {
    notes.push_back(fmt::format("{} tokens came in {} events: some held several, or had no text",
                                f.num_output(), num_events));
  }
  return notes;
}

std::string with_deviation(const ServeSeries& series) {
  if (series.samples.empty()) return "-";
  const Summary s = summarize(series.samples);
  return fmt::format("{:.2f} ± {:.2f}", s.mean, s.stdev);
}

}  // namespace

int64_t ServeRun::num_errors() const {
  int64_t count = 0;
  for (const Cell& cell : cells) {
    for (const ServeFigures& figures : cell.outcome.figures) count += figures.num_errors();
  }
  return count;
}

Json to_json(const ServeRun& run) {
  Json endpoints = Json::array(), tests = Json::array();
  for (const EndpointFacts& facts : run.endpoints) endpoints.push_back(to_json(facts));
  for (const ServeRun::Cell& cell : run.cells) {
    for (size_t i = 0; i < run.endpoints.size(); ++i) tests.push_back(test_json(run, cell, i));
  }
  return {{"endpoints", std::move(endpoints)},
          {"tests", std::move(tests)},
          {"verdicts", verdicts_json(run)},
          {"notes", notes_of(run)},
          {"stopped", run.stopped.empty() ? Json() : Json(run.stopped)}};
}

std::string table_of(const ServeRun& run, const ServeRun::Cell& cell) {
  std::string text = fmt::format("\n{}\n", cell.test.name());
  for (size_t i = 0; i < run.endpoints.size(); ++i) {
    const ServeFigures& f = cell.outcome.figures[i];
    if (run.endpoints.size() > 1) text += fmt::format("  {}\n", run.endpoints[i].url);
    const auto all = f.series();
    for (const ServeSeries& one : all) {
      if (one.unit != "ms") continue;
      const Summary s = summarize(one.samples);
      text += one.samples.empty()
                  ? fmt::format("  {:<7} {:>12}\n", one.name, "-")
                  : fmt::format("  {:<7} p50 {:>10.2f}  p90 {:>10.2f}  p99 {:>10.2f} ms\n",
                                one.name, s.p50, s.p90, s.p99);
    }
    for (const ServeSeries& one : all) {
      if (one.name == "pp" || one.name == "pp_ttft" || one.name == "tg")
        text += fmt::format("  {:<7} {} tok/s a request\n", one.name, with_deviation(one));
    }
    text += fmt::format("  all     {:.2f} tok/s out, {:.3f} requests/s, {} requests in {:.2f} s\n",
                        f.output_tok_s(), f.requests_s(), f.requests.size(), f.busy_s);
    if (run.goodput.is_asked()) {
      text += fmt::format("  good    {} of {} requests keep the bars\n", f.num_good(run.goodput),
                          f.requests.size() + static_cast<size_t>(f.num_errors()));
    }
  }
  Json verdicts = Json::array();
  append_verdicts(run, cell, &verdicts);
  for (const Json& one : verdicts) {
    text += fmt::format("  {:<7} {} is {} ({:+.1f}%, 95% from {:+.1f}% to {:+.1f}%) {}\n",
                        one["figure"].get<std::string>(), one["b"].get<std::string>(),
                        one["verdict"].get<std::string>(), 100 * one["change"].get<double>(),
                        100 * one["interval"][0].get<double>(),
                        100 * one["interval"][1].get<double>(), one["because"].get<std::string>());
  }
  return text;
}

std::vector<std::string> notes_of(const ServeRun& run) {
  std::vector<std::string> notes;
  for (const EndpointFacts& facts : run.endpoints) {
    if (facts.counts_by == "usage")
      notes.push_back(facts.url + ": has no /tokenize; prompts were measured by usage of probes");
  }
  for (const ServeRun::Cell& cell : run.cells) {
    for (size_t i = 0; i < run.endpoints.size(); ++i) {
      const std::string where = fmt::format("{} at {}: ", cell.test.name(), run.endpoints[i].url);
      for (const std::string& note : notes_of_requests(cell.test, cell.outcome.figures[i]))
        notes.push_back(where + note);
    }
    if (cell.test.concurrency == 0 && run.endpoints.size() > 1) {
      notes.push_back(cell.test.name() +
                      ": the endpoints take turns in blocks, and the next block begins when the "
                      "last has ended, so that fewer requests are under way at once than by this "
                      "rate alone; a larger --block comes nearer");
    }
    const double wall_s = cell.outcome.wall_s;
    const double share = wall_s > 0 ? cell.outcome.client_cpu_s / wall_s : 0;
    if (share > kBusyClient) {
      notes.push_back(
          fmt::format("{}: this client took {:.0f}% of a core; its own work may be in "
                      "the figures",
                      cell.test.name(), 100 * share));
    }
  }
  return notes;
}

std::string errors_of(const ServeRun& run) {
  std::string text;
  for (const ServeRun::Cell& cell : run.cells) {
    for (size_t i = 0; i < run.endpoints.size(); ++i) {
      for (const Json& one : errors_json(cell.outcome.figures[i])) {
        text += fmt::format("{} at {}: {} x {}: {}\n", cell.test.name(), run.endpoints[i].url,
                            one["count"].get<int64_t>(), one["kind"].get<std::string>(),
                            one["first"].get<std::string>());
      }
    }
  }
  return text;
}

Json details_of(const ServeRun& run) {
  Json json = to_json(run);
  for (Json& test : json["tests"]) {  // the samples are in the series
    for (auto& [name, value] : test.items()) {
      if (value.is_object()) value.erase("samples");
    }
  }
  return json;
}

std::vector<Series> series_of(const ServeRun& run) {
  std::vector<Series> all;
  for (const ServeRun::Cell& cell : run.cells) {
    for (size_t i = 0; i < run.endpoints.size(); ++i) {
      for (const ServeSeries& one : cell.outcome.figures[i].series()) {
        if (one.samples.empty()) continue;
        all.push_back({.name = fmt::format("{} {}{}", cell.test.name(), one.name,
                                           i > 0 ? fmt::format(" #{}", i + 1) : ""),
                       .unit = one.unit,
                       .samples = one.samples,
                       .better = one.lower_is_better ? Better::kLower : Better::kHigher,
                       .workload = workload_of(run, cell.test)});
      }
    }
  }
  return all;
}

}  // namespace moxie
