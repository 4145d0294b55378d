// One token's way through the model, and the sizes it needs.
#include "model/gpt_oss.h"

#include <fmt/format.h>

#include "core/threads.h"
#include "kernels/joined.h"
#include "kernels/sample/sample.h"
#include "model/pass.h"

namespace moxie {
namespace {

/// Keys that a token sees where plans are made: as in a conversation.
constexpr int64_t kPlannedKeys = 1024;

// A pass without memory: what planning, explaining and reckoning look at.
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
             .launch = {.device = kernels == nullptr ? DeviceKind::kCpu : kernels->device()},
             .activation = kernels == nullptr ? DType::kBF16 : kernels->activation(),
             .tile_columns = kernels == nullptr ? 0 : kernels->tile_columns()} {}
  Shadow(const Shadow&) = delete;
};

Batch batch_of(const Bracket& bracket) {
  return {.ragged = {.num_tokens = bracket.num_tokens,
                     .num_seqs = bracket.num_seqs,
                     .num_visible_keys = kPlannedKeys * bracket.num_tokens},
          .num_logit_rows = bracket.num_logit_rows};
}

// The dense weights that are read after a row of layer `l`: threads that wait for others ask for
// them. Null behind experts' neighbours, whose weights depend on the choice.
const PackedMatrix* dense_after(const ModelWeights& weights, StepKind last, size_t l) {
  const LayerWeights& layer = weights.layers[l];
  switch (last) {
    case StepKind::kQkv:
    case StepKind::kAttend:
      return &layer.out;
    case StepKind::kOut:
      return &layer.router;
    case StepKind::kExperts:
      return l + 1 < weights.layers.size() ? &weights.layers[l + 1].qkv : &weights.head;
    default:
      return nullptr;
  }
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
                  .launch = {.device = kernels_.device(),
                             .stream = &stream,
                             .workspace = act.workspace,
                             .workspace_bytes = act.workspace_bytes},
                  .activation = kernels_.activation(),
                  .tile_columns = kernels_.tile_columns(),
                  .use_sinks = use_sinks_};
  plan.embed.run(kernels_, pass, plan.embed, 0);
  for (size_t l = 0; l < weights_.layers.size(); ++l) {
    keep_hidden(pass, l);
    for (const PlannedRow& row : plan.layer(l)) {
      read_ahead(pass, dense_after(weights_, row.last, l));
      row.run(kernels_, pass, row, l);
    }
  }
  read_ahead(pass, nullptr);
  keep_hidden(pass, weights_.layers.size());
  if (batch.num_logit_rows > 0) plan.unembed.run(kernels_, pass, plan.unembed, 0);
}

// CPU, launches of few tokens: threads that wait for the others at the end of a row ask for what is
// read after it.
void GptOss::read_ahead(const Pass& pass, const PackedMatrix* next) {
  ThreadPool* const pool = pass.launch.stream->pool;
  if (pool == nullptr) return;
  const bool is_limited = pass.batch.ragged.num_tokens <= kMostJoinedTokens;
  pool->read_ahead(next != nullptr && is_limited
                       ? std::span(next->data, static_cast<size_t>(next->bytes()))
                       : std::span<const std::byte>());
}

void GptOss::keep_hidden(const Pass& pass, size_t layer) {
  const Activations& act = pass.act;
  if (act.hidden_states == nullptr) return;
  CHECK(pass.launch.device == DeviceKind::kCpu);
  const int64_t width = int64_t{pass.batch.ragged.num_tokens} * pass.config.hidden;
  const auto kept =
      act.device->copy_on_device(act.hidden_states + static_cast<int64_t>(layer) * width, act.x,
                                 static_cast<uint64_t>(width) * 4, *pass.launch.stream);
  CHECK(kept.has_value(), kept ? "" : kept.error().message());
}

Result<const PassPlan*> GptOss::plan_for(const Bracket& bracket, DType kv_dtype) const {
  const std::lock_guard lock(mutex_);
  auto& kept = plans_[{bracket, kv_dtype}];
  if (kept == nullptr) {
    const Shadow shadow(config_, weights_, kv_dtype, batch_of(bracket), &kernels_);
    auto plan = make_plan(shadow.pass, kernels_);
    if (!plan) {
      plans_.erase({bracket, kv_dtype});
      return fail(std::move(plan.error()));
    }
    kept = std::make_unique<const PassPlan>(std::move(*plan));
  }
  return kept.get();
}

Status GptOss::check_rows(DType kv_dtype, int32_t max_tokens) const {
  // The draw, which is no part of a pass.
  const SampleParams draw{
      .launch = {.device = kernels_.device()}, .num_rows = 1, .vocab = config_.vocab};
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

StepWorks least_work(const GptOssConfig& config, const ModelWeights& formats, DType kv_dtype,
                     const Batch& batch, int32_t num_distinct_experts) {
  const Shadow shadow(config, formats, kv_dtype, batch, nullptr);
  const Pass& pass = shadow.pass;
  StepWorks works = {};
  const auto add = [&](StepKind step, const Work& work) {
    works[static_cast<size_t>(step)] += work;
  };
  add(StepKind::kEmbed, embed_work(pass.params<EmbedParams>(0, {})));
  for (size_t l = 0; l < formats.layers.size(); ++l) {
    add(StepKind::kQkv, qkv_work(pass.params<QkvParams>(l, {})));
    add(StepKind::kAttend, attend_work(pass.params<AttendParams>(l, {})));
    add(StepKind::kOut, out_work(pass.params<OutParams>(l, {})));
    add(StepKind::kRoute, route_work(pass.params<RouteParams>(l, {})));
    add(StepKind::kExperts, experts_work(pass.params<ExpertsParams>(l, {}), num_distinct_experts));
  }
  if (batch.num_logit_rows > 0)
    add(StepKind::kUnembed, unembed_work(pass.params<UnembedParams>(0, {})));
  return works;
}

StepWorks GptOss::work_by_step(const Batch& batch, DType kv_dtype,
                               int32_t num_distinct_experts) const {
  StepWorks works = least_work(config_, weights_, kv_dtype, batch, num_distinct_experts);
  const auto plan = plan_for(
      bracket_of(batch.ragged.num_tokens, batch.ragged.num_seqs, batch.num_logit_rows), kv_dtype);
  if (!plan) return works;  // it only reports
  const Shadow shadow(config_, weights_, kv_dtype, batch, &kernels_);
  for (size_t l = 0; l < weights_.layers.size(); ++l) {
    for (const PlannedRow& row : (*plan)->layer(l)) {
      // The router's products are made with the outputs.
      if (row.first == StepKind::kOut && row.last == StepKind::kRoute) {
        const Work moved = router_work(shadow.pass.params<RouteParams>(l, {}));
        works[static_cast<size_t>(StepKind::kOut)] += moved;
        works[static_cast<size_t>(StepKind::kRoute)] -= moved;
      }
      if (row.last == StepKind::kRoute && row.forms.t == TForm::kAbsent) {
        const RouteParams with_t = shadow.pass.params<RouteParams>(l, {});
        const RouteParams without = shadow.pass.params<RouteParams>(l, row.forms);
        works[static_cast<size_t>(StepKind::kRoute)] += route_work(without);
        works[static_cast<size_t>(StepKind::kRoute)] -= route_work(with_t);
      }
    }
  }
  return works;
}

std::vector<Verdict> GptOss::explain(DType kv_dtype, int32_t num_tokens) const {
  const Bracket bracket = bracket_of(num_tokens, 1, 1);
  const auto plan = plan_for(bracket, kv_dtype);
  const Shadow shadow(config_, weights_, kv_dtype, batch_of(bracket), &kernels_);
  std::vector<Verdict> verdicts;
  // The rows of one step, with what the planner makes of each.
  const auto explain_step = [&]<typename P>() {
    for (const Row<P>& row : table_of<P>()) {
      verdicts.push_back(verdict_of(shadow.pass, row, plan ? *plan : nullptr));
    }
  };
  explain_step.template operator()<EmbedParams>();
  for_each_layer_step(explain_step);
  explain_step.template operator()<UnembedParams>();
  const SampleParams sample{.launch = shadow.pass.launch, .num_rows = 1, .vocab = config_.vocab};
  for (Verdict& verdict : kernels_.explain(sample)) verdicts.push_back(std::move(verdict));
  return verdicts;
}

template <typename P>
Verdict GptOss::verdict_of(const Pass& pass, const Row<P>& row, const PassPlan* plan) const {
  constexpr StepKind kStep = StepOf<P>::value;
  Verdict verdict{.row = row_info(row)};
  const bool forced = kernels_.choice().forced(kStep).has_value();
  const auto runs = [&](const PlannedRow& planned) {
    return planned.row.name == row.name || planned.runs_with == row.name;
  };
  if (plan != nullptr) {
    verdict.chosen = runs(plan->embed) || runs(plan->unembed);
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
  } else if (!kernels_.choice().allows(kStep, row.name)) {
    verdict.reason = "another row is forced";
  } else if (!kernels_.choice().permits(row, params)) {
    verdict.reason = "rounds activations to 8 bits: --activation int8 lets it run here, too";
  } else if (const double us = row.predict_us(params, kernels_.rates()); us >= kNeverUs) {
    verdict.reason = us >= kReferenceUs ? "a reference: runs where it is forced"
                                        : "rounds more than it gains here: runs where it is forced";
  } else {
    verdict.reason = fmt::format("the chain with it costs more: {:.1f} us by itself", us);
  }
  return verdict;
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
  // A layer of each kind of attention.
  std::vector<size_t> layers = {0};
  for (size_t l = 1; l < formats.layers.size(); ++l)
    if (layers.size() == 1 && config.is_window[l] != config.is_window[0]) layers.push_back(l);
  // A row's scratch may be greatest at few tokens (attention split over keys): try powers of two.
  const auto ask = [&](int32_t num_tokens) {
    const Shadow shadow(config, formats, kv_dtype,
                        batch_of({num_tokens, 1, std::min(num_tokens, max_logit_rows)}), &kernels);
    uint64_t qkv = 0, attend = 0;
    const auto ask_row = [&]<typename P>(const Row<P>& row, const P& params) {
      if (row.device != kernels.device() || row.refuses(params)) return;
      if ((row.needs & kernels.features()) != row.needs) return;
      const uint64_t wanted = row.workspace(params);
      bytes.workspace = std::max(bytes.workspace, wanted);
      if constexpr (std::is_same_v<P, QkvParams>) qkv = std::max(qkv, wanted);
      if constexpr (std::is_same_v<P, AttendParams>) attend = std::max(attend, wanted);
    };
    const auto ask_step = [&]<typename P>() {
      for (const size_t l : layers)
        for (const Row<P>& row : table_of<P>())
          ask_row(row, shadow.pass.params<P>(l, first_forms(row)));
    };
    ask_step.template operator()<EmbedParams>();
    for_each_layer_step(ask_step);
    ask_step.template operator()<UnembedParams>();
    const SampleParams sample{.launch = shadow.pass.launch,
                              .num_rows = shadow.batch.num_logit_rows,
                              .vocab = config.vocab};
    for (const auto& row : table_of<SampleParams>()) ask_row(row, sample);
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
