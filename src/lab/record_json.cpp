// A record as JSON. The names are public: more may be added, none renamed.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/json_text.h"
#include "core/whole_file.h"
#include "lab/record.h"
#include "lab/stats.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kSwitchesOfOutput[] = {
    "--record", "--history",      "--json",    "--report",   "--trace",
    "--logits", "--draft-logits", "--samples", "--markdown",
};

// null where a text is empty or a number is zero: it was not told.
template <typename T>
Json known(const T& value) {
  return value == T{} ? Json() : Json(value);
}
template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json to_json(const GpuState& gpu) {
  return Json{{"name", gpu.name},
              {"driver", known(gpu.driver)},
              {"memory_bytes", gpu.memory_bytes},
              {"sm_clock_mhz",
               Json::array({known(gpu.sm_clock_mhz_before), known(gpu.sm_clock_mhz_after)})},
              {"memory_clock_mhz", Json::array({known(gpu.memory_clock_mhz_before),
                                                known(gpu.memory_clock_mhz_after)})},
              {"power_watts_before", known(gpu.power_watts_before)},
              {"power_watts", known(gpu.power_watts)},
              {"temperature_celsius_before", known(gpu.temperature_celsius_before)},
              {"temperature_celsius", known(gpu.temperature_celsius)},
              {"throttle_reasons_before", known(gpu.throttle_reasons_before)},
              {"throttle_reasons", known(gpu.throttle_reasons)},
              {"memory_used_bytes", known(gpu.memory_used_bytes)}};
}

Json to_json(const Workload& workload) {
  return Json{{"n_prompt", workload.num_prompt_tokens},
              {"n_gen", workload.num_output_tokens},
              {"depth", workload.depth},
              {"batch", workload.batch},
              {"concurrency", workload.concurrency},
              {"seed", workload.seed},
              {"sampling", workload.sampling},
              {"prefix_cache", workload.prefix_cache},
              {"warm_ups", workload.num_warm_ups}};
}

Json to_json(const Series& series) {
  const Summary summary = summarize(series.samples);
  Json json{{"name", series.name},
            {"unit", series.unit},
            {"better", better_name(series.better)},
            {"exact", series.is_exact},
            {"workload", series.workload ? to_json(*series.workload) : Json()},
            {"mean", summary.mean},
            {"stdev", summary.stdev},
            {"median", summary.median},
            {"mad", summary.mad},
            {"min", summary.min},
            {"max", summary.max},
            {"p50", summary.p50},
            {"p90", summary.p90},
            {"p95", summary.p95},
            {"p99", summary.p99},
            {"samples", series.samples},
            {"bytes", series.bytes},
            {"operations", series.operations},
            {"share_of_limit", series.share_of_limit},
            {"limit_gb_s", series.limit_gb_s}};
  if (!series.limit_launches_s.empty()) json["limit_launches_s"] = series.limit_launches_s;
  if (series.joules_per_token) json["joules_per_token"] = *series.joules_per_token;
  return json;
}

}  // namespace

bool is_switch_of_output(std::string_view name) {
  return std::ranges::find(kSwitchesOfOutput, name) != std::end(kSwitchesOfOutput);
}

Json to_json(const Environment& environment) {
  Json gpus = Json::array();
  for (const GpuState& gpu : environment.gpus) gpus.push_back(to_json(gpu));
  return Json{{"version", environment.version},
              {"commit", environment.commit},
              {"dirty", environment.dirty},
              {"build_type", environment.build_type},
              {"build_flags", environment.build_flags},
              {"compiler", environment.compiler},
              {"cuda_version", known(environment.cuda_version)},
              {"time_utc", environment.time_utc},
              {"hostname_hash", environment.hostname_hash},
              {"system", environment.system},
              {"kernel_version", environment.kernel},
              {"cpu", environment.cpu},
              {"features", environment.features},
              {"governor", environment.governor},
              {"huge_pages", environment.huge_pages},
              {"cores", environment.num_cores},
              {"memory_bytes", environment.memory_bytes},
              {"memory_available_bytes", environment.memory_available_bytes},
              {"load_average", environment.load_average},
              {"cpu_used_by_others", or_null(environment.cpu_used_by_others)},
              {"cpu_clock_mhz", Json::array({known(environment.cpu_clock_mhz_before),
                                             known(environment.cpu_clock_mhz_after)})},
              {"cpu_temperature_celsius", or_null(environment.cpu_temperature_celsius)},
              {"cpu_throttle_events", or_null(environment.cpu_throttle_events)},
              {"gpus", gpus}};
}

const char* better_name(Better better) { return better == Better::kLower ? "lower" : "higher"; }

Json to_json(const Record& record) {
  Json configuration = Json::object();
  for (const Setting& setting : record.configuration) {
    configuration[setting.name] = Json{{"value", setting.value}, {"source", setting.source}};
  }
  Json kernel_path = Json::array();
  for (const KernelLaunches& kernel : record.kernel_path) {
    Json entry = {{"step", kernel.step},
                  {"name", kernel.name},
                  {"launches", kernel.launches},
                  {"of", known(kernel.of)}};
    if (kernel.proven) entry["proven"] = *kernel.proven;
    kernel_path.push_back(std::move(entry));
  }
  Json results = Json::array();
  for (const Series& series : record.results) results.push_back(to_json(series));

  Json json;
  json["schema_version"] = kRecordVersion;
  json["kind"] = record.kind;
  json["command"] = Json{{"name", record.command.name}, {"arguments", record.command.arguments}};
  json["valid"] = or_null(record.valid);
  json["invalid_because"] = record.invalid_because;
  json["environment"] = to_json(record.environment);
  json["machine"] = to_json(record.machine);
  json["configuration"] = std::move(configuration);
  json["weights"] = Json{{"model", record.weights.model},
                         {"hash", known(record.weights.hash)},
                         {"formats", record.weights.formats},
                         {"bytes", record.weights.bytes}};
  json["workload"] = to_json(record.workload);
  json["kernel_path"] = std::move(kernel_path);
  json["results"] = std::move(results);
  json["memory_peak_bytes"] = record.memory_peak_bytes;
  json["energy_joules"] = or_null(record.energy_joules);
  json["energy_source"] = known(record.energy_source);
  json["details"] = record.details.empty() ? Json() : Json::parse(record.details, nullptr, false);
  CHECK(json["details"].is_null() || json["details"].is_object(), record.details);
  return json;
}

Status write_record(const Record& record, const std::string& path) {
  // Names from files may hold broken UTF-8: replaced, instead of an exception.
  return write_whole_file(path, json_text(to_json(record), 2) + '\n', "record");
}

}  // namespace moxie
