// One token's way through the model, and the sizes it needs.
#include "model/gpt_oss.h"

#include "core/threads.h"
#include "kernels/attend/attend.h"
#include "kernels/embed/embed.h"
#include "kernels/experts/experts.h"
#include "kernels/joined.h"
#include "kernels/out/out.h"
#include "kernels/qkv/qkv.h"
#include "kernels/route/route.h"
#include "kernels/sample/sample.h"
#include "kernels/unembed/unembed.h"

namespace moxie {
namespace {

// The Params of every step for one layer and batch: the only place where a step meets the model.
struct StepParams {
  const GptOssConfig& config;
  const ModelWeights& weights;
  const Batch& batch;
  const Activations& act;
  Launch launch;
  const KernelChooser& kernels;
  bool x_is_single = false;

  EmbedParams embed() const {
    return {.launch = launch,
            .num_tokens = batch.ragged.num_tokens,
            .token_ids = batch.token_ids,
            .table = weights.embedding,
            .x = act.x,
            .cleared = act.route_sums[0],
            .num_cleared = act.route_sums[0] == nullptr
                               ? 0
                               : 2 * words_of_token(config.num_experts, config.top_k),
            .x_is_single = x_is_single};
  }
  QkvParams qkv(const LayerWeights& layer, const KvLayer& kv, const Rotary& rotary) const {
    return {.launch = launch,
            .batch = batch.ragged,
            .hidden = config.hidden,
            .num_heads = config.num_heads,
            .num_kv_heads = config.num_kv_heads,
            .head_dim = config.head_dim,
            .rms_eps = config.rms_eps,
            .x = act.x,
            .norm_weight = layer.input_norm,
            .weight = layer.qkv,
            .bias = layer.qkv_bias,
            .rotary = rotary,
            .kv = kv,
            .x_is_single = x_is_single,
            .q = act.q};
  }
  AttendParams attend(const LayerWeights& layer, const KvLayer& kv, bool window,
                      bool use_sinks) const {
    return {.launch = launch,
            .batch = batch.ragged,
            .num_heads = config.num_heads,
            .num_kv_heads = config.num_kv_heads,
            .head_dim = config.head_dim,
            .window = window ? config.sliding_window : 0,
            .scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim)),
            .q = act.q,
            .kv = kv,
            .sinks = use_sinks ? layer.sinks : nullptr,
            .a = act.a};
  }
  OutParams out(const LayerWeights& layer) const {
    return {.launch = launch,
            .num_tokens = batch.ragged.num_tokens,
            .a = act.a,
            .weight = layer.out,
            .bias = layer.out_bias,
            .x = act.x,
            .x_is_single = x_is_single,
            .fold = {}};
  }
  /// Whether qkv writes the queries that attend reads as staged BF16: with the rows that can.
  bool stages_q(const QkvParams& of_qkv, const AttendParams& of_attend) const {
    return runs(of_qkv, kStagingQkvRow) && runs(of_attend, kStagingAttendRow);
  }
  /// Whether attend writes what out reads as staged BF16: with the rows that can.
  bool stages_a(const AttendParams& of_attend, const OutParams& of_out) const {
    return batch.ragged.num_tokens >= kLeastStagedTokens && runs(of_attend, kStagingAttendRow) &&
           runs(of_out, kStagedOutRow);
  }
  /// Whether experts norms x itself, so that route need not write t: with the rows that can.
  bool norms_in_experts(const RouteParams& of_route, const ExpertsParams& of_experts) const {
    return runs(of_route, kUnnormedRouteRow) &&
           (runs(of_experts, kTiledExpertsRow) || runs(of_experts, kE4m3ExpertsRow));
  }
  /// Whether the row of this name would run. Rows that steps know of each other are CUDA's; a CPU
  /// is spared the choice, several microseconds a layer where weights push code out of its caches.
  template <typename P>
  bool runs(const P& params, std::string_view name) const {
    if (kernels.device() != DeviceKind::kCuda) return false;
    const auto row = kernels.select(params);
    return row.has_value() && (*row)->name == name;
  }
  /// The route step as part of out and experts, in layer number `l`.
  RouteFold fold(const LayerWeights& layer, size_t l) const {
    return {.is_on = true,
            .top_k = config.top_k,
            .rms_eps = config.rms_eps,
            .norm_weight = layer.post_norm,
            .weight = layer.router,
            .bias = layer.router_bias,
            .sums = act.route_sums[l % 2],
            .next_sums = act.route_sums[(l + 1) % 2],
            .squares = act.route_squares,
            .parts = reinterpret_cast<std::byte*>(act.t),
            .experts_format = layer.gate_up.format};
  }
  RouteParams route(const LayerWeights& layer) const {
    return {.launch = launch,
            .num_tokens = batch.ragged.num_tokens,
            .hidden = config.hidden,
            .top_k = config.top_k,
            .rms_eps = config.rms_eps,
            .x = act.x,
            .norm_weight = layer.post_norm,
            .weight = layer.router,
            .bias = layer.router_bias,
            .t = act.t,
            .expert_ids = act.expert_ids,
            .expert_weights = act.expert_weights,
            .x_is_single = x_is_single,
            .can_fold = can_fold(layer),
            .parts = act.route_parts};
  }
  /// Whether the rows that would run out and experts can do the route step's work.
  bool can_fold(const LayerWeights& layer) const {
    const ExpertsParams of_experts = experts(layer);
    OutParams of_out = out(layer);
    of_out.fold.is_on = true;
    return runs(of_experts, kRoutingExpertsRow) && can_route_in_experts(of_experts) &&
           kernels.select(of_out).has_value();
  }
  ExpertsParams experts(const LayerWeights& layer) const {
    return {.launch = launch,
            .num_tokens = batch.ragged.num_tokens,
            .hidden = config.hidden,
            .intermediate = config.intermediate,
            .top_k = config.top_k,
            .swiglu_alpha = config.swiglu_alpha,
            .swiglu_limit = config.swiglu_limit,
            .t = act.t,
            .rms_eps = config.rms_eps,
            .norm_weight = layer.post_norm,
            .expert_ids = act.expert_ids,
            .expert_weights = act.expert_weights,
            .gate_up = layer.gate_up,
            .gate_up_bias = layer.gate_up_bias,
            .down = layer.down,
            .down_bias = layer.down_bias,
            .x = act.x,
            .x_is_single = x_is_single,
            .fold = {},
            .activation = kernels.activation(),
            .tile_columns = kernels.tile_columns()};
  }
  UnembedParams unembed() const {
    return {.launch = launch,
            .num_rows = batch.num_logit_rows,
            .hidden = config.hidden,
            .rms_eps = config.rms_eps,
            .row_idx = batch.logit_rows,
            .x = act.x,
            .x_is_single = x_is_single,
            .norm_weight = weights.final_norm,
            .weight = weights.head,
            .logits = act.logits};
  }
};

// Whether the rows that would run all take x in one float a value (kernels/residual.cuh).
bool takes_single_x(const StepParams& step, std::span<const KvLayer> kv, const Rotary& rotary) {
  if (step.kernels.device() != DeviceKind::kCuda) return false;
  const auto keeps_row = [&]<typename P>(P params) {
    const auto row = step.kernels.select(params);
    params.x_is_single = true;
    const auto single = step.kernels.select(params);
    return row.has_value() && single.has_value() && *row == *single;
  };
  for (size_t l = 0; l < step.weights.layers.size(); ++l) {
    const LayerWeights& layer = step.weights.layers[l];
    // First the step whose rows for few tokens refuse soonest.
    if (!keeps_row(step.route(layer)) || !keeps_row(step.out(layer)) ||
        !keeps_row(step.experts(layer)) || !keeps_row(step.qkv(layer, kv[l], rotary)))
      return false;
  }
  return keeps_row(step.unembed());
}

// A batch and a cache without memory: what selection, planning and explaining look at.
struct Shadow {
  Batch batch;
  Activations act;
  KvLayer kv;
  Rotary rotary;
  StepParams params;

  Shadow(const GptOssConfig& config, const ModelWeights& weights, DType kv_dtype,
         const KernelChooser& kernels, int32_t num_tokens, int32_t num_rows)
      : batch{.ragged = {.num_tokens = num_tokens, .num_seqs = 1}, .num_logit_rows = num_rows},
        kv{.page_tokens = 16, .dtype = kv_dtype},
        rotary{.max_positions = config.max_positions},
        params{config, weights, batch, act, Launch{.device = kernels.device()}, kernels} {}
};

// Calls visit(params) with the Params of every step of the model; every layer is alike.
template <typename Visit>
void for_each_step(const Shadow& s, const LayerWeights& layer, Visit&& visit) {
  visit(s.params.embed());
  visit(s.params.qkv(layer, s.kv, s.rotary));
  visit(s.params.attend(layer, s.kv, false, true));
  visit(s.params.attend(layer, s.kv, true, true));
  visit(s.params.out(layer));
  visit(s.params.route(layer));
  visit(s.params.experts(layer));
  visit(s.params.unembed());
  visit(SampleParams{.launch = s.params.launch,
                     .num_rows = s.batch.num_logit_rows,
                     .vocab = s.params.config.vocab});
}

}  // namespace

void GptOss::forward(const Batch& batch, std::span<const KvLayer> kv, const Activations& act,
                     Stream& stream) const {
  CHECK(batch.ragged.num_tokens <= act.max_tokens && batch.num_logit_rows <= act.max_logit_rows);
  CHECK(kv.size() == weights_.layers.size());
  const LayerWeights& first = weights_.layers.front();
  const Launch launch{
      .device = kernels_.device(),
      .stream = &stream,
      .workspace = act.workspace,
      .workspace_bytes = act.workspace_bytes,
      .leaves_l1 = step_leaves_l1(batch.ragged.num_tokens, first.qkv.format, first.out.format)};
  StepParams step{config_, weights_, batch, act, launch, kernels_};
  step.x_is_single = takes_single_x(step, kv, rotary_);
  const int64_t width = int64_t{batch.ragged.num_tokens} * config_.hidden;

  const auto keep_hidden = [&](size_t layer) {
    if (act.hidden_states == nullptr) return;
    CHECK(kernels_.device() == DeviceKind::kCpu);
    const auto kept = act.device->copy_on_device(act.hidden_states + layer * width, act.x,
                                                 static_cast<uint64_t>(width) * 4, stream);
    CHECK(kept.has_value(), kept ? "" : kept.error().message());
  };
  // CPU: threads that wait for the others at the end of a step ask for dense weights that follow.
  const auto read_ahead = [&](const PackedMatrix* next) {
    if (stream.pool == nullptr) return;
    const bool is_limited = batch.ragged.num_tokens <= kMostJoinedTokens;
    stream.pool->read_ahead(next != nullptr && is_limited
                                ? std::span(next->data, static_cast<size_t>(next->bytes()))
                                : std::span<const std::byte>());
  };
  kernels_.run(step.embed());
  for (size_t l = 0; l < weights_.layers.size(); ++l) {
    const LayerWeights& layer = weights_.layers[l];
    const bool is_last = l + 1 == weights_.layers.size();
    keep_hidden(l);
    QkvParams qkv = step.qkv(layer, kv[l], rotary_);
    AttendParams attend = step.attend(layer, kv[l], config_.is_window[l], use_sinks_);
    OutParams out = step.out(layer);
    RouteParams route = step.route(layer);
    ExpertsParams experts = step.experts(layer);
    if (step.runs(route, kFoldedRouteRow)) out.fold = experts.fold = step.fold(layer, l);
    qkv.stages_q = attend.is_q_staged = step.stages_q(qkv, attend);
    qkv.q_factor = attend.q_factor();
    attend.stages_a = out.is_a_staged = step.stages_a(attend, out);
    route.leaves_t = experts.norms_x = step.norms_in_experts(route, experts);
    read_ahead(&layer.out);
    run_joined(kernels_, qkv, attend);
    read_ahead(route.parts == nullptr ? &layer.router : nullptr);
    run_joined(kernels_, out, route);
    read_ahead(is_last ? &weights_.head : &weights_.layers[l + 1].qkv);
    kernels_.run(experts);
  }
  read_ahead(nullptr);
  keep_hidden(weights_.layers.size());
  if (batch.num_logit_rows > 0) kernels_.run(step.unembed());
}

Status GptOss::check_rows(DType kv_dtype) const {
  Status status;
  for (const LayerWeights& layer : weights_.layers) {
    const Shadow shadow(config_, weights_, kv_dtype, kernels_, 1, 1);
    for_each_step(shadow, layer, [&](const auto& params) {
      if (!status) return;
      if (auto row = kernels_.select(params); !row) status = fail(std::move(row.error()));
    });
    if (!status) return status;
  }
  return status;
}

Work GptOss::work(const Batch& batch, DType kv_dtype, int32_t num_distinct_experts) const {
  Work total;
  for (const Work& of_step : work_by_step(batch, kv_dtype, num_distinct_experts)) total += of_step;
  return total;
}

StepWorks GptOss::work_by_step(const Batch& batch, DType kv_dtype,
                               int32_t num_distinct_experts) const {
  Shadow shadow(config_, weights_, kv_dtype, kernels_, batch.ragged.num_tokens,
                batch.num_logit_rows);
  shadow.batch.ragged = batch.ragged;
  StepWorks works = {};
  const auto add = [&](StepKind step, const Work& work) {
    works[static_cast<size_t>(step)] += work;
  };
  add(StepKind::kEmbed, embed_work(shadow.params.embed()));
  for (size_t l = 0; l < weights_.layers.size(); ++l) {
    const LayerWeights& layer = weights_.layers[l];
    add(StepKind::kQkv, qkv_work(shadow.params.qkv(layer, shadow.kv, shadow.rotary)));
    add(StepKind::kAttend,
        attend_work(shadow.params.attend(layer, shadow.kv, config_.is_window[l], use_sinks_)));
    const OutParams out = shadow.params.out(layer);
    add(StepKind::kOut, out_work(out));
    RouteParams route = shadow.params.route(layer);
    const ExpertsParams experts = shadow.params.experts(layer);
    route.leaves_t = shadow.params.norms_in_experts(route, experts);
    Work of_route = route_work(route);
    if (joins_route(kernels_, out, route)) {
      const Work of_router = router_work(route);
      add(StepKind::kOut, of_router);
      of_route -= of_router;
    }
    add(StepKind::kRoute, of_route);
    add(StepKind::kExperts, experts_work(experts, num_distinct_experts));
  }
  if (batch.num_logit_rows > 0) add(StepKind::kUnembed, unembed_work(shadow.params.unembed()));
  return works;
}

std::vector<Verdict> GptOss::explain(DType kv_dtype, int32_t num_tokens) const {
  std::vector<Verdict> all;
  const Shadow shadow(config_, weights_, kv_dtype, kernels_, num_tokens, 1);
  int previous = -1;
  for_each_step(shadow, weights_.layers.front(), [&](const auto& params) {
    auto verdicts = kernels_.explain(params);
    // The window form of attend would only repeat the full form's verdicts.
    if (verdicts.empty() || static_cast<int>(verdicts.front().row.step) == previous) return;
    previous = static_cast<int>(verdicts.front().row.step);
    all.insert(all.end(), verdicts.begin(), verdicts.end());
  });
  return all;
}

ActivationBytes activation_bytes(const GptOssConfig& config, const ModelWeights& formats,
                                 DType kv_dtype, const KernelChooser& kernels, int32_t max_tokens,
                                 int32_t max_logit_rows) {
  ActivationBytes bytes;
  bytes.floats_of_x = kernels.device() == DeviceKind::kCuda ? kFloatsOfCudaX : 1;
  const uint64_t token_bytes =
      4ull * ((1 + bytes.floats_of_x) * config.hidden + 2 * config.q_width() + 2 * config.top_k);
  const uint64_t fold_bytes =
      bytes.floats_of_x > 1
          ? 4ull * (4 * words_of_token(config.num_experts, config.top_k) + config.hidden / 16)
          : 0;
  if (has_route_parts(kernels.device(), config.hidden)) {
    bytes.route_part_floats = static_cast<uint64_t>(route_parts_size(
        std::min(max_tokens, kMostJoinedTokens), config.hidden, config.num_experts));
  }
  bytes.arrays = static_cast<uint64_t>(max_tokens) * (token_bytes + fold_bytes) +
                 4 * bytes.route_part_floats + 12 * 256;
  bytes.logits = 4ull * static_cast<uint64_t>(max_logit_rows) * config.vocab + 256;
  // A row's scratch may be greatest at few tokens (attention split over keys): try powers of two.
  const auto ask = [&](int32_t num_tokens) {
    const Shadow shadow(config, formats, kv_dtype, kernels, num_tokens,
                        std::min(num_tokens, max_logit_rows));
    uint64_t qkv = 0, attend = 0;
    for_each_step(shadow, formats.layers.front(), [&]<typename P>(const P& params) {
      for (const Row<P>& row : table_of<P>()) {
        if (row.device != kernels.device() || row.refuses(params)) continue;
        if ((row.needs & kernels.features()) != row.needs) continue;
        bytes.workspace = std::max(bytes.workspace, row.workspace(params));
        if constexpr (std::is_same_v<P, QkvParams>) qkv = std::max(qkv, row.workspace(params));
        if constexpr (std::is_same_v<P, AttendParams>)
          attend = std::max(attend, row.workspace(params));
      }
    });
    if (num_tokens <= kMostJoinedTokens) {
      const uint64_t both = round_up<uint64_t>(qkv, 256) + attend;
      bytes.workspace = std::max(bytes.workspace, both);
    }
  };
  for (int32_t n = 1; n < max_tokens; n *= 2) ask(n);
  ask(max_tokens);
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
  if (bytes.route_part_floats > 0)
    act.route_parts = arena.take_array<float>(bytes.route_part_floats);
  act.logits = arena.take_array<float>(static_cast<uint64_t>(max_logit_rows) * config.vocab);
  act.workspace = arena.take(bytes.workspace);
  act.workspace_bytes = bytes.workspace;
  return act;
}

}  // namespace moxie
