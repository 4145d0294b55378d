// A report of validation as JSON and as a record. The names are public: more may be added, none
// renamed.
#include <nlohmann/json.hpp>

#include "core/json_text.h"
#include "lab/stats.h"
#include "lab/validate.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const ValidateCheck& check) {
  return {{"name", check.name},
          {"passed", check.passed},
          {"value", check.number ? Json(*check.number) : Json(check.value)},
          {"bar", check.bar}};
}

Json to_json(const Series& series) {
  const Summary s = summarize(series.samples);
  return {{"name", series.name},
          {"unit", series.unit},
          {"better", better_name(series.better)},
          {"median", s.median},
          {"mad", s.mad},
          {"p50", s.p50},
          {"p99", s.p99},
          {"min", s.min},
          {"max", s.max},
          {"samples", series.samples}};
}

Json to_json(const ValidateLevelReport& level) {
  Json checks = Json::array(), omitted = Json::array(), figures = Json::array();
  for (const ValidateCheck& check : level.checks) checks.push_back(to_json(check));
  for (const ValidateOmission& one : level.omissions)
    omitted.push_back({{"name", one.name}, {"reason", one.reason}});
  for (const Series& series : level.figures) figures.push_back(to_json(series));
  const std::string number = level_number(level.level);
  // 1.5 stays a number: readers compare levels.
  return {{"level", number.find('.') == std::string::npos ? Json(std::stoi(number)) : Json(1.5)},
          {"name", level_title(level.level)},
          {"passed", level.passed()},
          {"not_run", level.not_run.empty() ? Json() : Json(level.not_run)},
          {"checks", std::move(checks)},
          {"omitted", std::move(omitted)},
          {"figures", std::move(figures)},
          {"seconds", level.seconds}};
}

}  // namespace

Json to_json(const ValidateReport& report) {
  const ValidateConditions& c = report.conditions;
  Json levels = Json::array(), kernels = Json::array();
  for (const ValidateLevelReport& level : report.levels) levels.push_back(to_json(level));
  for (const KernelLaunches& row : report.kernel_path)
    kernels.push_back({{"step", row.step}, {"name", row.name}, {"launches", row.launches}});
  return {{"valid", report.passed()},
          {"levels", std::move(levels)},
          {"invalid_because", report.invalid_because},
          {"conditions",
           {{"model", c.model},
            {"url", c.url.empty() ? Json() : Json(c.url)},
            {"device", c.device},
            {"kv_dtype", c.kv_dtype},
            {"max_model_len", c.max_model_len},
            {"max_num_seqs", c.max_num_seqs},
            {"max_batch_tokens", c.max_batch_tokens},
            {"prefix_cache", c.prefix_cache},
            {"quick", c.is_quick}}},
          {"kernels", std::move(kernels)},
          {"memory_peak_bytes", report.memory_peak_bytes}};
}

Record record_of(const ValidateReport& report, std::vector<Setting> configuration) {
  Record record{.kind = "validate",
                .command = {.name = "validate", .arguments = {}},
                .invalid_because = report.invalid_because,
                .environment = report.environment,
                .machine = report.machine,
                .configuration = std::move(configuration),
                .weights = report.weights,
                .kernel_path = report.kernel_path,
                .memory_peak_bytes = report.memory_peak_bytes};
  const ValidateLevelReport* const path = report.find(ValidateLevel::kPath);
  if (path != nullptr && path->not_run.empty()) record.valid = report.invalid_because.empty();
  record.workload.num_warm_ups = 1;
  for (const ValidateLevelReport& level : report.levels)
    record.results.insert(record.results.end(), level.figures.begin(), level.figures.end());
  Json json = to_json(report);
  for (Json& level : json["levels"]) level.erase("figures");  // they are the results
  record.details = json_text(Json{
      {"valid", json["valid"]}, {"levels", json["levels"]}, {"conditions", json["conditions"]}});
  return record;
}

}  // namespace moxie
