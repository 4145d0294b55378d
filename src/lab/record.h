// The record of a run: every figure with all that it depends on. A figure without its machine,
// commit and kernels is worthless.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base.h"
#include "lab/machine.h"

namespace moxie {

/// One GPU as its driver reports it; what could not be read stays empty or zero.
struct GpuState {
  std::string name, driver;
  uint64_t memory_bytes = 0;
  int sm_clock_mhz_before = 0, sm_clock_mhz_after = 0;
  int memory_clock_mhz_before = 0, memory_clock_mhz_after = 0;
  double power_watts_before = 0, temperature_celsius_before = 0;
  std::string throttle_reasons_before;
  double power_watts = 0, temperature_celsius = 0;  ///< after
  std::string throttle_reasons;                     ///< after: "none", "power cap, idle"
  uint64_t memory_used_bytes = 0;                   ///< after, of all processes
};

/// Where and with what a run was made. Strings that the system does not tell are "unknown".
struct Environment {
  std::string version, commit;
  bool dirty = false;  ///< the sources differed from the commit
  std::string build_type, build_flags, compiler;
  std::string cuda_version;    ///< empty: built without
  std::string time_utc;        ///< "2030-01-31T23:59:59Z"
  std::string hostname_hash;   ///< 16 hexadecimal digits: tells machines apart without naming them
  std::string system, kernel;  ///< "Debian GNU/Linux 12 (bookworm)", "6.1.0-18-amd64"
  std::string cpu, features, governor;
  std::string huge_pages;  ///< of anonymous memory: "always", "madvise", "never"
  int num_cores = 0;       ///< cores that this process may use
  uint64_t memory_bytes = 0, memory_available_bytes = 0;
  std::array<double, 3> load_average{};      ///< over 1, 5 and 15 minutes, before the run
  std::optional<double> cpu_used_by_others;  ///< during the run, a share of all cores' time
  /// Mean over the cores; 0: not told. Virtual machines often tell a constant, or nothing.
  double cpu_clock_mhz_before = 0, cpu_clock_mhz_after = 0;
  std::optional<double> cpu_temperature_celsius;  ///< of the package, after
  std::optional<int64_t> cpu_throttle_events;     ///< during the run, of all cores
  std::vector<GpuState> gpus;
};

/// A switch, its value and the value's source: "default", "flag", "env", "config".
struct Setting {
  std::string name, value, source;
};

/// Whether a switch says what is written, and changes nothing that is measured: "--record".
bool is_switch_of_output(std::string_view name);

struct WeightsOrigin {
  std::string model;  ///< path or recipe, "synthetic:gpt-oss-120b"
  std::string hash;   ///< of the tensors' names and of samples of their bytes; empty: not computed
  std::vector<std::string> formats;
  uint64_t bytes = 0;  ///< packed, as they lie in memory
};

struct Workload {
  int64_t num_prompt_tokens = 0, num_output_tokens = 0, depth = 0;
  int batch = 1, concurrency = 1;
  uint64_t seed = 0;
  std::string sampling = "greedy";
  bool prefix_cache = false;
  int num_warm_ups = 0;

  bool operator==(const Workload&) const = default;
};

struct KernelLaunches {
  std::string step, name;
  uint64_t launches = 0;
  std::string of;  ///< name of the series that launched it; empty: the whole run
  /// Whether the self-test has proven its chains on this machine; none: it was off.
  std::optional<bool> proven = {};
};

enum class Better : uint8_t { kHigher, kLower };
/// "higher", "lower".
const char* better_name(Better better);

/// The unit of answers to questions: 1 is right, 0 is wrong.
inline constexpr const char* kAnswerUnit = "right";

/// One measured quantity with every sample, in the order of time.
struct Series {
  std::string name, unit;  ///< "tg32@d2048", "tok/s"; a record has each name once
  std::vector<double> samples;
  double bytes = 0, operations = 0;  ///< counted, per unit of the name (a token)
  double share_of_limit = 0;
  Better better = Better::kHigher;
  /// Computed or counted, not timed: two runs that do the same give the same value, and any
  /// difference is one of what was done.
  bool is_exact = false;
  std::optional<Workload> workload;  ///< none: the record's
  /// The machine's read rate beside each sample, 1e9 bytes a second; empty: not measured.
  std::vector<double> limit_gb_s;
  /// Kernels that the host started in a second, beside each sample; empty: the host bounds nothing
  /// here, or it was not measured.
  std::vector<double> limit_launches_s;
  /// Energy of the samples alone, for each token of theirs; none: not read, or they were too short.
  std::optional<double> joules_per_token;
};

/// What runs it again: the words behind `moxie`.
struct RecordedCommand {
  std::string name;                    ///< "bench", "op bench"; empty: not made by a command
  std::vector<std::string> arguments;  ///< "--n-prompt=512"; paths are absolute
};

/// The kinds of records.
inline constexpr const char* kRecordKinds[] = {"bench",    "score",  "profile", "op bench", "serve",
                                               "validate", "matrix", "eval",    "tune"};

struct Record {
  std::string kind = "bench";
  RecordedCommand command;
  /// Whether the kernels that ran were proven to be the expected ones; none: not checked.
  std::optional<bool> valid;
  std::vector<std::string> invalid_because;
  Environment environment;
  MachineLimits machine;
  std::vector<Setting> configuration;
  WeightsOrigin weights;
  Workload workload;
  std::vector<KernelLaunches> kernel_path;
  std::vector<Series> results;
  uint64_t memory_peak_bytes = 0;
  std::optional<double> energy_joules;  ///< none: could not be read
  /// "nvml" (the GPU), "rapl" (all CPU packages, other processes included); empty: none.
  std::string energy_source;
  std::string details;  ///< text of a JSON object with what else a command tells; empty: none
};

/// What the build knows: version, commit, type, flags, compiler and CUDA; the rest is empty.
Environment build_environment();

/// Asks the build and the system now. Never fails: missing values are "unknown".
Environment collect_environment();

/// Greatest resident memory of this process since its start.
uint64_t peak_memory_bytes();

nlohmann::ordered_json to_json(const Environment& environment);
/// The version of the form below, docs/record.schema.json.
inline constexpr int kRecordVersion = 2;
/// Includes "schema_version", and for each series its samples and their Summary. Samples are
/// finite, `details` is empty or a JSON object.
nlohmann::ordered_json to_json(const Record& record);

/// Writes the JSON of a record, complete or not at all (by renaming a temporary file).
Status write_record(const Record& record, const std::string& path);

}  // namespace moxie
