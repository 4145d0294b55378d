// Makes each step's Params from configuration, weights, batch and forms.
#include "model/pass.h"

#include <cmath>

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
          .forms = forms};
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
          .fold = fold(l),
          .forms = forms};
}

bool Pass::overwrites_parts(const Forms& forms) const {
  return act.parts[kBehindOut] != nullptr && config.share.link == LinkKind::kPeers &&
         forms.x == XForm::kF32;
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
          .expert_ids = act.expert_ids,
          .expert_weights = act.expert_weights,
          .first_expert = config.share.first_expert,
          .gate_up = layer.gate_up,
          .gate_up_bias = layer.gate_up_bias,
          .down = layer.down,
          .down_bias = layer.down_bias,
          .x = act.parts[kBehindExperts] == nullptr ? act.x : act.parts[kBehindExperts],
          .overwrites = overwrites_parts(forms),
          .fold = fold(l),
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
          .link = link,
          .part = act.parts[l],
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
