// Where the time goes: tests of `moxie bench` run once more under a recorder. The measured windows
// are divided among the kernels that ran, their steps and categories, and the gaps without a
// kernel.
//
// The rule for kernels that overlap (programmatic dependent launch): a moment belongs to the
// running kernel that started first. So nothing is counted twice, and categories and gaps add up to
// the window.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lab/activity.h"
#include "lab/bench.h"
#include "lab/kernel_table.h"
#include "lab/launch_marks.h"

namespace moxie {

/// A window divided by the rule above; nanoseconds.
struct WindowShares {
  std::vector<int64_t> symbol_ns;        ///< assigned to each symbol
  std::vector<int64_t> symbol_launches;  ///< that began in the window
  int64_t gap_ns = 0, longest_gap_ns = 0;
  int64_t num_gaps = 0;
  int64_t overlap_ns = 0;  ///< with more than one kernel running
};
/// Time outside [begin, end) is cut off.
WindowShares share_window(std::span<const Activity> activities, size_t num_symbols,
                          int64_t begin_ns, int64_t end_ns);

/// Time of one kernel, step or category; microseconds a unit of its phase (PhaseProfile::unit).
struct TimePart {
  std::string name;
  double us = 0;
  double launches = 0;       ///< a unit
  double share_of_time = 0;  ///< of the window, 0..1
};

/// A time compared with the least work.
struct LimitedPart : TimePart {
  Work work;                             ///< of a unit; zeros: no work is counted
  double products_us = 0;                ///< of its operations, at the peaks of the rows that ran
  std::optional<double> share_of_limit;  ///< empty: no work, no time, or no limit measured
  bool is_by_flops = false;              ///< arithmetic, not memory, is the limit
  double above_limit_us = 0;             ///< what a perfect kernel would save
};

struct KernelPart : TimePart {
  std::string symbol;  ///< as the recorder gave it; `name` is short
  KernelPlace place = {"other", Category::kOther};
};

/// A question whose answer decides what to work on, and the share of time that answers it.
struct Gate {
  const char* name;  ///< "experts", "attention", "quantisation", "gaps"
  const char* question;
  double threshold = 0;
  std::optional<double> share;  ///< empty: it cannot be measured here
  std::string next = {};        ///< what to do; empty if the gate passed
  bool is_over() const { return share.value_or(0) > threshold; }
  bool passed() const { return share && !is_over(); }
};

/// One test of bench, profiled: prefill or decode.
struct PhaseProfile {
  BenchTest test;
  bool is_decode() const { return test.n_gen > 0; }
  /// "token", "step" (a token of every stream), "prompt" (the prompts of all streams).
  const char* unit() const { return !is_decode() ? "prompt" : test.streams > 1 ? "step" : "token"; }
  std::vector<double> plain_tok_s, profiled_tok_s;  ///< one a repetition
  /// How many times slower the profiled runs are than the plain ones, by their medians.
  double slow_down() const;
  MachineLimits limits;                 ///< that the times are compared with
  double window_us = 0;                 ///< a unit
  std::vector<LimitedPart> categories;  ///< all, in the order of Category
  std::vector<LimitedPart> steps;       ///< those that ran, the longest first
  std::vector<KernelPart> kernels;      ///< those that ran, the longest first
  double gaps = 0;                      ///< a unit
  double longest_gap_us = 0, overlap_us = 0;
  std::vector<Gate> gates;
  /// With a drafter, in decode: "draft", "verify", "plain decode" and "between launches", which add
  /// up to the window; `launches` of the first are proposals. Else empty.
  std::vector<TimePart> by_drafts;
  std::vector<KernelChooser::Count> rows;
  /// What ran in the last repetition, for the trace.
  ActivityLog last;
  int64_t last_begin_ns = 0, last_end_ns = 0;

  const LimitedPart& category(Category c) const { return categories[static_cast<size_t>(c)]; }
};

/// The four gates of a phase whose categories, kernels and rows are known. `sees_kernels`: single
/// kernels were recorded, not whole rows; without them quantisation cannot be told from products.
std::vector<Gate> gates_of(const PhaseProfile& phase, bool sees_kernels);

/// Runs every test `repetitions` times without the recorder, then as often with it, each time after
/// a warm-up. The engine must fit the tests (fit_engine). Times are compared with `limits`; on a
/// CPU with those measured beside the windows.
Result<std::vector<PhaseProfile>> run_profile(Engine& engine, const std::vector<BenchTest>& tests,
                                              int32_t repetitions, const MachineLimits& limits,
                                              ActivityRecorder& recorder);

/// Every field above but the trace.
nlohmann::ordered_json to_json(const PhaseProfile& phase);

/// Writes trace events for Chrome and Perfetto: a process for each phase, a thread for each stream.
Status write_trace(std::span<const PhaseProfile> phases, const std::string& path);

}  // namespace moxie
