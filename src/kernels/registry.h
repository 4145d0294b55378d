// The tables of implementations, and how a row is chosen.
//
// Every step has one table of rows for all devices. A row says what hardware it needs, what it
// accepts, what scratch it wants and what it costs. KernelChooser takes the cheapest eligible row,
// explains why each other lost, honours `--kernel STEP=NAME`, and counts every launch by name.
// There is never a silent fall-back: a forced row that cannot run is an error before anything runs.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base.h"
#include "core/clock.h"
#include "kernels/features.h"
#include "kernels/step.h"

namespace moxie {

/// What a row of a step can do together with a neighbouring step's (kernels/joined.h). Empty but
/// where specialised beside the step's Params.
template <typename P>
struct JointOf {};

/// One implementation of a step. `P` is the step's Params.
template <typename P>
struct Row {
  const char* name;  ///< "qkv_any_f32_gemv_avx512"
  DeviceKind device;
  Features needs;        ///< every bit must be there
  const char* supports;  ///< formats and shapes, for people
  const char* limits;    ///< tokens a launch it serves well, accuracy; for people
  const char* ran_on;    ///< hardware it has run on, or "compiled only"
  PackedLayout layout;
  /// Null but in rows that round activations to 8-bit integers: there, whether these params gain
  /// enough by it for the row to run unasked (permits()).
  bool (*gains_by_int8)(const P&) = nullptr;
  /// Null if the row can run these params (pointers may be null: only formats and sizes are read),
  /// else why not.
  const char* (*refuses)(const P&);
  /// Relative time: lower wins. Reference rows return kReferenceCost.
  double (*cost)(const P&);
  /// Scratch bytes for these params.
  uint64_t (*workspace)(const P&);
  void (*run)(const P&);
  JointOf<P> joint = {};
};

inline constexpr double kReferenceCost = 1e12;

/// Any of these has rows that round to 8-bit integers.
inline constexpr Features kInt8Features = kAvx2 | kNeonDot;

/// From so many tokens a launch they do so unasked in models so wide: tokens share weights there,
/// so that arithmetic and not memory is the limit; small models, where rounding shows, gain little.
inline constexpr int32_t kLeastInt8Tokens = 8, kLeastInt8Hidden = 2048;

/// `ran_on` of rows in plain C++, and of those for aarch64: no such machine has run them yet.
inline constexpr const char* kRanAnyCpu = "x86-64; aarch64 under an emulator only";
inline constexpr const char* kRanEmulated = "aarch64 under an emulator only";

/// Cost of a CUDA row for many tokens beside 1 of the row for few. It rounds activations to BF16:
/// small models, where that shows and gains nothing, keep the other.
constexpr double cuda_gemm_cost(int32_t num_tokens, int32_t hidden) {
  return num_tokens > 8 && hidden >= 1024 ? 0.5 : 10.0;
}

/// A row without its types: what `moxie kernels`, docs and records print.
struct RowInfo {
  StepKind step;
  std::string name, supports, limits, ran_on;
  DeviceKind device;
  Features needs;
};

/// Why a row is or is not the one chosen.
struct Verdict {
  RowInfo row;
  bool chosen = false;
  std::string reason;  ///< "cheapest", "forced", "needs amx_bf16", "costs 12 against 4", ...
};

/// Specialised beside each step: the table, the step, and the least work of a launch.
template <typename P>
std::span<const Row<P>> table_of();
template <typename P>
struct StepOf;  // static constexpr StepKind value

/// Forced names: from `--kernel STEP=NAME`. `all=reference` forces the row `<step>_reference`.
class KernelChoice {
 public:
  /// Parses one "STEP=NAME"; NAME may be "auto", a row's name, "reference", or of experts "gemv",
  /// "w4a16" or "w4a8": the cheapest of the rows whose names say so. Unknown steps and names fail
  /// with the nearest that exist.
  Status add(const std::string& assignment);
  const std::optional<std::string>& forced(StepKind step) const {
    return forced_[static_cast<int>(step)];
  }
  /// Whether a row may run: nothing is forced, or this row, or rows of its kind.
  bool allows(StepKind step, std::string_view row) const;
  bool all_reference() const;
  /// `--tile`: "auto" or a tile of gemm/tile_model.h.
  Status set_tile(const std::string& tile);
  int32_t tile_columns() const { return tile_columns_; }
  /// `--activation`: "auto"; "bf16" (or wider); "int8", which lets rows run that round activations
  /// to 8-bit integers wherever they can, where "auto" lets them run if that gains much; or
  /// "mxfp8", which lets those run that round the experts' to 8-bit floats.
  Status set_activation(const std::string& activation);
  /// kF8E4M3 with "mxfp8", or with "auto" where a row is forced that wants it; else kBF16.
  DType activation() const;
  bool int8() const { return activation_ == "int8"; }
  /// Whether the switches let a row run: it is allowed, and rounds to 8-bit integers only if asked
  /// to, forced by its own name, or not told otherwise where that gains much.
  template <typename P>
  bool permits(const Row<P>& row, const P& params) const {
    if (!allows(StepOf<P>::value, row.name)) return false;
    if (row.gains_by_int8 == nullptr || int8() || forced(StepOf<P>::value) == row.name) return true;
    return activation_ == "auto" && row.gains_by_int8(params);
  }

 private:
  std::array<std::optional<std::string>, kNumSteps> forced_;
  int32_t tile_columns_ = 0;
  std::string activation_ = "auto";
};

/// Chooses and counts. One per loaded model; shared by the threads that drive it.
class KernelChooser {
 public:
  KernelChooser(DeviceKind device, Features features, KernelChoice choice)
      : device_(device), features_(features), choice_(std::move(choice)) {}

  /// The row for these params, or why there is none.
  template <typename P>
  Result<const Row<P>*> select(const P& params) const {
    constexpr StepKind kStep = StepOf<P>::value;
    const auto& forced = choice_.forced(kStep);
    const Row<P>* best = nullptr;
    double best_cost = 0;
    // Of a forced row, or the last of its kind: why it cannot run.
    const Row<P>* refused = nullptr;
    const char* why_refused = nullptr;
    for (const Row<P>& row : table_of<P>()) {
      if (!choice_.permits(row, params)) continue;
      if (row.device != device_) {
        if (refused == nullptr) refused = &row, why_refused = "it is for another device";
      } else if ((row.needs & features_) != row.needs) {
        refused = &row, why_refused = nullptr;
      } else if (const char* why = row.refuses(params)) {
        refused = &row, why_refused = why;
      } else if (const double cost = row.cost(params); best == nullptr || cost < best_cost) {
        best = &row, best_cost = cost;
      }
    }
    if (best != nullptr) return best;
    if (!forced || refused == nullptr)
      return refusal("", kStep, "no row accepts these formats on this machine");
    return refusal(refused->name, kStep,
                   why_refused == nullptr ? missing(refused->needs) : why_refused);
  }

  /// The same where there must be one: that is checked when the model is loaded (select for each
  /// step), so its absence is a broken invariant.
  template <typename P>
  const Row<P>& row_for(const P& params) const {
    const auto row = select(params);
    CHECK(row.has_value(), row ? "" : row.error().message());
    return **row;
  }

  /// All rows of the step with the reason each is or is not chosen.
  template <typename P>
  std::vector<Verdict> explain(const P& params) const;

  /// Runs the step with the chosen row and counts it.
  template <typename P>
  void run(const P& params) {
    run(row_for(params), params);
  }
  /// The same with a row that was selected for these params.
  template <typename P>
  void run(const Row<P>& row, const P& params) {
    CHECK(params.launch.workspace_bytes >= row.workspace(params), row.name);
    run_counted(row, [&] { row.run(params); });
  }
  /// Counts a run of the row, which is what `run()` does.
  template <typename P, typename Run>
  void run_counted(const Row<P>& row, Run run) {
    count(StepOf<P>::value, row.name);
    if (!on_run_) return run();
    const auto start = Clock::now();
    run();
    on_run_(StepOf<P>::value, row.name, start, Clock::now());
  }
  /// Counts a run of two rows one after the other, which is what `run()` does; it returns when the
  /// first was over. The time in which both ran is the first's.
  template <typename P, typename Q, typename Run>
  void run_counted(const Row<P>& first, const Row<Q>& second, Run run) {
    count(StepOf<P>::value, first.name);
    count(StepOf<Q>::value, second.name);
    const auto start = Clock::now();
    const Clock::time_point border = run();
    if (!on_run_) return;
    on_run_(StepOf<P>::value, first.name, start, border);
    on_run_(StepOf<Q>::value, second.name, border, Clock::now());
  }

  /// Called after every run with its time on the host, on the thread that ran it: all of the step
  /// on the CPU, its launch elsewhere. Set or cleared (null) while nothing runs.
  using OnRun = std::function<void(StepKind, const char* row, Clock::time_point start,
                                   Clock::time_point end)>;
  void set_on_run(OnRun on_run) { on_run_ = std::move(on_run); }

  /// Launches by row name since the start (or the last reset), step by step.
  struct Count {
    StepKind step;
    std::string name;
    uint64_t launches;
  };
  std::vector<Count> counts() const;
  void reset_counts();

  /// Launches by (step, row name).
  using Launches = std::map<std::pair<int, const char*>, uint64_t>;
  /// Between these two, launches are recorded into a graph and do not run: they are not counted but
  /// returned, to be counted each time the graph runs.
  void begin_recording();
  Launches end_recording();
  void count(const Launches& launches);

  DeviceKind device() const { return device_; }
  Features features() const { return features_; }
  int32_t tile_columns() const { return choice_.tile_columns(); }
  DType activation() const { return choice_.activation(); }
  const KernelChoice& choice() const { return choice_; }

 private:
  tl::unexpected<Error> refusal(const std::string& row, StepKind step,
                                const std::string& why) const;
  std::string missing(Features needs) const;
  void count(StepKind step, const char* name);

  DeviceKind device_;
  Features features_;
  KernelChoice choice_;
  mutable std::mutex mutex_;
  Launches counts_;
  std::optional<Launches> recording_;
  OnRun on_run_;
};

/// Every row of every table, in the order of the steps.
std::vector<RowInfo> all_rows();

template <typename P>
RowInfo row_info(const Row<P>& row) {
  return {StepOf<P>::value, row.name, row.supports, row.limits, row.ran_on, row.device, row.needs};
}

template <typename P>
std::vector<Verdict> KernelChooser::explain(const P& params) const {
  const auto chosen = select(params);
  const bool forced = choice_.forced(StepOf<P>::value).has_value();
  std::vector<Verdict> verdicts;
  for (const Row<P>& row : table_of<P>()) {
    Verdict verdict{.row = row_info(row)};
    if (chosen && *chosen == &row) {
      verdict.chosen = true;
      verdict.reason = forced ? "forced" : "cheapest of those that can run";
    } else if (row.device != device_) {
      verdict.reason = "for another device";
    } else if ((row.needs & features_) != row.needs) {
      verdict.reason = missing(row.needs);
    } else if (const char* why = row.refuses(params)) {
      verdict.reason = why;
    } else if (!choice_.allows(StepOf<P>::value, row.name)) {
      verdict.reason = "another row is forced";
    } else if (!choice_.permits(row, params)) {
      verdict.reason = "rounds activations to 8 bits: --activation int8 lets it run here, too";
    } else {
      verdict.reason = "costs more";
    }
    verdicts.push_back(std::move(verdict));
  }
  return verdicts;
}

}  // namespace moxie
