// The levels of `moxie validate`: named checks of one configuration, from a first answer to a
// comparison with a record. A level does not start if one before it failed, so that no figure is
// measured with kernels that were not proven.
//
//   auto report = validate({.engine = {.model = "embedded"}, .last = ValidateLevel::kBenchmark});
//   if (report && report->passed()) ...
//
// docs/validate.md says what each check finds, and where the bars come from.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/service.h"
#include "engine/step_runner.h"
#include "lab/bench.h"
#include "lab/cpu_state.h"
#include "lab/machine_gpu.h"
#include "lab/record.h"

namespace moxie {

enum class ValidateLevel : uint8_t {
  kSmoke,
  kPath,
  kCorrectness,
  kStress,
  kBenchmark,
  kRegression
};
inline constexpr int kNumValidateLevels = 6;
/// "1", "1.5", "2", "3", "4", "5".
const char* level_number(ValidateLevel level);
/// "smoke", "kernel path", ...
const char* level_title(ValidateLevel level);
/// The level of such a number; an error for another text.
Result<ValidateLevel> parse_validate_level(const std::string& number);

struct ValidateCheck {
  std::string name;
  bool passed = false;
  std::string value;             ///< what was found
  std::string bar;               ///< what passes, and why it is so much
  std::optional<double> number;  ///< of the value, if it is one
};

/// Something that a level would check elsewhere, or with other switches, and could not here.
struct ValidateOmission {
  std::string name, reason;
};

struct ValidateLevelReport {
  ValidateLevel level = ValidateLevel::kSmoke;
  std::string not_run;  ///< why the level was not run; empty: it was
  std::vector<ValidateCheck> checks;
  std::vector<ValidateOmission> omissions;
  std::vector<Series> figures;  ///< measured, without a bar
  double seconds = 0;

  /// It ran, and every check passed.
  bool passed() const;
};

/// What the checks ran on.
struct ValidateConditions {
  std::string model, device, kv_dtype, url;
  int32_t max_model_len = 0, max_num_seqs = 0, max_batch_tokens = 0;
  bool is_quick = false, prefix_cache = true;
};

struct ValidateReport {
  ValidateConditions conditions;
  std::vector<ValidateLevelReport> levels;  ///< 1 to the last one asked for
  std::vector<KernelLaunches> kernel_path;  ///< of all launches of the subject
  /// Why figures of this configuration are worthless: its kernels were not proven. Empty: they are
  /// not.
  std::vector<std::string> invalid_because;
  Environment environment;
  MachineLimits machine;  ///< measured in level 4
  WeightsOrigin weights;
  uint64_t memory_peak_bytes = 0;

  /// Every level asked for ran and passed.
  bool passed() const;
  const ValidateLevelReport* find(ValidateLevel level) const;
};

/// Memory that this process holds now.
struct MemoryInUse {
  uint64_t resident_bytes = 0;
  uint64_t heap_bytes = 0;  ///< handed out by malloc and not given back
};
MemoryInUse memory_in_use();

/// What the levels call. Tests put faults here.
struct ValidateSeams {
  std::function<Result<std::unique_ptr<Engine>>(const EngineOptions&)> load = Engine::load;
  std::function<std::unique_ptr<StepRunner>(Engine&, bool loops_on_cpu)> make_runner =
      make_step_runner;
  std::function<std::unique_ptr<Service>(std::unique_ptr<StepRunner>, const ServiceOptions&)>
      make_service = [](std::unique_ptr<StepRunner> runner, const ServiceOptions& options) {
        return Service::create(std::move(runner), options);
      };
  std::function<Result<BenchResult>(Engine&, const BenchTest&, int32_t repetitions,
                                    const MachineLimits&)>
      run_bench = moxie::run_bench;
  std::function<Result<MachineLimits>(Device&)> limits = [](Device& device) {
    return device.kind() == DeviceKind::kCuda ? measure_gpu(device) : measure_machine(device);
  };
  std::function<CpuState()> cpu_state = [] { return read_cpu_state(); };
  std::function<MemoryInUse()> memory = memory_in_use;
  std::function<uint64_t()> peak_memory_bytes = moxie::peak_memory_bytes;
  /// A request that has had no news for so long is lost.
  double patience_s = 300;
  /// Limits of time, beyond which work is cut or omitted, are multiplied by this.
  double time_scale = 1;
};

struct ValidateOptions {
  /// Sizes that are 0 are set to what the levels need: a context of 32,768 tokens where it fits.
  EngineOptions engine;
  ValidateLevel last = ValidateLevel::kRegression;
  std::vector<std::string> expect, forbid;  ///< STEP=NAME that must and must not run (level 1.5)
  std::string against;                      ///< a record's path, of level 5; empty: none
  /// A running server, which is checked over HTTP as far as it can be; the engine's options then
  /// mean nothing. Empty: none.
  std::string url;
  std::string api_key;       ///< of the server; empty: none
  bool quick = false;        ///< shorter stress and benchmark; the report says so
  bool prefix_cache = true;  ///< of the requests of level 3
  std::function<void(const std::string&)> on_progress;  ///< one line each; null: none
  ValidateSeams seams;
};

/// Runs the levels up to `options.last`. A check that fails, and a fault of the model or device,
/// are in the report. An error is a fault of the options: names, a record that cannot be read.
Result<ValidateReport> validate(const ValidateOptions& options);

/// {"valid", "levels": [{"level", "name", "passed", "not_run", "checks": [{"name", "passed",
/// "value", "bar"}], "omitted", "figures", "seconds"}], "invalid_because", "conditions",
/// "kernels"}.
nlohmann::ordered_json to_json(const ValidateReport& report);

/// The report as a record: figures of level 4, the kernel path and the conditions.
Record record_of(const ValidateReport& report, std::vector<Setting> configuration);

}  // namespace moxie
