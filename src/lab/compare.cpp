// Conditions are compared as texts, so that what differs is printed as it stands in the records.
#include "lab/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "lab/stats.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

std::string hardware(const Record& record) {
  const Environment& e = record.environment;
  std::string text = fmt::format("{}, {} cores", e.cpu, e.num_cores);
  for (const GpuState& gpu : e.gpus) text += ", " + gpu.name;
  return text;
}

std::string drivers(const Record& record) {
  std::string text;
  for (const GpuState& gpu : record.environment.gpus)
    text += (text.empty() ? "" : ", ") + gpu.driver;
  return text;
}

std::string throttling(const Record& record) {
  std::string text;
  for (const GpuState& gpu : record.environment.gpus)
    text += (text.empty() ? "" : ", ") + gpu.throttle_reasons;
  return text;
}

std::string text_of(const Workload& w) {
  return fmt::format(
      "{} prompt tokens, {} generated, depth {}, batch {}, concurrency {}, seed {}, {}, prefix "
      "cache {}",
      w.num_prompt_tokens, w.num_output_tokens, w.depth, w.batch, w.concurrency, w.seed, w.sampling,
      w.prefix_cache ? "on" : "off");
}

// The rows that ran, by series and step; those of the whole run are under "".
std::map<std::string, std::string> rows_by_series(const Record& record) {
  std::map<std::string, std::set<std::string>> sets;
  for (const KernelLaunches& kernel : record.kernel_path)
    sets[kernel.of].insert(kernel.step + "=" + kernel.name);
  std::map<std::string, std::string> texts;
  for (const auto& [of, rows] : sets) texts[of] = fmt::format("{}", fmt::join(rows, " "));
  return texts;
}

class Changes {
 public:
  void add(const std::string& what, const std::string& a, const std::string& b) {
    if (a != b) list.push_back({what, a, b});
  }
  std::vector<ChangedCondition> list;
};

void add_switches(const Record& a, const Record& b, Changes* changes) {
  std::map<std::string, std::pair<std::string, std::string>> values;
  constexpr const char* kAbsent = "(not there)";
  for (const Setting& setting : a.configuration) values[setting.name] = {setting.value, kAbsent};
  for (const Setting& setting : b.configuration) {
    const auto [at, is_first] = values.try_emplace(setting.name, kAbsent, setting.value);
    if (!is_first) at->second.second = setting.value;
  }
  for (const auto& [name, pair] : values) {
    if (!is_switch_of_output(name) && name != "--verbose")
      changes->add(name, pair.first, pair.second);
  }
}

void add_kernels(const Record& a, const Record& b, Changes* changes) {
  const auto of_a = rows_by_series(a), of_b = rows_by_series(b);
  for (const auto& [of, rows] : of_a) {
    const auto found = of_b.find(of);
    if (found != of_b.end())
      changes->add(of.empty() ? "kernels" : "kernels of " + of, rows, found->second);
  }
}

double peak_rate(const MachineLimits& limits) {
  return std::max(limits.fp32.rate, limits.bf16.rate);
}

// Decode without graphs moves with the rate of launches, but not by exactly as much: between two
// runs of 84 tests on one H100 by 1.06 times the movement of the rate, give or take 5%, and where
// that was above 10% by at most 1.5 times of it in 40 of 41.
constexpr double kOfLaunches = 1.5;

double log_ratio(double a, double b) { return a > 0 && b > 0 ? std::fabs(std::log(b / a)) : 0; }

// How far the machine's own limits moved between two runs on it. Other machines are a condition,
// not a movement.
LimitShift limit_shift(const Record& a, const Record& b, const Series& of_a, const Series& of_b) {
  if (a.environment.hostname_hash != b.environment.hostname_hash || hardware(a) != hardware(b))
    return {};
  const double arithmetic = log_ratio(peak_rate(a.machine), peak_rate(b.machine));
  const double reads = of_a.limit_gb_s.empty() || of_b.limit_gb_s.empty()
                           ? log_ratio(a.machine.read_gb_s, b.machine.read_gb_s)
                           : log_ratio(median(of_a.limit_gb_s), median(of_b.limit_gb_s));
  const LimitShift shift{std::max(arithmetic, reads)};
  if (of_a.limit_launches_s.empty() || of_b.limit_launches_s.empty()) return shift;
  const double launches =
      kOfLaunches * log_ratio(median(of_a.limit_launches_s), median(of_b.limit_launches_s));
  if (launches <= shift.size) return shift;
  return {launches, "the rate at which the host starts kernels"};
}

const Series* find_series(const Record& record, const std::string& name) {
  const auto found = std::find_if(record.results.begin(), record.results.end(),
                                  [&](const Series& one) { return one.name == name; });
  return found == record.results.end() ? nullptr : &*found;
}

Status check_alike(const Record& a, const Record& b, const Series& of_a, const Series& of_b,
                   const std::string& names) {
  const auto refuse = [&](const std::string& what, const std::string& x, const std::string& y) {
    return fail(fmt::format("the {} of '{}' differ: '{}' and '{}'", what, of_a.name, x, y), names,
                "only like can be compared");
  };
  if (of_a.unit != of_b.unit) return refuse("units", of_a.unit, of_b.unit);
  if (of_a.better != of_b.better || of_a.is_exact != of_b.is_exact)
    return refuse("directions", better_name(of_a.better), better_name(of_b.better));
  Workload workload_a = of_a.workload.value_or(a.workload);
  Workload workload_b = of_b.workload.value_or(b.workload);
  workload_a.num_warm_ups = workload_b.num_warm_ups = 0;
  if (workload_a != workload_b)
    return refuse("workloads", text_of(workload_a), text_of(workload_b));
  return {};
}

Status check_valid(const Record& record, const std::string& name) {
  if (record.valid != false) return {};
  return fail(fmt::format("the record is invalid: {}", fmt::join(record.invalid_because, "; ")),
              name, "its figures are not those of the configuration that it names");
}

// Of cores beside a run on the CPU. What others use changes by steps from run to run, each steady
// within: a difference that is none, and that no test on the samples tells.
constexpr double kMostUsedByOthers = 0.1;

void doubt_beside_load(const Record& a, const Record& b, Difference* difference) {
  const auto others = [](const Record& record) {
    const Environment& e = record.environment;
    return e.gpus.empty() ? e.cpu_used_by_others.value_or(0) : 0;
  };
  const bool is_called =
      difference->verdict == SpeedVerdict::kFaster || difference->verdict == SpeedVerdict::kSlower;
  if (!is_called || std::max(others(a), others(b)) <= kMostUsedByOthers) return;
  difference->verdict = SpeedVerdict::kUnclear;
  difference->because =
      fmt::format("other processes used {:.0f}% and {:.0f}% of the cores; bench --vs takes turns",
                  100 * others(a), 100 * others(b));
}

}  // namespace

std::string SeriesDifference::verdict() const {
  if (!is_timed() && difference.verdict == SpeedVerdict::kFaster) return "better";
  if (!is_timed() && difference.verdict == SpeedVerdict::kSlower) return "worse";
  return verdict_name(difference.verdict);
}

bool Comparison::has_regression() const {
  return std::any_of(series.begin(), series.end(),
                     [](const SeriesDifference& one) { return one.difference.is_regression(); });
}

SeriesDifference difference_of(const Record& a, const Record& b, const Series& of_a,
                               const Series& of_b) {
  SeriesDifference one{
      .name = of_a.name, .unit = of_a.unit, .better = of_a.better, .is_exact = of_a.is_exact};
  const auto middle = [&](const Series& s) {
    return one.is_timed() ? median(s.samples) : mean(s.samples);
  };
  one.median_a = middle(of_a);
  one.median_b = middle(of_b);
  one.difference = one.is_exact        ? judge_exact(of_a.samples, of_b.samples, one.better)
                   : one.are_answers() ? judge_answers(of_a.samples, of_b.samples)
                                       : judge_runs(of_a.samples, of_b.samples, one.better,
                                                    limit_shift(a, b, of_a, of_b));
  if (one.is_timed()) doubt_beside_load(a, b, &one.difference);
  return one;
}

std::vector<ChangedCondition> changed_conditions(const Record& a, const Record& b) {
  Changes changes;
  const Environment &of_a = a.environment, &of_b = b.environment;
  const auto commit = [](const Environment& e) {
    return e.commit + (e.dirty ? " with local changes" : "");
  };
  changes.add("host", of_a.hostname_hash, of_b.hostname_hash);
  changes.add("machine", hardware(a), hardware(b));
  changes.add("threads", std::to_string(a.machine.num_threads),
              std::to_string(b.machine.num_threads));
  changes.add("governor", of_a.governor, of_b.governor);
  changes.add("kernel version", of_a.kernel, of_b.kernel);
  changes.add("driver", drivers(a), drivers(b));
  changes.add("throttling", throttling(a), throttling(b));
  changes.add("commit", commit(of_a), commit(of_b));
  changes.add("build", of_a.build_type + " " + of_a.build_flags,
              of_b.build_type + " " + of_b.build_flags);
  changes.add("compiler", of_a.compiler, of_b.compiler);
  changes.add("CUDA", of_a.cuda_version, of_b.cuda_version);
  changes.add("model", a.weights.model, b.weights.model);
  changes.add("weights", a.weights.hash, b.weights.hash);
  add_switches(a, b, &changes);
  add_kernels(a, b, &changes);
  return std::move(changes.list);
}

Result<Comparison> compare_records(const Record& a, const Record& b, const std::string& name_a,
                                   const std::string& name_b) {
  const std::string names = name_a + " and " + name_b;
  if (auto status = check_valid(a, name_a); !status) return fail(std::move(status.error()));
  if (auto status = check_valid(b, name_b); !status) return fail(std::move(status.error()));
  if (a.kind != b.kind)
    return fail(fmt::format("the records are of '{}' and '{}'", a.kind, b.kind), names);
  Comparison comparison{.changed = changed_conditions(a, b)};
  for (const Series& of_a : a.results) {
    const Series* of_b = find_series(b, of_a.name);
    if (of_b == nullptr) {
      comparison.only_a.push_back(of_a.name);
      continue;
    }
    if (auto status = check_alike(a, b, of_a, *of_b, names); !status)
      return fail(std::move(status.error()));
    comparison.series.push_back(difference_of(a, b, of_a, *of_b));
  }
  for (const Series& of_b : b.results)
    if (find_series(a, of_b.name) == nullptr) comparison.only_b.push_back(of_b.name);
  if (comparison.series.empty()) return fail("no series is in both records", names);
  return comparison;
}

std::string switches_of_second(const Record& record) {
  const auto details = Json::parse(record.details, nullptr, false);
  const auto found = details.is_object() ? details.find("vs") : details.end();
  return found != details.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::string name_of_second(const std::string& name, const std::string& switches) {
  return name + " with " + switches;
}

Result<Comparison> compare_sides(const Record& record, const std::string& name) {
  if (auto status = check_valid(record, name); !status) return fail(std::move(status.error()));
  const std::string switches = switches_of_second(record);
  Comparison comparison;
  for (const Series& a : record.results) {
    const Series* b =
        switches.empty() ? nullptr : find_series(record, name_of_second(a.name, switches));
    if (b == nullptr) continue;
    if (a.samples.size() != b->samples.size())
      return fail(fmt::format("the sides of '{}' have {} and {} samples", a.name, a.samples.size(),
                              b->samples.size()),
                  name, "samples that were taken in turn are as many on both sides");
    comparison.series.push_back({.name = a.name,
                                 .unit = a.unit,
                                 .better = a.better,
                                 .median_a = median(a.samples),
                                 .median_b = median(b->samples),
                                 .difference = judge_paired(a.samples, b->samples, a.better)});
  }
  if (comparison.series.empty())
    return fail("one record is compared with itself only if `bench --vs` made it", name,
                "give two: A.json B.json");
  return comparison;
}

Json to_json(const Difference& d) {
  return {{"difference", d.relative},
          {"low", d.low},
          {"high", d.high},
          {"p", d.p},
          {"units", d.units},
          {"verdict", verdict_name(d.verdict)},
          {"because", d.because.empty() ? Json() : Json(d.because)},
          {"regression", d.is_regression()}};
}

Json to_json(const Comparison& comparison) {
  Json series = Json::array(), changed = Json::array();
  for (const SeriesDifference& one : comparison.series) {
    Json json{
        {"name", one.name},      {"unit", one.unit},         {"better", better_name(one.better)},
        {"exact", one.is_exact}, {"median_a", one.median_a}, {"median_b", one.median_b}};
    json.update(to_json(one.difference));
    json["verdict"] = one.verdict();
    series.push_back(std::move(json));
  }
  for (const ChangedCondition& one : comparison.changed)
    changed.push_back({{"what", one.what}, {"a", one.a}, {"b", one.b}});
  return {{"series", std::move(series)},
          {"only_a", comparison.only_a},
          {"only_b", comparison.only_b},
          {"changed", std::move(changed)},
          {"regression", comparison.has_regression()}};
}

}  // namespace moxie
