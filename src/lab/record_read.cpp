// The form is docs/record.schema.json; beyond it, summaries must be those of the samples, and names
// of series must differ.
#include "lab/record_read.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>

#include "core/json_text.h"
#include "lab/stats.h"
#include "text/json_fields.h"

namespace moxie {
namespace {

constexpr int64_t kMostInt = std::numeric_limits<int32_t>::max();
constexpr int64_t kMostInt64 = std::numeric_limits<int64_t>::max();

int int_of(JsonFields& fields, const char* key) {
  return static_cast<int>(fields.integer(key, 0, kMostInt));
}

// [before, after], null where it was not told.
std::pair<double, double> before_and_after(JsonFields& fields, const char* key) {
  const auto& pair = fields.any(key);
  const auto fits = [](const nlohmann::json& one) { return one.is_null() || one.is_number(); };
  if (!pair.is_array() || pair.size() != 2 || !fits(pair[0]) || !fits(pair[1])) {
    fields.refuse(key, "expected [before, after], numbers or null");
    return {};
  }
  const auto value = [](const nlohmann::json& one) {
    return one.is_null() ? 0 : one.get<double>();
  };
  return {value(pair[0]), value(pair[1])};
}

GpuState read_gpu(JsonFields& fields) {
  GpuState gpu;
  gpu.name = fields.text("name");
  gpu.driver = fields.text_or_null("driver");
  gpu.memory_bytes = fields.count("memory_bytes");
  const auto clock = [&](const char* key, int* before, int* after) {
    const auto [first, last] = before_and_after(fields, key);
    if (std::max(std::fabs(first), std::fabs(last)) > 1e6) return fields.refuse(key, "is no clock");
    *before = static_cast<int>(first);
    *after = static_cast<int>(last);
  };
  clock("sm_clock_mhz", &gpu.sm_clock_mhz_before, &gpu.sm_clock_mhz_after);
  clock("memory_clock_mhz", &gpu.memory_clock_mhz_before, &gpu.memory_clock_mhz_after);
  gpu.power_watts_before = fields.number_or_null("power_watts_before").value_or(0);
  gpu.power_watts = fields.number_or_null("power_watts").value_or(0);
  gpu.temperature_celsius_before = fields.number_or_null("temperature_celsius_before").value_or(0);
  gpu.temperature_celsius = fields.number_or_null("temperature_celsius").value_or(0);
  gpu.throttle_reasons_before = fields.text_or_null("throttle_reasons_before");
  gpu.throttle_reasons = fields.text_or_null("throttle_reasons");
  gpu.memory_used_bytes = fields.count_or_null("memory_used_bytes").value_or(0);
  fields.done();
  return gpu;
}

Environment read_environment(JsonFields fields) {
  Environment e;
  e.version = fields.text("version");
  e.commit = fields.text("commit");
  e.dirty = fields.boolean("dirty");
  e.build_type = fields.text("build_type");
  e.build_flags = fields.text("build_flags");
  e.compiler = fields.text("compiler");
  e.cuda_version = fields.text_or_null("cuda_version");
  e.time_utc = fields.text("time_utc");
  e.hostname_hash = fields.text("hostname_hash");
  e.system = fields.text("system");
  e.kernel = fields.text("kernel_version");
  e.cpu = fields.text("cpu");
  e.features = fields.text("features");
  e.governor = fields.text("governor");
  e.huge_pages = fields.text("huge_pages");
  e.num_cores = int_of(fields, "cores");
  e.memory_bytes = fields.count("memory_bytes");
  e.memory_available_bytes = fields.count("memory_available_bytes");
  const auto load = fields.numbers("load_average");
  if (load.size() == e.load_average.size())
    std::copy(load.begin(), load.end(), e.load_average.begin());
  else
    fields.refuse("load_average", "expected three numbers");
  e.cpu_used_by_others = fields.number_or_null("cpu_used_by_others");
  std::tie(e.cpu_clock_mhz_before, e.cpu_clock_mhz_after) =
      before_and_after(fields, "cpu_clock_mhz");
  e.cpu_temperature_celsius = fields.number_or_null("cpu_temperature_celsius");
  if (const auto events = fields.count_or_null("cpu_throttle_events")) {
    if (std::cmp_greater(*events, kMostInt64)) fields.refuse("cpu_throttle_events", "is too large");
    e.cpu_throttle_events = static_cast<int64_t>(*events);
  }
  fields.objects("gpus", [&](JsonFields& gpu) { e.gpus.push_back(read_gpu(gpu)); });
  fields.done();
  return e;
}

MachineLimits read_machine(JsonFields fields) {
  MachineLimits m;
  m.cpu = fields.text("cpu");
  m.gpu = fields.text_or_null("gpu");
  m.num_threads = int_of(fields, "threads");
  m.features = fields.text("features");
  m.read_gb_s = fields.number("read_gb_s");
  JsonFields peak = fields.object("peak"), with = fields.object("measured_with");
  m.fp32 = {peak.number_or_null("fp32_gflops").value_or(0), with.text("fp32")};
  m.bf16 = {peak.number_or_null("bf16_gflops").value_or(0), with.text("bf16")};
  m.int8 = {peak.number_or_null("int8_gops").value_or(0), with.text("int8")};
  m.fp8 = {peak.number_or_null("fp8_gflops").value_or(0), with.text("fp8")};
  m.read_instruction = with.text("read");
  m.read_buffer_bytes = with.count("read_buffer_bytes");
  m.read_gb_s_best = with.number("read_gb_s_best");
  peak.done();
  with.done();
  fields.done();
  return m;
}

Workload read_workload(JsonFields fields) {
  Workload w;
  w.num_prompt_tokens = fields.integer("n_prompt", 0, kMostInt64);
  w.num_output_tokens = fields.integer("n_gen", 0, kMostInt64);
  w.depth = fields.integer("depth", 0, kMostInt64);
  w.batch = int_of(fields, "batch");
  w.concurrency = int_of(fields, "concurrency");
  w.seed = fields.count("seed");
  w.sampling = fields.text("sampling");
  w.prefix_cache = fields.boolean("prefix_cache");
  w.num_warm_ups = int_of(fields, "warm_ups");
  fields.done();
  return w;
}

void check_summary(JsonFields& fields, const std::vector<double>& samples) {
  const Summary s = summarize(samples);
  const struct {
    const char* key;
    double value;
  } kValues[] = {{"mean", s.mean}, {"stdev", s.stdev}, {"median", s.median}, {"mad", s.mad},
                 {"min", s.min},   {"max", s.max},     {"p50", s.p50},       {"p90", s.p90},
                 {"p95", s.p95},   {"p99", s.p99}};
  const double scale = std::max({std::fabs(s.min), std::fabs(s.max), 1e-300});
  for (const auto& [key, value] : kValues) {
    const double told = fields.number(key);
    if (std::fabs(told - value) <= 1e-9 * scale) continue;
    fields.refuse(key, "is not that of the samples");
  }
}

Series read_series(JsonFields& fields) {
  Series series;
  series.name = fields.text("name");
  series.unit = fields.text("unit");
  const std::string better = fields.text("better");
  if (better != "higher" && better != "lower")
    fields.refuse("better", "must be 'higher' or 'lower'");
  series.better = better == "lower" ? Better::kLower : Better::kHigher;
  series.is_exact = fields.boolean("exact");
  if (auto workload = fields.object_or_null("workload")) {
    series.workload = read_workload(std::move(*workload));
  }
  series.samples = fields.numbers("samples");
  check_summary(fields, series.samples);
  series.bytes = fields.number("bytes");
  series.operations = fields.number("operations");
  series.share_of_limit = fields.number("share_of_limit");
  series.limit_gb_s = fields.numbers("limit_gb_s");
  series.limit_launches_s = fields.numbers_if_there("limit_launches_s");
  series.joules_per_token = fields.number_if_there("joules_per_token");
  fields.done();
  return series;
}

void read_version(JsonFields& fields) {
  const int64_t version = fields.integer("schema_version", 0, kMostInt);
  if (version != kRecordVersion) {
    fields.refuse("schema_version", "is " + std::to_string(version) + ", this program reads " +
                                        std::to_string(kRecordVersion));
  }
}

void read_head(JsonFields& fields, Record* record) {
  record->kind = fields.text("kind");
  if (std::find(std::begin(kRecordKinds), std::end(kRecordKinds), record->kind) ==
      std::end(kRecordKinds)) {
    fields.refuse("kind", "is no kind of record");
  }
  JsonFields command = fields.object("command");
  record->command = {command.text("name"), command.texts("arguments")};
  command.done();
  record->valid = fields.boolean_or_null("valid");
  record->invalid_because = fields.texts("invalid_because");
  if (record->valid == false && record->invalid_because.empty())
    fields.refuse("invalid_because", "has no reason for an invalid record");
}

void read_settings(JsonFields& fields, Record* record) {
  static const std::set<std::string> kSources = {"default", "flag", "env", "config"};
  fields.objects_by_name("configuration", [&](const std::string& name, JsonFields& setting) {
    record->configuration.push_back({name, setting.text("value"), setting.text("source")});
    if (!kSources.contains(record->configuration.back().source))
      setting.refuse("source", "must be default, flag, env or config");
    setting.done();
  });
  JsonFields weights = fields.object("weights");
  record->weights = {weights.text("model"), weights.text_or_null("hash"), weights.texts("formats"),
                     weights.count("bytes")};
  weights.done();
}

void read_results(JsonFields& fields, Record* record) {
  fields.objects("kernel_path", [&](JsonFields& kernel) {
    record->kernel_path.push_back({kernel.text("step"), kernel.text("name"),
                                   kernel.count("launches"), kernel.text_or_null("of"),
                                   kernel.boolean_if_there("proven")});
    kernel.done();
  });
  std::set<std::string> names;
  fields.objects("results", [&](JsonFields& series) {
    record->results.push_back(read_series(series));
    if (!names.insert(record->results.back().name).second)
      series.refuse("name", "is that of another series too");
  });
}

void read_rest(JsonFields& fields, Record* record) {
  record->memory_peak_bytes = fields.count("memory_peak_bytes");
  record->energy_joules = fields.number_or_null("energy_joules");
  record->energy_source = fields.text_or_null("energy_source");
  const auto& details = fields.any("details");
  if (details.is_object())
    record->details = json_text(details);
  else if (!details.is_null())
    fields.refuse("details", "expected an object or null");
}

Result<Record> record_from(const nlohmann::json& document, const std::string& where) {
  JsonFields::Fault fault;
  const bool is_inside =
      document.is_object() && !document.contains("schema_version") && document.contains("record");
  JsonFields fields(is_inside ? document["record"] : document, is_inside ? "/record" : "", where,
                    &fault);
  Record record;
  read_version(fields);
  read_head(fields, &record);
  record.environment = read_environment(fields.object("environment"));
  record.machine = read_machine(fields.object("machine"));
  read_settings(fields, &record);
  record.workload = read_workload(fields.object("workload"));
  read_results(fields, &record);
  read_rest(fields, &record);
  fields.done();
  if (fault) {
    fault->hint = "the form is docs/record.schema.json";
    return fail(std::move(*fault));
  }
  return record;
}

}  // namespace

Result<Record> read_record(const std::string& path) {
  auto document = read_json_file(path);
  if (!document) return fail(std::move(document.error()));
  return record_from(*document, path);
}

Result<Record> parse_record(std::string_view text, const std::string& where) {
  auto document = parse_json(text, where);
  if (!document) return fail(std::move(document.error()));
  return record_from(*document, where);
}

}  // namespace moxie
