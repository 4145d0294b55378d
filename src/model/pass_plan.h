// The plan of a pass: which rows run, which steps each covers, and in which forms they hand values
// over, for a bracket of launches. Made from the rows' tables by cheapest_chain(); `forward` walks
// it and chooses nothing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/registry.h"
#include "model/pass.h"

namespace moxie {

/// Launches that share a plan: what predicted times and refusals depend on. Counts above 16 are
/// rounded down to quarters of a power of two, and plans are made for the rounded ones, so that a
/// plan does not depend on which launch of its bracket came first.
struct Bracket {
  int32_t num_tokens = 1, num_seqs = 1, num_logit_rows = 1;
  friend auto operator<=>(const Bracket&, const Bracket&) = default;
};
/// The greatest count of a bracket's that is not above `count`.
int32_t bracket_floor(int32_t count);
Bracket bracket_of(int32_t num_tokens, int32_t num_seqs, int32_t num_logit_rows);

/// A row in its place in the plan.
struct PlannedRow {
  RowInfo row;
  Forms forms;
  double predicted_us = 0;
  double limit_us = 0;  ///< the least bytes and operations of its steps at the device's rates
  /// Runs it in layer `l`.
  void (*run)(KernelChooser& kernels, const Pass& pass, const PlannedRow& planned, size_t l);
  const void* entry = nullptr;  ///< of its table: Row<P>
  size_t tap = 0;               ///< of tap: which
};

/// What a planned row finds (`reads`) or leaves: the names of values and of their forms.
using NamedForms = std::vector<std::pair<const char*, const char*>>;
NamedForms forms_at(const PlannedRow& row, bool reads);

struct PassPlan {
  PlannedRow embed, unembed;
  /// Layers of a kind (window or not, formats) have the same chain, but for taps.
  std::vector<std::vector<PlannedRow>> chains;
  std::vector<uint16_t> chain_of_layer;  // [layers]
  double predicted_us = 0;               ///< of the whole pass

  std::span<const PlannedRow> layer(size_t l) const { return chains[chain_of_layer[l]]; }
};

/// Every row, in all forms that it takes and leaves, that may stand in layer `l` of a plan for
/// `pass` (pointers may be null), before it or behind it: what make_plan() chooses among.
std::vector<PlannedRow> rows_for_plan(const Pass& pass, const KernelChooser& kernels, size_t l);

/// Whether `b` can stand directly behind `a`, in its layer or in the next: the border is the same,
/// and so is the form of all that is handed over there.
bool can_meet(const PlannedRow& a, const PlannedRow& b);

/// Launches whose times decide together on the one chain of all brackets (--batch-invariant): a
/// stream, some streams, many, and prompts.
inline constexpr Bracket kBatchInvariantBrackets[] = {
    {1, 1, 1}, {8, 8, 8}, {64, 64, 64}, {512, 1, 1}, {2048, 1, 1}};

/// A launch whose times count in the choice of a chain: predicted times are multiplied by `weight`.
struct WeighedPass {
  const Pass* pass;
  double weight;
};

/// What a chain is chosen by, in the place of its predicted times.
struct PlanChoice {
  /// If there are any: the chain is the cheapest of those that can run in all of them, and so does
  /// not depend on the pass that the plan is for, which tells the plan's times alone.
  std::span<const WeighedPass> weighed = {};
  /// If there is one: what a row costs; infinity where it may not stand. For tests that want
  /// certain rows in certain forms.
  std::function<double(const PlannedRow&)> cost = {};
};

/// The cheapest plan for `pass`, whose batch has the bracket's counts (pointers may be null), among
/// the rows that `kernels` permits; or which step has no row, and why. `taps`: GptOss::taps().
Result<PassPlan> make_plan(const Pass& pass, const KernelChooser& kernels,
                           std::span<const int32_t> taps = {}, const PlanChoice& choice = {});

/// Whether two plans run the same rows in the same forms.
bool same_rows(const PassPlan& a, const PassPlan& b);

}  // namespace moxie
