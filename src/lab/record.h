// The record of a run: every figure with all that it depends on. A figure without its machine,
// commit and kernels is worthless.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
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
  double power_watts = 0, temperature_celsius = 0;
  std::string throttle_reasons;
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
  std::array<double, 3> load_average{};  ///< over 1, 5 and 15 minutes, before the run
  std::vector<GpuState> gpus;
};

/// A switch, its value and the value's source: "default", "flag", "environment", "config".
struct Setting {
  std::string name, value, source;
};

struct WeightsOrigin {
  std::string model;  ///< path or recipe, "synthetic:gpt-oss-120b"
  std::string hash;   ///< of the bytes read; empty: not computed
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
};

struct KernelLaunches {
  std::string step, name;
  uint64_t launches = 0;
};

/// One measured quantity with every sample.
struct Series {
  std::string name, unit;  ///< "tg32@d2048", "tok/s"
  std::vector<double> samples;
  double bytes = 0, operations = 0;  ///< counted, per unit of the name (a token)
  double share_of_limit = 0;
};

struct Record {
  Environment environment;
  MachineLimits machine;
  std::vector<Setting> configuration;
  WeightsOrigin weights;
  Workload workload;
  std::vector<KernelLaunches> kernel_path;
  std::vector<Series> results;
  uint64_t memory_peak_bytes = 0;
  std::optional<double> energy_joules;  ///< none: could not be read
};

/// What the build knows: version, commit, type, flags, compiler and CUDA; the rest is empty.
Environment build_environment();

/// Asks the build and the system now. Never fails: missing values are "unknown".
Environment collect_environment();

/// Greatest resident memory of this process since its start.
uint64_t peak_memory_bytes();

nlohmann::ordered_json to_json(const Environment& environment);
/// Includes "schema_version", and for each series its samples and their Summary.
nlohmann::ordered_json to_json(const Record& record);

/// Writes the JSON of a record, complete or not at all (by renaming a temporary file).
Status write_record(const Record& record, const std::string& path);

}  // namespace moxie
