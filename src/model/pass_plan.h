// The plan of a pass, for a bracket of launches: which rows run, which steps each covers, and in
// which forms they hand values over. cheapest_chain() makes it from the rows' tables; `forward`
// walks it and chooses nothing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/registry.h"
#include "model/pass.h"

namespace moxie {

/// Launches that share a plan, by the counts that predicted times and refusals depend on. Counts
/// above 16 are rounded down to quarters of a power of two. Plans are made for the rounded counts,
/// so that a plan does not depend on which launch of its bracket came first.
struct Bracket {
  int32_t num_tokens = 1, num_seqs = 1, num_logit_rows = 1;
  friend auto operator<=>(const Bracket&, const Bracket&) = default;
};
/// The greatest count of any bracket that is not above `count`.
int32_t bracket_floor(int32_t count);
Bracket bracket_of(int32_t num_tokens, int32_t num_seqs, int32_t num_logit_rows);

/// A row in its place in the plan.
struct PlannedRow {
  RowInfo row;
  Forms forms;
  double predicted_us = 0;
  double limit_us = 0;  ///< time of its steps' least work at the device's rates; CPU: of memory
  /// Runs it in layer `l`.
  void (*run)(KernelChooser& kernels, const Pass& pass, const PlannedRow& planned, size_t l);
  /// Why it cannot run in layer `l` of another pass than it was planned for; null if it can.
  const char* (*refuses)(const Pass& pass, const PlannedRow& planned, size_t l);
  const void* entry = nullptr;  ///< in its table: Row<P>
  /// For tap: the tap's number; for reduce: kBehindOut or kBehindExperts.
  size_t number = 0;
  size_t layer = 0;          ///< that it was planned for: the first of its kind
  int32_t tile_columns = 0;  ///< of a row that takes a tile, as tuned; 0: as the pass says

  gemm::Tile tile() const { return {row.tile_rows, tile_columns}; }
};

/// What a planned row reads or leaves: the names of values and of their forms.
using NamedForms = std::vector<std::pair<const char*, const char*>>;
NamedForms forms_at(const PlannedRow& row, bool reads);

struct PassPlan {
  PlannedRow embed, unembed;
  std::vector<PlannedRow> behind;  ///< of unembed: with ranks, gather
  /// Layers of a kind (window or not, formats) have the same chain, apart from taps.
  std::vector<std::vector<PlannedRow>> chains;
  std::vector<uint16_t> chain_of_layer;  // [layers]
  double predicted_us = 0;               ///< of the whole pass
  bool is_tuned = false;                 ///< chosen by GptOss::set_row_costs()

  std::span<const PlannedRow> layer(size_t l) const { return chains[chain_of_layer[l]]; }
};

/// The layers that are the first of their kind: window or not, and formats. Layers of a kind have
/// the same chain in every plan.
std::vector<size_t> kinds_of_layers(const GptOssConfig& config, const ModelWeights& formats);

/// Every row, in all forms that it takes and leaves, that may run in layer `l` of a plan for `pass`
/// (pointers may be null), before the layers or behind them: the candidates of make_plan().
std::vector<PlannedRow> rows_for_plan(const Pass& pass, const KernelChooser& kernels, size_t l);

/// Whether `b` can directly follow `a`, in the same layer or in the next: the border and the forms
/// of all values at it are the same.
bool can_meet(const PlannedRow& a, const PlannedRow& b);

/// Launches whose times together decide the one chain of all brackets (--batch-invariant): one
/// stream, some streams, many streams, and prompts.
inline constexpr Bracket kBatchInvariantBrackets[] = {
    {1, 1, 1}, {8, 8, 8}, {64, 64, 64}, {512, 1, 1}, {2048, 1, 1}};

/// A launch whose times count in the choice of a chain: predicted times are multiplied by `weight`.
struct WeighedPass {
  const Pass* pass;
  double weight;
};

/// What decides the choice of a chain instead of its predicted times.
struct PlanChoice {
  /// If not empty: the chain is the cheapest of those that can run in all these passes. It then
  /// does not depend on the plan's own pass, which only gives the plan's times.
  std::span<const WeighedPass> weighed = {};
  /// If not null: the cost of a row; infinity excludes it. For measured times, and for tests of
  /// certain rows in certain forms.
  std::function<double(const PlannedRow&)> cost = {};
};

/// The cheapest plan for `pass`, whose batch has the bracket's counts (pointers may be null), among
/// the rows that `kernels` permits; or an error that names a step without a row, and why. `taps`:
/// GptOss::taps().
Result<PassPlan> make_plan(const Pass& pass, const KernelChooser& kernels,
                           std::span<const int32_t> taps = {}, const PlanChoice& choice = {});

/// Whether two plans run the same rows in the same forms with the same tiles.
bool same_rows(const PassPlan& a, const PassPlan& b);

}  // namespace moxie
