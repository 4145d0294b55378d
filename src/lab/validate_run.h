// What the levels of a validation share: the loaded engine, the launches that are recorded, and the
// level's checks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/speculation.h"
#include "lab/validate.h"
#include "lab/validate_path.h"

namespace moxie {

/// Requests that run at once in levels 2 to 4.
inline constexpr int32_t kValidateStreams = 4;
/// The context that level 3 wants.
inline constexpr int32_t kLongContext = 32768;

class Validation {
 public:
  explicit Validation(const ValidateOptions& options) : options_(options) {}

  const ValidateOptions& options() const { return options_; }
  const ValidateSeams& seams() const { return options_.seams; }
  /// Loads the subject if it is not loaded.
  Status open();
  /// Frees the subject, so that another engine has its memory. Launches recorded so far are kept.
  void close();
  /// The subject; open() has succeeded.
  Engine& engine() { return *engine_; }
  ValidateReport& report() { return report_; }
  /// A limit of time: `full_s`, or `quick_s` with `quick`.
  double limit_s(double full_s, double quick_s) const {
    return seams().time_scale * (options_.quick ? quick_s : full_s);
  }
  /// Rows that ran and launches that ran them, since start_path().
  LaunchList& launches() { return launches_; }

  /// Begins the record of a path: what ran before is added to the report's.
  void start_path();
  /// Compares what ran since start_path() with the plans of the launches; empty: they agree. Also
  /// adds the reason to invalid_because.
  Result<std::string> path_fault();

  /// A service on the subject, whose launches are recorded.
  std::unique_ptr<Service> make_service(ServiceOptions options, bool loops_on_cpu = false);

  // The level that runs.
  void begin(ValidateLevel level);
  void check(ValidateCheck check);
  void check(const std::string& name, bool passed, const std::string& value,
             const std::string& bar);
  /// A number that must be at most `most`.
  void check_most(const std::string& name, double value, double most, const std::string& why);
  void omit(const std::string& name, const std::string& reason);
  void figure(Series series);
  void say(const std::string& text) const;

 private:
  void keep_counts();

  const ValidateOptions& options_;
  ValidateReport report_;
  std::unique_ptr<Engine> engine_;
  Speculation speculation_;
  LaunchList launches_;
};

/// The levels. A fault that ends one is an error, which becomes a check that failed.
Status run_smoke(Validation& run);
Status run_path(Validation& run);
Status run_correctness(Validation& run);
Status run_stress(Validation& run);
Status run_benchmark(Validation& run);
Status run_regression(Validation& run);
/// The same by a server's URL (validate_url.cpp).
Status run_smoke_by_url(Validation& run);
Status run_path_by_url(Validation& run);
Status run_correctness_by_url(Validation& run);
Status run_stress_by_url(Validation& run);
Status run_benchmark_by_url(Validation& run);

/// The speeds that level 4 measures, of one stream.
std::vector<BenchTest> speed_tests();

/// A row ran for every step.
void check_steps(Validation& run, const RowLaunches& ran);
/// The rows that --expect and --forbid name.
void check_named_rows(Validation& run, const RowLaunches& ran);

/// The part of level 2 that compares tokens of requests. Log-probabilities of a token may differ by
/// `logprob_tolerance` where the rows that made them may round otherwise.
Status check_tokens(Validation& run, double logprob_tolerance);

}  // namespace moxie
