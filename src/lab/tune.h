// Times the rows that plans of a model may have, in launches of the model itself, and finds the
// plans that follow from the times.
//
// Rows are timed in whole launches, with cold weights and the inputs of the step before. A few
// plans are made such that every candidate is in one of them; their launches take turns, so that a
// machine that drifts slows all rows alike.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/tuning_file.h"
#include "lab/stats.h"

namespace moxie {

/// Launches to tune for: prompts of one sequence, or one token of each of several sequences.
struct TuneLaunch {
  int32_t num_tokens = 1;
  bool is_decode = true;
  int32_t num_seqs() const { return is_decode ? num_tokens : 1; }
  std::string name() const;  ///< "decode of 8", "prompt of 512"
  bool operator==(const TuneLaunch&) const = default;
};

struct TuneOptions {
  std::vector<TuneLaunch> launches;
  int32_t repetitions = 9;  ///< of each plan, besides one that is not counted
  int32_t depth = 512;      ///< tokens before those of a launch
  /// Rows whose predicted time is more than so many times that of the plan's own rows for the same
  /// steps are not timed.
  double filter = 2;
  std::string step;  ///< only rows that do this step are candidates; empty: all
};

struct TimedRow {
  PlannedRow row;  ///< `layer`: the first of its kind
  bool is_planned = false;
  std::vector<double> us;  ///< a layer of its kind; one a repetition
  Summary summary;
  double noise_us = 0;     ///< see noise_of()
  bool is_chosen = false;  ///< in the plan by measured times
};

/// A launch with its candidates, the plan's own rows included.
struct TunedPlans {
  TuneLaunch launch;
  Bracket bracket;
  std::vector<TimedRow> rows;
  double planned_us = 0, chosen_us = 0;  ///< of a pass, by measured times
  int num_unreached = 0;                 ///< candidates that no chain can have
  bool differs = false;                  ///< the plan by measured times has other rows
};

/// How much less than `planned` a row must take to be preferred: three standard errors of the
/// median of the differences between the samples of the same repetition, at least 1% of the median
/// of `planned`. Both have the same number of samples.
double noise_of(const std::vector<double>& us, const std::vector<double>& planned_us);

using OnTuneProgress = std::function<void(const std::string& line)>;

/// Tunes one launch. No request may be running, and the engine has no drafter and no taps. Its
/// plans are those by predicted times again afterwards, whatever tuning it used.
Result<TunedPlans> tune_launch(Engine& engine, const TuneLaunch& launch, const TuneOptions& options,
                               const OnTuneProgress& progress = {});

/// What the file keeps of it.
TunedLaunch to_tuned(const TunedPlans& plans);

}  // namespace moxie
