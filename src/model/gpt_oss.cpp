// The forward pass, its plans, and the sizes that it needs.
#include "model/gpt_oss.h"

#include <fmt/format.h>

#include <cmath>

#include "core/threads.h"
#include "kernels/gemm/tile_model.h"
#include "kernels/sample/sample.h"
#include "model/pass.h"

namespace moxie {
namespace {

/// In launches of up to this many tokens, threads wait for each other at the end of a row.
constexpr int32_t kMostReadAheadTokens = 8;

/// Keys that a token sees where plans are made: as many as in a conversation.
constexpr int64_t kPlannedKeys = 1024;

// A pass without memory, for planning, explaining and counting.
struct Shadow {
  Batch batch;
  Activations act;
  KvLayer kv;
  Pass pass;

  Shadow(const GptOssConfig& config, const ModelWeights& weights, DType kv_dtype,
         const Batch& of_batch, const KernelChooser* kernels)
      : batch(of_batch),
        kv{.page_tokens = 16, .dtype = kv_dtype},
        pass{.config = config,
             .weights = weights,
             .batch = batch,
             .act = act,
             .kv = {&kv, 1},
             .rotary = {.max_positions = config.max_positions},
             .launch = kernels == nullptr ? Launch{} : kernels->launch(),
             .activation = kernels == nullptr ? DType::kBF16 : kernels->activation(),
             .tile = kernels == nullptr ? gemm::Tile() : kernels->tile(),
             .tile_device =
                 kernels == nullptr ? gemm::TileDevice() : tile_device_of(kernels->rates())} {}
  Shadow(const Shadow&) = delete;
};

Batch batch_of(const Bracket& bracket) {
  return {.ragged = {.num_tokens = bracket.num_tokens,
                     .num_seqs = bracket.num_seqs,
                     .num_visible_keys = kPlannedKeys * bracket.num_tokens},
          .num_logit_rows = bracket.num_logit_rows};
}

// The dense weights that are read after a row of layer `l`: waiting threads prefetch them. No rows
// before experts, whose weights depend on the choice.
PackedMatrix dense_after(const Pass& pass, const OpInfo& last, size_t l) {
  const LayerWeights& layer = pass.weights.layers[l];
  if (&last == &Op<QkvParams>::info || &last == &Op<AttendParams>::info) return layer.out;
  if (&last == &Op<OutParams>::info) return layer.router;
  if (&last != &Op<ExpertsParams>::info) return {};
  return l + 1 < pass.weights.layers.size() ? pass.weights.layers[l + 1].qkv
                                            : pass.weights.head_of(pass.config);
}

}  // namespace

void GptOss::forward(const Batch& batch, std::span<const KvLayer> kv, const Activations& act,
                     Stream& stream) const {
  CHECK(batch.ragged.num_tokens <= act.max_tokens && batch.num_logit_rows <= act.max_logit_rows);
  CHECK(kv.size() == weights_.layers.size());
  const auto found =
      plan_for(bracket_of(batch.ragged.num_tokens, batch.ragged.num_seqs, batch.num_logit_rows),
               kv.front().dtype);
  CHECK(found.has_value(), found ? "" : found.error().message());
  const PassPlan& plan = **found;
  const Pass pass{.config = config_,
                  .weights = weights_,
                  .batch = batch,
                  .act = act,
                  .kv = kv,
                  .rotary = rotary_,
                  .launch = kernels_.launch(&stream, act.workspace, act.workspace_bytes),
                  .activation = kernels_.activation(),
                  .tile = kernels_.tile(),
                  .tile_device = tile_device_of(kernels_.rates()),
                  .use_sinks = use_sinks_,
                  .link = link_};
  plan.embed.run(kernels_, pass, plan.embed, 0);
  for (size_t l = 0; l < weights_.layers.size(); ++l) {
    for (const PlannedRow& row : plan.layer(l)) {
      if (batch.skips_taps && &row.row.op() == &Op<TapParams>::info) continue;
      read_ahead(pass, dense_after(pass, row.row.op(), l));
      row.run(kernels_, pass, row, l);
    }
  }
  read_ahead(pass, {});
  if (batch.num_logit_rows == 0) return;
  plan.unembed.run(kernels_, pass, plan.unembed, 0);
  if (batch.skips_gather) return;
  for (const PlannedRow& row : plan.behind) row.run(kernels_, pass, row, 0);
}

// On the CPU, in launches of few tokens: threads that wait for the others at the end of a row
// prefetch the weights that are read next.
void GptOss::read_ahead(const Pass& pass, const PackedMatrix& next) {
  ThreadPool* const pool = pass.launch.stream->pool;
  if (pool == nullptr) return;
  const bool is_limited = pass.batch.ragged.num_tokens <= kMostReadAheadTokens;
  pool->read_ahead({next.data, is_limited ? static_cast<size_t>(next.bytes()) : size_t{0}});
}

Result<const PassPlan*> GptOss::plan_for(const Bracket& bracket, DType kv_dtype) const {
  const std::lock_guard lock(mutex_);
  auto& kept = plans_[{bracket, kv_dtype}];
  if (kept == nullptr) {
    const Shadow shadow(config_, weights_, kv_dtype, batch_of(bracket), &kernels_);
    auto plan = kernels_.choice().batch_invariant() ? batch_invariant_plan(shadow.pass, kv_dtype)
                                                    : tuned_plan(shadow.pass, bracket);
    if (!plan) {
      plans_.erase({bracket, kv_dtype});
      return fail(std::move(plan.error()));
    }
    kept = std::make_unique<const PassPlan>(std::move(*plan));
  }
  return kept.get();
}

// By predicted times where nothing else decides.
Result<PassPlan> GptOss::tuned_plan(const Pass& pass, const Bracket& bracket) const {
  const MeasuredRows measured = row_costs_ ? row_costs_(bracket) : MeasuredRows{};
  if (measured.cost) {
    if (auto plan = make_plan(pass, kernels_, taps_, {.cost = measured.cost})) {
      plan->is_tuned = true;
      set_tiles(bracket, pass.kv.front().dtype, measured, &*plan);
      return plan;
    }
    log_warn(
        fmt::format("the tuning has no chain of rows for launches of {} tokens of {} sequences: "
                    "their plan is made by predicted times",
                    bracket.num_tokens, bracket.num_seqs));
  }
  return make_plan(pass, kernels_, taps_);
}

// A tile that the row does not have, which only a file that was changed by hand can name, is left
// out.
void GptOss::set_tiles(const Bracket& bracket, DType kv_dtype, const MeasuredRows& measured,
                       PassPlan* plan) const {
  for (auto& chain : plan->chains) {
    for (PlannedRow& row : chain) {
      const int32_t columns = row.row.tile_rows != 0 ? measured.tile_columns(row) : 0;
      if (columns == 0) continue;
      const auto has_it = [&](const PlannedRow& other) {
        return other.entry == row.entry && other.tile_columns == columns;
      };
      if (std::ranges::any_of(candidates(bracket, kv_dtype, row.layer), has_it))
        row.tile_columns = columns;
      else
        log_warn(fmt::format("the tuning names a tile of {} columns, which {} does not have",
                             columns, row.row.name));
    }
  }
}

void GptOss::set_row_costs(RowCosts costs, uint64_t workspace_bytes) const {
  const std::lock_guard lock(mutex_);
  workspace_bytes_ = workspace_bytes;
  row_costs_ = std::move(costs);
  plans_.clear();
}

Result<PassPlan> GptOss::plan_by(const Bracket& bracket, DType kv_dtype,
                                 const PlanChoice& choice) const {
  const Shadow shadow(config_, weights_, kv_dtype, batch_of(bracket), &kernels_);
  return make_plan(shadow.pass, kernels_, taps_, choice);
}

std::vector<PlannedRow> GptOss::candidates(const Bracket& bracket, DType kv_dtype, size_t l) const {
  Shadow shadow(config_, weights_, kv_dtype, batch_of(bracket), &kernels_);
  auto rows = rows_for_plan(shadow.pass, kernels_, l);
  if (kernels_.tile().columns == 0) {
    for (const gemm::Tile& tile : gemm::all_tiles()) {
      shadow.pass.tile = tile;
      for (PlannedRow& row : rows_for_plan(shadow.pass, kernels_, l)) {
        if (row.row.tile_rows == 0 || &row.row.op() != &Op<ExpertsParams>::info) continue;
        const auto& experts = *static_cast<const Row<ExpertsParams>*>(row.entry);
        const uint64_t need = experts.workspace(shadow.pass.params<ExpertsParams>(l, row.forms));
        if (need > workspace_bytes_) continue;
        row.tile_columns = tile.columns;
        rows.push_back(row);
      }
    }
  }
  return rows;
}

void GptOss::keep_plan(const Bracket& bracket, DType kv_dtype, PassPlan plan) const {
  const std::lock_guard lock(mutex_);
  plans_[{bracket, kv_dtype}] = std::make_unique<const PassPlan>(std::move(plan));
}

Status GptOss::check_rows(DType kv_dtype, int32_t max_tokens) const {
  // The draw, which is not part of a pass.
  const SampleParams draw{.launch = kernels_.launch(), .num_rows = 1, .vocab = config_.vocab};
  if (auto row = kernels_.select(draw); !row) return fail(std::move(row.error()));
  for (int32_t n = 1; n <= max_tokens; ++n) {
    if (n != bracket_floor(n)) continue;
    for (const int32_t seqs : {1, n}) {
      if (auto plan = plan_for(bracket_of(n, seqs, seqs), kv_dtype); !plan)
        return fail(std::move(plan.error()));
    }
  }
  return {};
}

namespace {

// In the forms of the plan, if there is one.
WorkByOp work_of_pass(const Pass& pass, const PassPlan* plan, int32_t num_distinct_experts) {
  WorkByOp works;
  const auto add = [&]<typename P>(size_t l, const Forms& forms) {
    works[Op<P>::info] += Op<P>::work(pass.params<P>(l, forms));
  };
  add.template operator()<EmbedParams>(0, {});
  for (size_t l = 0; l < pass.weights.layers.size(); ++l) {
    Forms of_route;
    if (plan != nullptr) {
      for (const PlannedRow& row : plan->layer(l))
        if (&row.row.op() == &Op<RouteParams>::info) of_route = row.forms;
    }
    add.template operator()<QkvParams>(l, {});
    add.template operator()<AttendParams>(l, {});
    add.template operator()<OutParams>(l, {});
    add.template operator()<RouteParams>(l, of_route);
    works[Op<ExpertsParams>::info] +=
        experts_work(pass.params<ExpertsParams>(l, {}), num_distinct_experts);
    if (!pass.has_ranks()) continue;
    add.template operator()<ReduceParams>(kBehindOut, {});
    add.template operator()<ReduceParams>(kBehindExperts, {});
  }
  if (pass.batch.num_logit_rows == 0) return works;
  add.template operator()<UnembedParams>(0, {});
  if (pass.has_ranks()) add.template operator()<GatherParams>(0, {});
  return works;
}

}  // namespace

// The same rows in the same forms for every launch: those that lose least over the brackets. The
// time of a bracket counts as a multiple of the bracket's limit.
Result<PassPlan> GptOss::batch_invariant_plan(const Pass& pass, DType kv_dtype) const {
  std::vector<std::unique_ptr<const Shadow>> shadows;
  std::vector<WeighedPass> weighed;
  for (const Bracket& bracket : kBatchInvariantBrackets) {
    const Pass& one = shadows
                          .emplace_back(std::make_unique<const Shadow>(
                              config_, weights_, kv_dtype, batch_of(bracket), &kernels_))
                          ->pass;
    const double distinct =
        expected_distinct_experts(config_.num_experts, config_.top_k, bracket.num_tokens);
    const Work work =
        work_of_pass(one, nullptr, static_cast<int32_t>(std::lround(distinct))).total();
    const DeviceRates& rates = kernels_.rates();
    weighed.push_back({&one, 1.0 / limit_us(work, rates.read_gb_s, rates.bf16_gflops)});
  }
  return make_plan(pass, kernels_, taps_, {.weighed = weighed});
}

WorkByOp least_work(const GptOssConfig& config, const ModelWeights& formats, DType kv_dtype,
                    const Batch& batch, int32_t num_distinct_experts) {
  const Shadow shadow(config, formats, kv_dtype, batch, nullptr);
  return work_of_pass(shadow.pass, nullptr, num_distinct_experts);
}

WorkByOp GptOss::work_by_op(const Batch& batch, DType kv_dtype,
                            int32_t num_distinct_experts) const {
  const auto plan = plan_for(
      bracket_of(batch.ragged.num_tokens, batch.ragged.num_seqs, batch.num_logit_rows), kv_dtype);
  const Shadow shadow(config_, weights_, kv_dtype, batch, &kernels_);
  return work_of_pass(shadow.pass, plan ? *plan : nullptr, num_distinct_experts);
}

std::vector<Verdict> GptOss::explain(DType kv_dtype, int32_t num_tokens) const {
  const Bracket bracket = bracket_of(num_tokens, 1, 1);
  const auto plan = plan_for(bracket, kv_dtype);
  const Shadow shadow(config_, weights_, kv_dtype, batch_of(bracket), &kernels_);
  std::vector<Verdict> verdicts;
  // Lists the rows of one step, with the planner's verdict on each.
  const auto explain_step = [&]<typename P>() {
    for (const Row<P>& row : Op<P>::rows()) {
      verdicts.push_back(verdict_of(shadow.pass, row, plan ? *plan : nullptr));
    }
  };
  explain_step.template operator()<EmbedParams>();
  for_each_layer_step(explain_step);
  explain_step.template operator()<UnembedParams>();
  if (shadow.pass.has_ranks()) {
    explain_step.template operator()<ReduceParams>();
    explain_step.template operator()<GatherParams>();
  }
  const SampleParams sample{.launch = shadow.pass.launch, .num_rows = 1, .vocab = config_.vocab};
  for (Verdict& verdict : kernels_.explain(sample)) verdicts.push_back(std::move(verdict));
  return verdicts;
}

template <typename P>
Verdict GptOss::verdict_of(const Pass& pass, const Row<P>& row, const PassPlan* plan) const {
  Verdict verdict{.row = row_info(row)};
  const bool forced = kernels_.choice().forced(Op<P>::info) != nullptr;
  const auto runs = [&](const PlannedRow& planned) { return planned.row.name == row.name; };
  if (plan != nullptr) {
    verdict.chosen =
        runs(plan->embed) || runs(plan->unembed) || std::ranges::any_of(plan->behind, runs);
    for (const auto& chain : plan->chains)
      for (const PlannedRow& planned : chain) verdict.chosen |= runs(planned);
  }
  const P params = pass.params<P>(0, first_forms(row));
  if (verdict.chosen) {
    verdict.reason = forced ? "forced" : "in the cheapest chain";
  } else if (row.device != kernels_.device()) {
    verdict.reason = "for another device";
  } else if ((row.needs & kernels_.features()) != row.needs) {
    verdict.reason = kernels_.missing(row.needs);
  } else if (const char* why = row.refuses(params)) {
    verdict.reason = why;
  } else if (!kernels_.choice().allows(row)) {
    verdict.reason = "another row is forced";
  } else if (const char* why = kernels_.choice().why_not_permitted(row, params)) {
    verdict.reason = why;
  } else if (const double us = row.predict_us(params, kernels_.rates()); us >= kNeverUs) {
    verdict.reason = us >= kReferenceUs ? "a reference: runs where it is forced"
                                        : "rounds more than it gains here: runs where it is forced";
  } else {
    verdict.reason = fmt::format("the chain with it costs more: {:.1f} us by itself", us);
  }
  return verdict;
}

namespace {

// Whether rows may leave the outputs of pairs for reduce (ReduceForm::kRounded).
bool leaves_pairs(const GptOssConfig& config) { return config.share.link == LinkKind::kPeers; }

// Of a rank's part behind experts, or of their pairs' outputs (PairOutputs).
uint64_t floats_behind_experts(const GptOssConfig& config, int32_t max_tokens,
                               uint64_t floats_of_x) {
  const auto hidden = static_cast<uint64_t>(config.hidden);
  const uint64_t part = static_cast<uint64_t>(max_tokens) * hidden * floats_of_x;
  if (!leaves_pairs(config)) return part;
  const int32_t slots = most_pair_slots(max_tokens * config.top_k, config.num_experts);
  return std::max(part, ceil_div<uint64_t>(static_cast<uint64_t>(slots) * hidden, 2));
}

}  // namespace

ActivationBytes activation_bytes(const GptOssConfig& config, const ModelWeights& formats,
                                 DType kv_dtype, const KernelChooser& kernels, int32_t max_tokens,
                                 int32_t max_logit_rows, size_t num_taps) {
  ActivationBytes bytes;
  for (const Row<EmbedParams>& row : Op<EmbedParams>::rows()) {
    if (row.device == kernels.device() && row.forms.x.has(XForm::kF32Pair)) bytes.floats_of_x = 2;
  }
  const uint64_t token_bytes =
      4ull * ((1 + bytes.floats_of_x) * config.hidden + 2 * config.q_width() + 2 * config.top_k);
  const uint64_t fold_bytes =
      bytes.floats_of_x > 1
          ? 4ull * (4 * words_of_token(config.num_experts, config.top_k) + config.hidden / 16)
          : 0;
  const bool has_ranks = config.share.num_ranks > 1;
  const uint64_t of_x = 4ull * bytes.floats_of_x * static_cast<uint64_t>(config.hidden);
  const uint64_t part_bytes = has_ranks ? of_x : 0;
  const uint64_t slot_bytes = leaves_pairs(config) ? 4ull * config.top_k : 0;
  bytes.arrays =
      static_cast<uint64_t>(max_tokens) * (token_bytes + fold_bytes + part_bytes + slot_bytes) +
      (has_ranks ? 4 * floats_behind_experts(config, max_tokens, bytes.floats_of_x) : 0) +
      (bytes.floats_of_x > 1 ? 2 * part_bytes : 0) + 17 * 256;
  bytes.taps = num_taps * 4ull * static_cast<uint64_t>(max_tokens) * config.hidden;
  const int32_t logits = config.vocab + (has_ranks ? config.logits_held() : 0);
  bytes.logits = 4ull * static_cast<uint64_t>(max_logit_rows) * logits + 2 * 256;
  // One layer of each kind of attention.
  std::vector<size_t> layers = {0};
  for (size_t l = 1; l < formats.layers.size(); ++l)
    if (layers.size() == 1 && config.is_window[l] != config.is_window[0]) layers.push_back(l);
  // A row's scratch may be greatest at few tokens (attention split over keys): tries powers of two.
  const auto ask = [&](int32_t num_tokens, int32_t num_seqs) {
    const Shadow shadow(config, formats, kv_dtype,
                        batch_of({num_tokens, num_seqs, std::min(num_tokens, max_logit_rows)}),
                        &kernels);
    const auto ask_row = [&]<typename P>(const Row<P>& row, const P& params) {
      if (row.device != kernels.device() || row.refuses(params)) return;
      if ((row.needs & kernels.features()) != row.needs) return;
      bytes.workspace = std::max(bytes.workspace, row.workspace(params));
    };
    const auto ask_step = [&]<typename P>() {
      for (const size_t l : layers)
        for (const Row<P>& row : Op<P>::rows())
          ask_row(row, shadow.pass.params<P>(l, first_forms(row)));
    };
    ask_step.template operator()<EmbedParams>();
    for_each_layer_step(ask_step);
    ask_step.template operator()<UnembedParams>();
    const SampleParams sample{.launch = shadow.pass.launch,
                              .num_rows = shadow.batch.num_logit_rows,
                              .vocab = config.vocab};
    for (const auto& row : Op<SampleParams>::rows()) ask_row(row, sample);
  };
  for (int32_t n = 1; n < max_tokens; n *= 2) ask(n, 1), ask(n, n);
  ask(max_tokens, 1), ask(max_tokens, max_tokens);
  bytes.workspace = round_up<uint64_t>(bytes.workspace, 256) + 256;
  return bytes;
}

Activations make_activations(const GptOssConfig& config, const ActivationBytes& bytes,
                             int32_t max_tokens, int32_t max_logit_rows, Arena& arena) {
  const auto tokens = static_cast<uint64_t>(max_tokens);
  Activations act{.max_tokens = max_tokens, .max_logit_rows = max_logit_rows};
  act.x = arena.take_array<float>(tokens * config.hidden * bytes.floats_of_x);
  act.q = arena.take_array<float>(tokens * config.q_width());
  act.a = arena.take_array<float>(tokens * config.q_width());
  act.t = arena.take_array<float>(tokens * config.hidden);
  act.expert_ids = arena.take_array<int32_t>(tokens * config.top_k);
  act.expert_weights = arena.take_array<float>(tokens * config.top_k);
  if (bytes.floats_of_x > 1) {
    for (float*& sums : act.route_sums)
      sums = arena.take_array<float>(tokens * 2 * words_of_token(config.num_experts, config.top_k));
    act.route_squares = arena.take_array<float>(tokens * config.hidden / 16);
  }
  if (bytes.taps > 0) act.taps = arena.take_array<float>(bytes.taps / 4);
  act.logits = arena.take_array<float>(static_cast<uint64_t>(max_logit_rows) * config.vocab);
  if (config.share.num_ranks > 1) {
    act.parts[kBehindOut] = arena.take_array<float>(tokens * config.hidden * bytes.floats_of_x);
    act.parts[kBehindExperts] =
        arena.take_array<float>(floats_behind_experts(config, max_tokens, bytes.floats_of_x));
    if (leaves_pairs(config)) {
      act.pairs = {.slot_of_pair = arena.take_array<int32_t>(tokens * config.top_k),
                   .outputs = reinterpret_cast<uint16_t*>(act.parts[kBehindExperts])};
    }
    act.logits_part =
        arena.take_array<float>(static_cast<uint64_t>(max_logit_rows) * config.logits_held());
    if (bytes.floats_of_x > 1) {
      const auto hidden = static_cast<uint64_t>(config.hidden);
      act.folded_x = arena.take_array<float>(hidden);
      act.folded_part = arena.take_array<float>(hidden * bytes.floats_of_x);
    }
  }
  act.workspace = arena.take(bytes.workspace);
  act.workspace_bytes = bytes.workspace;
  return act;
}

}  // namespace moxie
