// The order of the levels, the subject that they share, and the record of a validation.
#include "lab/validate.h"

#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "core/clock.h"
#include "lab/machine_gpu.h"
#include "lab/record_read.h"
#include "lab/validate_run.h"

namespace moxie {
namespace {

struct LevelEntry {
  const char *number, *title;
  Status (*run)(Validation&);
  Status (*run_by_url)(Validation&);
};
constexpr LevelEntry kLevels[kNumValidateLevels] = {
    {"1", "smoke", run_smoke, run_smoke_by_url},
    {"1.5", "kernel path", run_path, run_path_by_url},
    {"2", "correctness", run_correctness, run_correctness_by_url},
    {"3", "stress", run_stress, run_stress_by_url},
    {"4", "benchmark", run_benchmark, run_benchmark_by_url},
    {"5", "regression", run_regression, run_regression}};

const LevelEntry& entry_of(ValidateLevel level) { return kLevels[static_cast<size_t>(level)]; }

// The sizes that the levels need, where the options leave them open. They are the same for every
// level, since the format of the cache depends on them.
EngineOptions fitted(const EngineOptions& given, bool has_long_context) {
  EngineOptions options = given;
  fit_service(2 * kValidateStreams, &options);
  if (has_long_context && options.max_model_len == 0) options.max_model_len = kLongContext + 256;
  return options;
}

void run_level(ValidateLevel level, Validation* run) {
  run->begin(level);
  run->say(fmt::format("level {}, {}", level_number(level), level_title(level)));
  const auto start = Clock::now();
  const LevelEntry& entry = entry_of(level);
  const auto run_it = run->options().url.empty() ? entry.run : entry.run_by_url;
  if (const Status status = run_it(*run); !status) {
    run->check({.name = "the level ran to its end",
                .passed = false,
                .value = status.error().message(),
                .bar = "no fault"});
  }
  ValidateLevelReport& report = run->report().levels.back();
  report.seconds = seconds_since(start);
  const auto failed = std::ranges::count(report.checks, false, &ValidateCheck::passed);
  run->say(report.not_run.empty()
               ? fmt::format("level {}: {} checks, {} failed, {:.1f} s", level_number(level),
                             report.checks.size(), failed, report.seconds)
               : fmt::format("level {}: not run: {}", level_number(level), report.not_run));
}

}  // namespace

const char* level_number(ValidateLevel level) { return entry_of(level).number; }
const char* level_title(ValidateLevel level) { return entry_of(level).title; }

Result<ValidateLevel> parse_validate_level(const std::string& number) {
  for (int i = 0; i < kNumValidateLevels; ++i)
    if (number == kLevels[i].number) return static_cast<ValidateLevel>(i);
  return fail("no level '" + number + "'", "--level",
              "1, 1.5, 2, 3, 4 or 5; level 6 is `moxie matrix`");
}

bool ValidateLevelReport::passed() const {
  return not_run.empty() && !checks.empty() && std::ranges::all_of(checks, &ValidateCheck::passed);
}

bool ValidateReport::passed() const {
  return !levels.empty() && std::ranges::all_of(levels, &ValidateLevelReport::passed);
}

const ValidateLevelReport* ValidateReport::find(ValidateLevel level) const {
  const auto found = std::ranges::find(levels, level, &ValidateLevelReport::level);
  return found == levels.end() ? nullptr : &*found;
}

MemoryInUse memory_in_use() {
  MemoryInUse use;
  std::ifstream file("/proc/self/statm");
  uint64_t total_pages = 0, resident_pages = 0;
  if (file >> total_pages >> resident_pages)
    use.resident_bytes = resident_pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
#if defined(__GLIBC__)
  const struct mallinfo2 info = ::mallinfo2();
  use.heap_bytes = info.uordblks + info.hblkhd;
#endif
  return use;
}

Status Validation::open() {
  if (engine_ != nullptr) return {};
  EngineOptions wanted = fitted(options_.engine, true);
  auto engine = seams().load(wanted);
  if (!engine && options_.engine.max_model_len == 0 && wanted.max_model_len != 0) {
    wanted = fitted(options_.engine, false);  // the long context does not fit
    engine = seams().load(wanted);
  }
  if (!engine) return fail(std::move(engine.error()));
  engine_ = std::move(*engine);
  auto speculation = make_speculation(*engine_);
  if (!speculation) return fail(std::move(speculation.error()));
  speculation_ = std::move(*speculation);
  Engine& e = *engine_;
  report_.conditions = {.model = options_.engine.model,
                        .device = e.device().properties().name,
                        .kv_dtype = std::string(dtype_name(e.kv_dtype())),
                        .max_model_len = e.plan().max_model_len,
                        .max_num_seqs = e.plan().max_num_seqs,
                        .max_batch_tokens = e.plan().max_batch_tokens,
                        .is_quick = options_.quick,
                        .prefix_cache = options_.prefix_cache};
  report_.weights.model = e.checkpoint().path();
  report_.weights.bytes = e.weights_bytes();
  if (e.device().kind() == DeviceKind::kCuda)
    report_.environment.gpus = {read_gpu_state(e.device())};
  start_path();
  return {};
}

void Validation::close() {
  if (engine_ != nullptr) keep_counts();
  speculation_ = {};
  engine_ = nullptr;
}

void Validation::keep_counts() {
  for (const KernelChooser::Count& count : engine_->kernels().counts()) {
    const auto known = std::ranges::find_if(report_.kernel_path, [&](const KernelLaunches& row) {
      return row.step == count.op->name && row.name == count.name;
    });
    if (known == report_.kernel_path.end())
      report_.kernel_path.push_back({count.op->name, count.name, count.launches, "",
                                     engine_->self_test().proven(count.name)});
    else
      known->launches += count.launches;
  }
  engine_->kernels().reset_counts();
}

void Validation::start_path() {
  keep_counts();
  launches_.clear();
}

Result<std::string> Validation::path_fault() {
  const auto planned = planned_launches(options_.engine, *engine_, launches_);
  if (!planned) return fail(planned.error());
  // A head's passes run operations of the model by plans of their own.
  const bool has_head = takes_head(options_.engine.speculation.method);
  const auto ran = launches_that_ran(engine_->kernels().counts());
  std::string fault = difference(*planned, ran, has_head);
  if (ran.empty()) fault = "no row ran";
  if (!fault.empty()) {
    report_.invalid_because.push_back(
        fmt::format("level {}: {}", level_number(report_.levels.back().level), fault));
  }
  return fault;
}

std::unique_ptr<Service> Validation::make_service(ServiceOptions options, bool loops_on_cpu) {
  options.drafting = speculation_.drafting;
  return seams().make_service(
      note_launches(seams().make_runner(*engine_, loops_on_cpu), &launches_), options);
}

void Validation::begin(ValidateLevel level) { report_.levels.push_back({.level = level}); }

void Validation::check(ValidateCheck check) {
  say(fmt::format("  {} {}: {}{}", check.passed ? "passed" : "FAILED", check.name, check.value,
                  check.passed ? "" : fmt::format(" (bar: {})", check.bar)));
  report_.levels.back().checks.push_back(std::move(check));
}

void Validation::check(const std::string& name, bool passed, const std::string& value,
                       const std::string& bar) {
  check({.name = name, .passed = passed, .value = value, .bar = bar});
}

void Validation::check_most(const std::string& name, double value, double most,
                            const std::string& why) {
  check({.name = name,
         .passed = value <= most,  // not for NaN
         .value = fmt::format("{:.4g}", value),
         .bar = fmt::format("at most {:.4g}{}{}", most, why.empty() ? "" : ": ", why),
         .number = value});
}

void Validation::omit(const std::string& name, const std::string& reason) {
  say(fmt::format("  omitted {}: {}", name, reason));
  report_.levels.back().omissions.push_back({name, reason});
}

void Validation::figure(Series series) {
  report_.levels.back().figures.push_back(std::move(series));
}

void Validation::say(const std::string& text) const {
  if (options_.on_progress) options_.on_progress(text);
}

Result<ValidateReport> validate(const ValidateOptions& options) {
  for (const auto& [list, flag] :
       {std::pair(&options.expect, "--expect"), std::pair(&options.forbid, "--forbid")}) {
    for (const std::string& text : *list)
      if (auto rows = parse_named_rows(text, flag); !rows) return fail(std::move(rows.error()));
  }
  if (!options.against.empty()) {
    if (auto record = read_record(options.against); !record) return fail(std::move(record.error()));
  }
  Validation run(options);
  run.report().environment = collect_environment();
  std::string failed;  // the first level that did
  for (int i = 0; i <= static_cast<int>(options.last); ++i) {
    const auto level = static_cast<ValidateLevel>(i);
    if (!failed.empty()) {
      run.begin(level);
      run.report().levels.back().not_run = fmt::format("level {} failed", failed);
      continue;
    }
    run_level(level, &run);
    if (!run.report().levels.back().passed()) failed = level_number(level);
  }
  run.close();
  run.report().memory_peak_bytes = run.seams().peak_memory_bytes();
  return std::move(run.report());
}

}  // namespace moxie
