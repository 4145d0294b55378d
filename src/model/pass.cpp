// Makes each step's Params from configuration, weights, batch and forms.
#include "model/pass.h"

#include <cmath>

#include "core/rank_mail.h"
#include "model/gpt_oss.h"

namespace moxie {

Launch Pass::launch_with(const Forms& forms) const {
  Launch with = launch;
  with.l1 = forms.l1;
  return with;
}

template <>
EmbedParams Pass::params<EmbedParams>(size_t, const Forms& forms) const {
  return {.launch = launch_with(forms),
          .num_tokens = batch.ragged.num_tokens,
          .token_ids = batch.token_ids,
          .table = weights.embedding,
          .x = act.x,
          .cleared = act.route_sums[0],
          .num_cleared = act.route_sums[0] == nullptr
                             ? 0
                             : 2 * words_of_token(config.num_experts, config.top_k),
          .forms = forms};
}

template <>
QkvParams Pass::params<QkvParams>(size_t l, const Forms& forms) const {
  const LayerWeights& layer = weights.layers[l];
  return {.launch = launch_with(forms),
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
          .kv = kv_of(l),
          .q = act.q,
          .q_factor = params<AttendParams>(l, forms).q_factor(),
          .reduce = reduce_before_qkv(l, forms),
          .forms = forms,
          .activation = activation};
}

template <>
AttendParams Pass::params<AttendParams>(size_t l, const Forms& forms) const {
  return {.launch = launch_with(forms),
          .batch = batch.ragged,
          .num_heads = config.num_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .window = config.is_window[l] ? config.sliding_window : 0,
          .scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim)),
          .q = act.q,
          .kv = kv_of(l),
          .sinks = use_sinks ? weights.layers[l].sinks : nullptr,
          .a = act.a,
          .forms = forms};
}

template <>
OutParams Pass::params<OutParams>(size_t l, const Forms& forms) const {
  const LayerWeights& layer = weights.layers[l];
  return {.launch = launch_with(forms),
          .num_tokens = batch.ragged.num_tokens,
          .a = act.a,
          .weight = layer.out,
          .bias = layer.out_bias,
          .x = act.parts[kBehindOut] == nullptr ? act.x : act.parts[kBehindOut],
          .overwrites = overwrites_parts(forms),
          .rounded = reinterpret_cast<uint16_t*>(act.parts[kBehindOut]),
          .rounded_of_other = received_by(1 - config.share.rank),
          .fold = fold(l),
          .folded_x = config.share.rank == 0 ? act.folded_x : nullptr,
          .forms = forms,
          .activation = activation};
}

bool Pass::overwrites_parts(const Forms& forms) const {
  return act.parts[kBehindOut] != nullptr && is_between_gpus(config.share.link) &&
         forms.x == XForm::kF32;
}

bool Pass::may_fold_reduce() const {
  const Share& share = config.share;
  return has_ranks() && share.link == LinkKind::kPeers && batch.ragged.num_tokens == 1 &&
         !share.splits_experts() && share.column_unit == 64 && !share.has_taps;
}

bool Pass::may_round_parts() const { return has_ranks() && config.share.link == LinkKind::kPeers; }

bool Pass::may_send_parts() const { return may_round_parts() && config.share.num_ranks == 2; }

// Where a rank's parts of the other are. Null: they are not sent, or the pass only counts.
uint16_t* Pass::received_by(int32_t rank) const {
  return may_send_parts() && link != nullptr ? link->mail()->received[rank] : nullptr;
}

// What experts of layer `l` add to. The part of the layer before is still read if reduce is folded.
float* Pass::part_behind_experts(size_t l, const Forms& forms) const {
  const bool is_folded = forms.reduce == ReduceForm::kFolded && l % 2 == 1;
  return is_folded ? act.folded_part : act.parts[kBehindExperts];
}

// Layers begin with x in act.x but for the part of the experts before. qkv adds it and leaves the
// sum in act.folded_x, of one float a value; experts add out's part to that and leave the sum in
// act.x.
ReduceFold Pass::reduce_before_qkv(size_t l, const Forms& forms) const {
  if (forms.reduce != ReduceForm::kFolded) return {};
  return {.kind = config.share.link,
          .num_ranks = config.share.num_ranks,
          .link = l == 0 ? nullptr : link,
          .part = l == 0 ? nullptr : part_behind_experts(l - 1, forms),
          .x = act.folded_x,
          .cleared = {act.parts[kBehindOut], part_behind_experts(l, forms)}};
}
ReduceFold Pass::reduce_before_experts(const Forms& forms) const {
  if (forms.reduce != ReduceForm::kFolded) return {};
  return {.kind = config.share.link,
          .num_ranks = config.share.num_ranks,
          .link = link,
          .part = act.parts[kBehindOut],
          .x = act.x};
}

// The route step as part of out and experts, for RouterForm::kSums.
RouteFold Pass::fold(size_t l) const {
  const LayerWeights& layer = weights.layers[l];
  return {.top_k = config.top_k,
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

template <>
RouteParams Pass::params<RouteParams>(size_t l, const Forms& forms) const {
  const LayerWeights& layer = weights.layers[l];
  return {.launch = launch_with(forms),
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
          .forms = forms};
}

template <>
ExpertsParams Pass::params<ExpertsParams>(size_t l, const Forms& forms) const {
  const LayerWeights& layer = weights.layers[l];
  return {.launch = launch_with(forms),
          .num_tokens = batch.ragged.num_tokens,
          .hidden = config.hidden,
          .intermediate = config.intermediate,
          .top_k = config.top_k,
          .swiglu_alpha = config.swiglu_alpha,
          .swiglu_limit = config.swiglu_limit,
          .t = act.t,
          .rms_eps = config.rms_eps,
          .norm_weight = layer.post_norm,
          .normed_x = act.parts[kBehindExperts] == nullptr ? nullptr : act.x,
          .expert_ids = act.expert_ids,
          .expert_weights = act.expert_weights,
          .num_routed = config.num_experts,
          .first_expert = config.share.first_expert,
          .gate_up = layer.gate_up,
          .gate_up_bias = layer.gate_up_bias,
          .down = layer.down,
          .down_bias = layer.down_bias,
          .x = act.parts[kBehindExperts] == nullptr ? act.x : part_behind_experts(l, forms),
          .overwrites = overwrites_parts(forms),
          .pairs = act.pairs,
          .fold = fold(l),
          .reduce = reduce_before_experts(forms),
          .folded_x = act.folded_x,
          .forms = forms,
          .activation = activation,
          .tile = tile,
          .tile_device = tile_device};
}

template <>
UnembedParams Pass::params<UnembedParams>(size_t, const Forms& forms) const {
  return {.launch = launch_with(forms),
          .num_rows = batch.num_logit_rows,
          .hidden = config.hidden,
          .rms_eps = config.rms_eps,
          .row_idx = batch.logit_rows,
          .x = act.x,
          .norm_weight = weights.final_norm,
          .weight = weights.head_of(config),
          .logits = act.logits_part == nullptr ? act.logits : act.logits_part,
          .forms = forms};
}

template <>
TapParams Pass::params<TapParams>(size_t l, const Forms& forms) const {
  const int64_t of_tap = int64_t{act.max_tokens} * config.hidden;
  return {.launch = launch_with(forms),
          .num_tokens = batch.ragged.num_tokens,
          .hidden = config.hidden,
          .x = act.x,
          .to = act.taps + static_cast<int64_t>(l) * of_tap,
          .forms = forms};
}

template <>
ReduceParams Pass::params<ReduceParams>(size_t l, const Forms& forms) const {
  return {.launch = launch_with(forms),
          .num_tokens = batch.ragged.num_tokens,
          .hidden = config.hidden,
          .kind = config.share.link,
          .num_ranks = config.share.num_ranks,
          .link = link,
          .part = l == kBehindOut ? act.parts[l]
                                  : part_behind_experts(weights.layers.size() - 1, forms),
          .rounded = l == kBehindOut ? reinterpret_cast<uint16_t*>(act.parts[l]) : nullptr,
          .received = received_by(config.share.rank),
          .pairs = act.pairs,
          .pair_weights = act.expert_weights,
          .top_k = config.top_k,
          .next_part = act.parts[1 - l],
          .x = act.x,
          .forms = forms};
}

template <>
GatherParams Pass::params<GatherParams>(size_t, const Forms& forms) const {
  return {.launch = launch_with(forms),
          .num_rows = batch.num_logit_rows,
          .part_width = config.logits_held(),
          .vocab = config.vocab,
          .kind = config.share.link,
          .link = link,
          .part = act.logits_part,
          .logits = act.logits};
}

}  // namespace moxie
