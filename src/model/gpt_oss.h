// The forward pass of gpt-oss: embed, then qkv, attend, out, route and experts in each layer, then
// unembed. It is the same for every device and batch: prefill chunks, decode tokens and drafts of
// several sequences are one ragged batch, and the rows of each step do the rest.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "kernels/pair_outputs.h"
#include "kernels/registry.h"
#include "model/config.h"
#include "model/pass_plan.h"
#include "model/weights.h"

namespace moxie {

/// The input of one launch of the model. Arrays are in the device's memory.
struct Batch {
  Ragged ragged;
  const int32_t* token_ids = nullptr;   // [tokens]
  int32_t num_logit_rows = 0;           // tokens whose logits are wanted
  const int32_t* logit_rows = nullptr;  // [num_logit_rows] indices of tokens
  bool skips_taps = false;              // nobody reads the taps of this launch
  bool skips_gather = false;            // of ranks: each draws from its own logits (logits_part)
};

/// What a forward pass writes besides the cache. Sized for `max_tokens` and `max_logit_rows`.
struct Activations {
  int32_t max_tokens = 0, max_logit_rows = 0;
  float* x = nullptr;               // [tokens, hidden]; on CUDA two floats a value
  float* q = nullptr;               // [tokens, q width]
  float* a = nullptr;               // [tokens, q width]
  float* t = nullptr;               // [tokens, hidden]; RouteFold: `parts`
  int32_t* expert_ids = nullptr;    // [tokens, top_k]
  float* expert_weights = nullptr;  // [tokens, top_k]
  float* route_sums[2] = {};       // CUDA: [tokens, experts] of two floats (RouteFold), alternating
  float* route_squares = nullptr;  // CUDA: [tokens, hidden / 16]
  float* logits = nullptr;         // [logit rows, vocab]
  // Of a rank, otherwise null: what out and experts add to x, zeros before a pass, and its logits.
  float* parts[2] = {};          // [tokens, hidden]
  float* logits_part = nullptr;  // [logit rows, GptOssConfig::logits_held()]
  // Of a rank on a GPU, [hidden], for ReduceForm::kFolded: x of one float a value, and a part.
  float *folded_x = nullptr, *folded_part = nullptr;
  // Of a rank on a GPU, for ReduceForm::kRounded; the outputs lie where parts[kBehindExperts] do.
  PairOutputs pairs;
  std::byte* workspace = nullptr;
  uint64_t workspace_bytes = 0;
  float* taps = nullptr;  // [GptOss::taps(), max_tokens, hidden], a float a value
};

class GptOss {
 public:
  /// `config`, `weights` and `kernels` must outlive the model; `rotary` is in the device's memory.
  /// Every pass writes x at the `taps`: before the layers of these numbers; the number of layers
  /// means behind the last. `link` joins the ranks whose shares the weights are (Share): all of
  /// them run each pass together.
  GptOss(const GptOssConfig& config, const ModelWeights& weights, Rotary rotary,
         KernelChooser& kernels, bool use_sinks = true, std::vector<int32_t> taps = {},
         RankLink* link = nullptr)
      : config_(config),
        weights_(weights),
        rotary_(rotary),
        kernels_(kernels),
        use_sinks_(use_sinks),
        taps_(std::move(taps)),
        link_(link) {}

  /// Runs the batch: writes K and V into `kv` (one view a layer) and the requested logits.
  void forward(const Batch& batch, std::span<const KvLayer> kv, const Activations& activations,
               Stream& stream) const;

  /// Makes and keeps the plans of launches of up to `max_tokens` tokens, of one sequence and of one
  /// token a sequence. Fails, with the reason, if a plan is impossible, or if no row can draw from
  /// the logits. Called once after loading, so that no launch can lack a row.
  Status check_rows(DType kv_dtype, int32_t max_tokens = 1) const;

  /// The plan of such launches; made at first use and kept.
  Result<const PassPlan*> plan_for(const Bracket& bracket, DType kv_dtype) const;

  /// What decides a launch's plan instead of predicted times; `cost` is null where they do.
  struct MeasuredRows {
    /// Of a row in its place; infinity for a row that may not be in the plan.
    std::function<double(const PlannedRow&)> cost;
    /// Of a row that takes a tile; 0: by the tile model.
    std::function<int32_t(const PlannedRow&)> tile_columns;
  };
  using RowCosts = std::function<MeasuredRows(const Bracket&)>;
  /// Costs that decide all plans from now on; null: none do. Plans that were made are forgotten.
  /// Where no chain of rows has finite costs, predicted times decide, with a warning. Only while
  /// nothing runs. Without effect with --batch-invariant.
  /// `workspace_bytes`: of the activations that launches will have; tiles that need more are left
  /// out.
  void set_row_costs(RowCosts costs, uint64_t workspace_bytes = UINT64_MAX) const;
  /// A plan by other costs, which is not kept.
  Result<PassPlan> plan_by(const Bracket& bracket, DType kv_dtype, const PlanChoice& choice) const;
  /// Every row that may run in layer `l` of such launches, before the layers or behind them; last
  /// those that take a tile, with each tile that they have, unless --tile forces one.
  std::vector<PlannedRow> candidates(const Bracket& bracket, DType kv_dtype, size_t l) const;
  /// Replaces the plan of such launches, for measuring; until set_row_costs(). Only while nothing
  /// runs.
  void keep_plan(const Bracket& bracket, DType kv_dtype, PassPlan plan) const;

  /// least_work() of a batch in the forms of its plan.
  WorkByOp work_by_op(const Batch& batch, DType kv_dtype, int32_t num_distinct_experts) const;

  /// Why each row is or is not in the plan of launches of `num_tokens` tokens.
  std::vector<Verdict> explain(DType kv_dtype, int32_t num_tokens) const;

  const GptOssConfig& config() const { return config_; }
  RankLink* link() const { return link_; }
  const ModelWeights& weights() const { return weights_; }
  std::span<const int32_t> taps() const { return taps_; }

 private:
  static void read_ahead(const Pass& pass, const PackedMatrix& next);
  template <typename P>
  Verdict verdict_of(const Pass& pass, const Row<P>& row, const PassPlan* plan) const;
  Result<PassPlan> batch_invariant_plan(const Pass& pass, DType kv_dtype) const;
  Result<PassPlan> tuned_plan(const Pass& pass, const Bracket& bracket) const;
  void set_tiles(const Bracket& bracket, DType kv_dtype, const MeasuredRows& measured,
                 PassPlan* plan) const;

  const GptOssConfig& config_;
  const ModelWeights& weights_;
  Rotary rotary_;
  KernelChooser& kernels_;
  bool use_sinks_;
  std::vector<int32_t> taps_;
  RankLink* link_;
  mutable std::mutex mutex_;
  mutable std::map<std::pair<Bracket, DType>, std::unique_ptr<const PassPlan>> plans_;
  mutable RowCosts row_costs_;
  mutable uint64_t workspace_bytes_ = UINT64_MAX;
};

/// The least bytes and operations of one forward pass (roofline), by step; sample, which is not
/// part of a forward pass, has none. `num_distinct_experts` is the number of experts read in a
/// layer. It depends only on formats and sizes: no row is chosen, so that any report may call it.
WorkByOp least_work(const GptOssConfig& config, const ModelWeights& formats, DType kv_dtype,
                    const Batch& batch, int32_t num_distinct_experts);

/// Bytes of the arrays of Activations for these sizes, and the most scratch of the rows that may be
/// chosen on this device. Needs no memory: `plan` calls it too.
struct ActivationBytes {
  uint64_t arrays = 0, logits = 0, workspace = 0, taps = 0;  ///< parts of x are in `arrays`
  int32_t floats_of_x = 1;                                   ///< of one value
  uint64_t total() const { return arrays + logits + workspace + taps; }
};
ActivationBytes activation_bytes(const GptOssConfig& config, const ModelWeights& formats,
                                 DType kv_dtype, const KernelChooser& kernels, int32_t max_tokens,
                                 int32_t max_logit_rows, size_t num_taps = 0);

/// Cuts `arena` (of at least activation_bytes().total() plus 256 an array) into Activations.
Activations make_activations(const GptOssConfig& config, const ActivationBytes& bytes,
                             int32_t max_tokens, int32_t max_logit_rows, Arena& arena);

}  // namespace moxie
