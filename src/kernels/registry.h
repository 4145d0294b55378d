// The tables of implementations, and how a row is chosen.
//
// Every operation has one table of rows for all devices. A row declares the hardware that it needs,
// what it accepts, its scratch and its cost. KernelChooser takes the cheapest eligible row,
// explains why each other row lost, honours `--kernel OP=NAME`, and counts every launch by name.
// There is never a silent fall-back: a forced row that cannot run is an error before anything runs.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/base.h"
#include "core/clock.h"
#include "core/launch_log.h"
#include "kernels/features.h"
#include "kernels/op.h"
#include "kernels/rates.h"

namespace moxie {

/// One implementation of an operation. `P` is the operation's Params.
template <typename P>
struct Row {
  const char* name;  ///< as docs/adding-a-kernel.md forms it
  /// The earlier operations that the row also does, in order; its name begins with theirs.
  std::span<const OpInfo* const> covers = {};
  /// A word with which `--kernel` allows all rows of a kind: "w4a16". Empty: none.
  const char* kind = "";
  DeviceKind device;
  Features needs;        ///< the device must have every bit
  const char* supports;  ///< formats and shapes, for people
  const char* limits;    ///< tokens a launch that it suits, accuracy; for people
  const char* ran_on;    ///< hardware it has run on, or "compiled only"
  PackedLayout layout;
  /// The forms that it takes for its inputs, and leaves for its outputs.
  RowForms forms = {};
  /// The activations that it multiplies: other rows than those in kBF16 (or wider) run only if
  /// theirs are asked for.
  DType activation = DType::kBF16;
  /// Rows of its tiles, if `--tile` sets how it cuts an expert's tokens; otherwise 0.
  int32_t tile_rows = 0;
  /// A token's result is the same to the bit whatever tokens share its launch, however many they
  /// are, and however its sequence is cut into launches.
  bool is_batch_invariant = false;
  /// Only in rows that round activations to 8-bit integers, otherwise null: whether these params
  /// gain enough from it for the row to run unasked (permits()).
  bool (*gains_by_int8)(const P&) = nullptr;
  /// Null if the row can run these params (pointers may be null: only formats and sizes are read),
  /// otherwise why not. The caller has checked the forms (refuses_forms()).
  const char* (*refuses)(const P&);
  /// Predicted time, microseconds, on a device of these rates. Reference rows return kReferenceUs.
  double (*predict_us)(const P&, const DeviceRates&);
  /// Scratch bytes for these params.
  uint64_t (*workspace)(const P&);
  void (*run)(const P&);
};

/// Calls `visit` with each operation that the row does; the row's own operation is the last.
template <typename P, typename Visit>
void for_each_op(const Row<P>& row, Visit&& visit) {
  for (const OpInfo* op : row.covers) visit(*op);
  visit(Op<P>::info);
}

/// kReferenceUs: time of reference rows, which run only if they are forced or no other row can.
/// kNeverUs: time of rows that would lose more by rounding than they gain, or that are not proven
/// yet: they run only if they are forced.
inline constexpr double kReferenceUs = 1e12, kNeverUs = 0.5 * kReferenceUs;
template <typename P>
double reference_us(const P&, const DeviceRates&) {
  return kReferenceUs;
}

/// CUDA rows for many tokens round activations to BF16. In models narrower than this, rounding
/// shows and gains nothing, so that these rows run only if forced.
inline constexpr int32_t kLeastGemmHidden = 1024;

/// Any of these features has rows that round to 8-bit integers.
inline constexpr Features kInt8Features = kAvx2 | kNeonDot;

/// From this many tokens a launch and this width of the model on, such rows run unasked: many
/// tokens share weights, so that arithmetic and not memory is the limit. Small models, where
/// rounding shows, gain little.
inline constexpr int32_t kLeastInt8Tokens = 8, kLeastInt8Hidden = 2048;

/// `ran_on` of rows in plain C++, and of rows for aarch64: no aarch64 machine has run them yet.
inline constexpr const char* kRanAnyCpu = "x86-64; aarch64 under an emulator only";
inline constexpr const char* kRanEmulated = "aarch64 under an emulator only";

/// A row without its types: what `moxie kernels`, docs and records print.
struct RowInfo {
  std::vector<const OpInfo*> ops;  ///< that it does, in their order; it is in the last one's table
  std::string name, supports, limits, ran_on, kind;
  DeviceKind device;
  Features needs;
  DType activation;
  int32_t tile_rows;
  bool is_batch_invariant;

  const OpInfo& op() const { return *ops.back(); }
};

/// Why a row was chosen or not.
struct Verdict {
  RowInfo row;
  bool chosen = false;
  std::string reason;  ///< "cheapest", "forced", "needs amx_bf16", "costs 12 against 4", ...
};

/// A form that the row takes for each value. For x it is two floats if the row takes them, since no
/// row refuses them for any number of tokens; for other values the first form.
template <typename P>
Forms first_forms(const Row<P>& row) {
  return {.x = row.forms.x.has(XForm::kF32Pair) ? XForm::kF32Pair : XForm::kF32,
          .q = row.forms.q.first(),
          .a = row.forms.a.first(),
          .router = row.forms.router.first(),
          .t = row.forms.t.first(),
          .l1 = row.forms.l1.first(),
          .reduce = row.forms.reduce.first()};
}

/// Why a row does not take the forms of these params; null if it does.
template <typename P>
const char* refuses_forms(const Row<P>& row, const P& params) {
  if constexpr (requires { params.forms; }) {
    const Forms& forms = params.forms;
    if (!row.forms.x.has(forms.x)) return "x has another form";
    if (!row.forms.q.has(forms.q)) return "the queries have another form";
    if (!row.forms.a.has(forms.a)) return "attention's outputs have another form";
    if (!row.forms.router.has(forms.router)) return "the router's products have another form";
    if (!row.forms.t.has(forms.t)) return "the experts' input has another form";
    if (!row.forms.l1.has(forms.l1)) return "an SM's memory is shared otherwise";
    if (!row.forms.reduce.has(forms.reduce)) return "ranks' parts of x are added elsewhere";
  }
  return nullptr;
}
/// Why a row cannot run these params and forms; null if it can.
template <typename P>
const char* why_not(const Row<P>& row, const P& params) {
  const char* why = refuses_forms(row, params);
  return why != nullptr ? why : row.refuses(params);
}

/// Why a step has no row, without and with --batch-invariant.
inline constexpr const char* kNoRow[] = {
    "no row accepts these formats on this machine",
    "no row whose results do not depend on the batch accepts these formats on this machine"};

/// Forced names: from `--kernel OP=NAME`. `all=reference` forces the row `<op>_reference`.
class KernelChoice {
 public:
  /// Parses one "OP=NAME"; NAME may be "auto", a row's name, "reference", or a kind of the
  /// operation's rows ("gemv", "w4a16", "w4a8" for experts), which forces the cheapest of the kind.
  /// Unknown operations and names fail with the nearest that exist.
  Status add(const std::string& assignment);
  /// The forced name or kind; null if nothing is forced.
  const std::string* forced(const OpInfo& op) const;
  /// Excludes the row of this name: so a plan without it can be made.
  void exclude(const std::string& row) { excluded_.insert(row); }
  /// Whether a row may run: it is not excluded, and for each operation that it does, either nothing
  /// is forced, or this row is, or (for its own operation) its kind is.
  template <typename P>
  bool allows(const Row<P>& row) const {
    if (excluded_.contains(std::string_view(row.name))) return false;
    bool allowed = true;
    for_each_op(row, [&](const OpInfo& op) {
      const std::string* name = forced(op);
      const bool is_kind = &op == &Op<P>::info && name != nullptr && *name == row.kind;
      allowed = allowed && (name == nullptr || *name == row.name || is_kind);
    });
    return allowed;
  }
  bool all_reference() const;
  /// `--tile`: "auto" or a tile of gemm/tile_model.h.
  Status set_tile(const std::string& tile);
  gemm::Tile tile() const { return tile_; }
  /// `--activation`: "auto", "bf16" (or wider), "int8", "mxfp8", "mxfp6", "mxfp6_e3m2" or "mxfp4".
  /// "int8" lets rows that round activations to 8-bit integers run wherever they can; "auto" lets
  /// them run where it gains much. The MX formats let rows run that round the experts' activations
  /// to them (experts.h).
  Status set_activation(const std::string& activation);
  /// The MX format asked for, or with "auto" what a forced row needs; otherwise kBF16.
  DType activation() const;
  bool int8() const { return activation_ == "int8"; }
  /// `--batch-invariant`: only batch-invariant rows may run.
  void set_batch_invariant(bool on) { batch_invariant_ = on; }
  bool batch_invariant() const { return batch_invariant_; }
  /// Why the switches do not let an allowed row run; null if they do. A row that rounds to 8-bit
  /// integers may run if that is asked for, if the row is forced by its own name, or if no switch
  /// forbids it and it gains much.
  template <typename P>
  const char* why_not_permitted(const Row<P>& row, const P& params) const {
    if (batch_invariant_ && !row.is_batch_invariant)
      return "its results depend on what shares the launch: not with --batch-invariant on";
    const std::string* name = forced(Op<P>::info);
    if (row.gains_by_int8 == nullptr || int8() || (name != nullptr && *name == row.name))
      return nullptr;
    return activation_ == "auto" && row.gains_by_int8(params)
               ? nullptr
               : "rounds activations to 8 bits: --activation int8 lets it run here, too";
  }
  template <typename P>
  bool permits(const Row<P>& row, const P& params) const {
    return allows(row) && why_not_permitted(row, params) == nullptr;
  }

 private:
  struct Forced {
    std::string name;
    DType activation = DType::kBF16;  // of the forced row, or of the rows of the kind
  };
  std::map<const OpInfo*, Forced> forced_;
  gemm::Tile tile_;
  std::string activation_ = "auto";
  bool batch_invariant_ = false;
  std::set<std::string, std::less<>> excluded_;
};

/// Chooses and counts. One per loaded model; shared by the threads that drive it.
class KernelChooser {
 public:
  KernelChooser(DeviceKind device, Features features, KernelChoice choice,
                const DeviceRates& rates = {})
      : device_(device), features_(features), choice_(std::move(choice)), rates_(rates) {}

  /// The row for these params alone, or why there is none. The rows of a pass are chosen together
  /// (kernels/plan.h).
  template <typename P>
  Result<const Row<P>*> select(const P& params) const {
    const std::string* forced = choice_.forced(Op<P>::info);
    const Row<P>* best = nullptr;
    double best_cost = 0;
    // A forced row (or the last of its kind) that cannot run, and why.
    const Row<P>* refused = nullptr;
    const char* why_refused = nullptr;
    for (const Row<P>& row : Op<P>::rows()) {
      if (!choice_.allows(row)) continue;
      if (row.device != device_) {
        if (refused == nullptr) refused = &row, why_refused = "it is for another device";
      } else if (const char* why = choice_.why_not_permitted(row, params)) {
        if (refused == nullptr) refused = &row, why_refused = why;
      } else if ((row.needs & features_) != row.needs) {
        refused = &row, why_refused = nullptr;
      } else if (const char* why = why_not(row, params)) {
        refused = &row, why_refused = why;
      } else if (const double cost = row.predict_us(params, rates_);
                 best == nullptr || cost < best_cost) {
        best = &row, best_cost = cost;
      }
    }
    if (best != nullptr) return best;
    if (forced == nullptr || refused == nullptr)
      return refusal("", Op<P>::info, kNoRow[choice_.batch_invariant() ? 1 : 0]);
    return refusal(refused->name, Op<P>::info,
                   why_refused == nullptr ? missing(refused->needs) : why_refused);
  }

  /// The same where a row must exist: loading the model checks that (select for each step), so a
  /// missing row is a broken invariant.
  template <typename P>
  const Row<P>& row_for(const P& params) const {
    const auto row = select(params);
    CHECK(row.has_value(), row ? "" : row.error().message());
    return **row;
  }

  /// All rows of the operation with the reason each is or is not chosen.
  template <typename P>
  std::vector<Verdict> explain(const P& params) const;

  /// Runs the operation with the chosen row and counts it.
  template <typename P>
  void run(const P& params) {
    run(row_for(params), params);
  }
  /// The same with a row that was selected for these params.
  template <typename P>
  void run(const Row<P>& row, const P& params) {
    CHECK(params.launch.workspace_bytes >= row.workspace(params), row.name);
    for_each_op(row, [&](const OpInfo& op) { count(op, row.name); });
    const OpScope scope(&Op<P>::info);
    const bool adds_time = adds_times_.load(std::memory_order_relaxed);
    if (!on_run_ && !adds_time) return row.run(params);
    const auto start = Clock::now();
    row.run(params);
    const auto end = Clock::now();
    if (on_run_) on_run_(Op<P>::info, row.name, start, end);
    if (adds_time) add_time(Op<P>::info, end - start);
  }

  /// Called after every run, on the thread that ran it, with the run's time on the host: on the CPU
  /// that of the whole row, elsewhere that of its launch. Set or cleared (null) only while nothing
  /// runs.
  using OnRun = std::function<void(const OpInfo&, const char* row, Clock::time_point start,
                                   Clock::time_point end)>;
  void set_on_run(OnRun on_run) { on_run_ = std::move(on_run); }

  /// Whether the times of runs on the host are added up by operation, for those who watch a running
  /// engine: on the CPU the times of whole rows. A row that covers operations counts under its own.
  /// From any thread, at any time. Off at first; off it costs a load of one flag a run.
  void add_times(bool on) { adds_times_.store(on, std::memory_order_relaxed); }
  /// Seconds of each operation that ran with add_times(true), in the order of all_ops().
  struct Time {
    const OpInfo* op;
    double seconds;
  };
  std::vector<Time> times() const;

  /// Launches by row name since the start (or the last reset), in the order of all_ops().
  struct Count {
    const OpInfo* op;
    std::string name;
    uint64_t launches;
  };
  std::vector<Count> counts() const;
  void reset_counts();

  /// Launches by (operation, row name).
  using Launches = std::map<std::pair<const OpInfo*, const char*>, uint64_t>;
  /// Between these two calls, launches are recorded into a graph and do not run. They are returned
  /// instead of counted; the caller counts them each time the graph runs.
  void begin_recording();
  Launches end_recording();
  void count(const Launches& launches);

  /// How the rows that this chooser permits are launched.
  Launch launch(Stream* stream = nullptr, std::byte* workspace = nullptr,
                uint64_t workspace_bytes = 0) const {
    return {.device = device_,
            .stream = stream,
            .workspace = workspace,
            .workspace_bytes = workspace_bytes,
            .most_shared = most_shared_bytes(features_)};
  }
  DeviceKind device() const { return device_; }
  Features features() const { return features_; }
  gemm::Tile tile() const { return choice_.tile(); }
  DType activation() const { return choice_.activation(); }
  const KernelChoice& choice() const { return choice_; }
  const DeviceRates& rates() const { return rates_; }
  /// "needs amx_bf16, which this machine lacks"
  std::string missing(Features needs) const;

 private:
  tl::unexpected<Error> refusal(const std::string& row, const OpInfo& op,
                                const std::string& why) const;
  void count(const OpInfo& op, const char* name);
  void add_time(const OpInfo& op, Clock::duration time);

  DeviceKind device_;
  Features features_;
  KernelChoice choice_;
  DeviceRates rates_;
  mutable std::mutex mutex_;
  Launches counts_;
  std::optional<Launches> recording_;
  OnRun on_run_;
  std::atomic<bool> adds_times_{false};
  std::map<const OpInfo*, Clock::duration> times_;  // by mutex_
};

template <typename P>
RowInfo row_info(const Row<P>& row) {
  RowInfo info{.name = row.name,
               .supports = row.supports,
               .limits = row.limits,
               .ran_on = row.ran_on,
               .kind = row.kind,
               .device = row.device,
               .needs = row.needs,
               .activation = row.activation,
               .tile_rows = row.tile_rows,
               .is_batch_invariant = row.is_batch_invariant};
  for_each_op(row, [&](const OpInfo& op) { info.ops.push_back(&op); });
  return info;
}

/// An operation and its table.
struct OpTable {
  const OpInfo* op;
  std::vector<RowInfo> (*rows)();
};
/// Every operation: first those of a pass in their order, then the others (ops.cpp).
std::span<const OpTable> all_ops();
/// Every row of every table, in the order of all_ops().
std::vector<RowInfo> all_rows();
/// The operation of this name, or null.
const OpInfo* op_named(std::string_view name);

template <typename P>
std::vector<Verdict> KernelChooser::explain(const P& params) const {
  const auto chosen = select(params);
  const bool forced = choice_.forced(Op<P>::info) != nullptr;
  std::vector<Verdict> verdicts;
  for (const Row<P>& row : Op<P>::rows()) {
    Verdict verdict{.row = row_info(row)};
    if (chosen && *chosen == &row) {
      verdict.chosen = true;
      verdict.reason = forced ? "forced" : "cheapest of those that can run";
    } else if (row.device != device_) {
      verdict.reason = "for another device";
    } else if ((row.needs & features_) != row.needs) {
      verdict.reason = missing(row.needs);
    } else if (const char* why = why_not(row, params)) {
      verdict.reason = why;
    } else if (!choice_.allows(row)) {
      verdict.reason = "another row is forced";
    } else if (const char* why = choice_.why_not_permitted(row, params)) {
      verdict.reason = why;
    } else {
      verdict.reason = "costs more";
    }
    verdicts.push_back(std::move(verdict));
  }
  return verdicts;
}

}  // namespace moxie
