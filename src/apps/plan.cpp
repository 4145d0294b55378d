// moxie plan: memory by purpose, whether it fits, and the speed that the bytes allow, for streams
// of the whole context and for moxie serve's defaults; for a GPU known by name also predicted
// speeds. Loads nothing.
#include "engine/plan.h"

#include <fmt/format.h>

#include <array>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/cli.h"
#include "apps/gpu_speeds.h"
#include "apps/output.h"
#include "apps/speculation_flags.h"
#include "engine/parallel.h"
#include "engine/service.h"
#include "lab/machine_gpu.h"
#include "model/loader.h"
#include "model/shard.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

struct PlanFlags {
  EngineOptions engine;
  SpeculationFlags speculation;
  std::string gpu, kv_memory;
  int32_t depth = 0;
  bool json = false, markdown = false;
};

// The target of a plan: this machine's CPU or GPU, or a GPU known by name.
struct Target {
  std::string name, source;
  DeviceKind kind = DeviceKind::kCpu;
  Features features = 0;
  uint64_t available_bytes = 0;   // see plan_memory
  double read_gb_s = 0;           // 0: not known; `source` says why
  const GpuCard* card = nullptr;  // known by name
};

Target known_gpu(const GpuCard& card) {
  const bool is_measured = *card.measured_by != '\0';
  return {.name = card.name,
          .source = is_measured ? "measured read" : "data sheet",
          .kind = DeviceKind::kCuda,
          .features = features_of(card),
          .available_bytes =
              static_cast<uint64_t>((card.memory_gb - card.system_gb) * 1e9) - kCudaContextBytes,
          .read_gb_s = card.memory_gb_s * (is_measured ? card.read_share.mid : 1.0),
          .card = &card};
}

// `gpus`: by rank.
Result<Target> gpu_of_this_machine(std::span<const int> gpus) {
  auto device = open_gpu_of_rank(gpus, 0);
  if (!device) return fail(std::move(device.error()));
  const DeviceProperties properties = (*device)->properties();
  auto limits = measure_gpu(**device);
  if (!limits) return fail(std::move(limits.error()));
  return Target{.name = properties.name,
                .source = "measured read",
                .kind = DeviceKind::kCuda,
                .features = cuda_features(properties.compute_capability),
                .available_bytes = properties.available_bytes,
                .read_gb_s = limits->read_gb_s};
}

// Without --gpu.
Result<Target> target_of(const PlanFlags& o) {
  const auto gpus = named_gpus(o.engine.device);
  if (!gpus) return fail(gpus.error());
  if (!gpus->empty()) return gpu_of_this_machine(*gpus);
  const bool takes_a_gpu = o.engine.device == "auto" && num_cuda_devices() > 0;
  if (takes_a_gpu || o.engine.device == "cuda") return gpu_of_this_machine(std::array{0});
  const auto device = make_cpu_device(o.engine.threads);
  const auto limits = measure_machine(*device, {.seconds_per_loop = 0.001});
  return Target{.name = device->properties().name,
                .source = limits ? "measured read" : "not measured: " + limits.error().what,
                .features = cpu_features(),
                .available_bytes = device->properties().available_bytes,
                .read_gb_s = limits ? limits->read_gb_s : 0};
}

// A plan, and the shape of its cache.
struct Planned {
  MemoryPlan memory;
  KvShape shape;
};

// `draft` may be null, and is counted as Engine::load() counts it.
Result<Planned> plan_for(const Checkpoint& checkpoint, const DraftCheckpoint* draft,
                         const EngineOptions& options, const LoadOptions& load,
                         const KernelChooser& kernels, uint64_t available_bytes) {
  auto kv_dtype =
      choose_kv_dtype(options.kv_dtype, checkpoint.config(), kernels, options.max_model_len,
                      options.max_num_seqs, options.kv_cache_bytes);
  if (!kv_dtype) return fail(std::move(kv_dtype.error()));
  PlanRequest request = plan_request(options, load, *kv_dtype);
  request.draft = draft;
  request.speculation = options.speculation;
  const auto of_rank = config_of_rank(checkpoint.config(), load.ranks, load.rank);
  if (!of_rank) return fail(of_rank.error());
  // Ranks of a CPU share its memory.
  const auto sharers =
      static_cast<uint64_t>(kernels.device() == DeviceKind::kCpu ? load.ranks.size : 1);
  return Planned{.memory = plan_memory(checkpoint, request, available_bytes / sharers, kernels),
                 .shape = kv_shape(*of_rank, *kv_dtype)};
}

// With several ranks all bytes are the first's, which has the most.
uint64_t left_bytes(const MemoryPlan& plan) {
  return plan.fits ? plan.available_bytes - plan.total_bytes : 0;
}

// Whether `streams` streams of `num_tokens` tokens fit beside all but the plan's own cache.
bool fits(const Planned& planned, int32_t num_tokens, int32_t streams) {
  const MemoryPlan& plan = planned.memory;
  const auto bytes_of = [&](const KvPages& pages) {
    return static_cast<uint64_t>(pages.full) * planned.shape.full_page_bytes() +
           static_cast<uint64_t>(pages.window) * planned.shape.window_page_bytes();
  };
  const KvPages pages =
      kv_pages(planned.shape, 0, num_tokens, streams, std::min(plan.max_batch_tokens, num_tokens));
  return plan.total_bytes - bytes_of(plan.pages) + bytes_of(pages) <= plan.available_bytes;
}

Json parts_json(const MemoryPlan& plan) {
  Json parts = Json::array();
  for (const PlanPart& part : plan.parts) {
    parts.push_back({{"name", part.name}, {"bytes", part.bytes}});
  }
  return parts;
}

// How answers are drafted, and what the head takes of this plan.
Json speculation_json(const SpeculationOptions& options, const DraftCheckpoint* draft,
                      const MemoryPlan& plan) {
  Json json = {{"method", spec_method_name(options.method)}};
  if (draft == nullptr) {
    json["num_speculative_tokens"] = most_drafts(options);
    return json;
  }
  const DraftConfig& config = draft->config();
  json["num_speculative_tokens"] = most_drafts(options, config);
  json["head"] = {{"form", config.form}, {"boundaries", config.boundaries}};
  if (config.mask_id >= 0) json["head"]["mask_token_id"] = config.mask_id;
  for (const PlanPart& part : plan.parts) {
    if (part.name == kDraftHeadPart) json["head"]["bytes"] = part.bytes;
  }
  return json;
}

Json serve_json(const Planned& serve) {
  const MemoryPlan& plan = serve.memory;
  return {{"max_model_len", plan.max_model_len},
          {"max_num_seqs", plan.max_num_seqs},
          {"max_num_batched_tokens", plan.max_batch_tokens},
          {"page_tokens", serve.shape.page_tokens},
          {"full_pages", plan.pages.full},
          {"window_pages", plan.pages.window},
          {"kv_dtype", dtype_name(serve.shape.dtype)},
          {"parts", parts_json(plan)},
          {"total_bytes", plan.total_bytes},
          {"fits", plan.fits},
          {"advice", plan.advice}};
}

void print_parts(const MemoryPlan& plan) {
  for (const PlanPart& part : plan.parts) {
    fmt::print("  {:<28} {:>12}\n", part.name, format_bytes(part.bytes));
  }
  fmt::print("  {:<28} {:>12}\n  {:<28} {:>12}\n  {:<28} {:>12}\n\n", "total",
             format_bytes(plan.total_bytes), "free", format_bytes(plan.available_bytes), "left",
             format_bytes(left_bytes(plan)));
  fmt::print("{}{}\n", plan.fits ? "fits" : "does not fit: ", plan.advice);
}

void print_serve(const Planned& serve) {
  const MemoryPlan& plan = serve.memory;
  fmt::print("\nmoxie serve: context {}, {} requests at once, {} tokens a step\n\n",
             plan.max_model_len, plan.max_num_seqs, plan.max_batch_tokens);
  print_parts(plan);
  const int32_t page = serve.shape.page_tokens;
  fmt::print(
      "{} pages of {} tokens for full layers ({} tokens), {} for windows; prefixes stay in those "
      "that no running request holds\n",
      plan.pages.full, page, plan.pages.full * page, plan.pages.window);
}

void print_speculation(const SpeculationOptions& options, const DraftCheckpoint* draft) {
  fmt::print("drafts by {}{}{}: at most {} a launch of a request; the limit counts none\n",
             spec_method_name(options.method), draft == nullptr ? "" : ", ",
             draft == nullptr ? "" : describe_head(draft->config()),
             draft == nullptr ? most_drafts(options) : most_drafts(options, draft->config()));
}

// What is printed; borrowed.
struct Outcome {
  const PlanFlags& o;
  const Target& target;
  const Planned& alone;
  const Planned& serve;
  const DraftCheckpoint* draft;     // null: none
  Work work;                        // of a step
  std::optional<GpuSpeeds> speeds;  // of a GPU known by name
  int32_t billions;                 // of gpt-oss; 0: another model
  double tok_s() const { return target.read_gb_s * 1e9 / work.bytes * alone.memory.max_num_seqs; }
  const SpeculationOptions& speculation() const { return o.engine.speculation; }
  bool drafts() const { return speculation().method != SpecMethod::kOff; }
};

void print_json(const Outcome& found) {
  const MemoryPlan& plan = found.alone.memory;
  const auto known = [](double rate) { return rate > 0 ? Json(rate) : Json(); };
  Json document = {{"model", found.o.engine.model},
                   {"device", found.target.name},
                   {"max_model_len", plan.max_model_len},
                   {"max_num_seqs", plan.max_num_seqs},
                   {"ranks", found.o.engine.tensor_parallel},
                   {"parts", parts_json(plan)},
                   {"total_bytes", plan.total_bytes},
                   {"available_bytes", plan.available_bytes},
                   {"left_bytes", left_bytes(plan)},
                   {"fits", plan.fits},
                   {"advice", plan.advice},
                   {"read_gb_s", known(found.target.read_gb_s)},
                   {"read_gb_s_source", found.target.source},
                   {"bytes_per_step", found.work.bytes},
                   {"tok_s_limit", known(found.tok_s())},
                   {"serve", serve_json(found.serve)}};
  if (found.drafts()) {
    document["speculation"] = speculation_json(found.speculation(), found.draft, plan);
    document["serve"]["speculation"] =
        speculation_json(found.speculation(), found.draft, found.serve.memory);
  }
  if (found.speeds) document["speeds"] = to_json(*found.speeds, found.billions);
  print_document(document);
}

void print_tables(const Outcome& found) {
  const MemoryPlan& plan = found.alone.memory;
  fmt::print("{} on {}: context {}, {} stream{}\n", found.o.engine.model, found.target.name,
             plan.max_model_len, plan.max_num_seqs, plan.max_num_seqs == 1 ? "" : "s");
  const int ranks = found.o.engine.tensor_parallel;
  if (ranks > 1) {
    fmt::print("of {} {} ranks{}{}\n", found.draft == nullptr ? "each of" : "the first of", ranks,
               found.draft == nullptr ? "" : ", which has the draft head",
               found.target.kind == DeviceKind::kCpu ? ", with an equal share of the memory" : "");
  }
  fmt::print("\n");
  print_parts(plan);
  if (found.target.read_gb_s > 0)
    fmt::print("decode limit at depth {}: {:.1f} tok/s ({:.3f} GB a step, {:.1f} GB/s: {})\n",
               found.o.depth, found.tok_s(), found.work.bytes / 1e9, found.target.read_gb_s,
               found.target.source);
  else
    fmt::print("decode limit at depth {}: not known ({:.3f} GB a step, bandwidth {})\n",
               found.o.depth, found.work.bytes / 1e9, found.target.source);
  if (found.drafts()) print_speculation(found.speculation(), found.draft);
  if (found.speeds) print_speeds(*found.speeds, found.billions);
  print_serve(found.serve);
}

// The speeds of the model on a known GPU; nothing for this machine's device.
std::optional<GpuSpeeds> speeds_on(const Target& target, const Planned& planned,
                                   const GptOssConfig& config, const ModelWeights& layout,
                                   const DenseLayers& mxfp4) {
  if (target.card == nullptr || config.share.num_ranks > 1) return std::nullopt;
  const PredictedModel model{.config = config,
                             .layout = layout,
                             .kv_dtype = planned.shape.dtype,
                             .all_mxfp4 = mxfp4.qkv && mxfp4.o && mxfp4.lm_head,
                             .max_batch_tokens = planned.memory.max_batch_tokens};
  return gpu_speeds(*target.card, model, [&](int32_t num_tokens, int32_t streams) {
    return fits(planned, num_tokens, streams);
  });
}

// gpt-oss-120b or 20b by its sizes.
int32_t billions_of(const GptOssConfig& config) {
  if (config.hidden != 2880 || config.vocab != 201088) return 0;
  return config.num_experts == 128 ? 120 : config.num_experts == 32 ? 20 : 0;
}

int run(PlanFlags& o, const Flags& flags) {
  if (o.markdown) return print_gpus_markdown();
  const GpuCard* card = nullptr;
  if (!o.gpu.empty()) {
    auto known = gpu_card(o.gpu);
    if (!known) return usage(known.error().message());
    card = *known;
  }
  if (auto status = o.speculation.complete(flags); !status) {
    return usage(status.error().message());
  }
  o.engine.speculation = o.speculation.options;
  auto checkpoint = open_checkpoint(o.engine.model);
  if (!checkpoint) return report(checkpoint.error());
  auto mxfp4 = DenseLayers::parse(o.engine.mxfp4_layers);
  if (!mxfp4) return report(mxfp4.error());
  auto mxfp8 = DenseLayers::parse(o.engine.mxfp8_layers, "--mxfp8-layers");
  if (!mxfp8) return report(mxfp8.error());
  auto draft = open_draft_head(o.engine.speculation, o.engine.model, **checkpoint);
  if (!draft) return report(draft.error());
  if (*draft != nullptr) o.engine.taps = (*draft)->config().boundaries;
  if (auto ranks = gpus_of_ranks(&o.engine); !ranks) return usage(ranks.error().message());
  auto target = card != nullptr ? Result<Target>(known_gpu(*card)) : target_of(o);
  if (!target) return report(target.error());
  LoadOptions load{.mxfp4_layers = *mxfp4, .mxfp8_layers = *mxfp8, .device = target->kind};
  load.ranks = {.size = o.engine.tensor_parallel,
                .splits_experts = o.engine.expert_parallel,
                .link = link_between(target->kind),
                .first_holds_unembed = *draft != nullptr && takes_target_unembed(**draft)};
  const auto of_rank = config_of_rank((*checkpoint)->config(), load.ranks, load.rank);
  if (!of_rank) return report(of_rank.error());
  if (o.depth >= of_rank->max_positions)
    return usage(
        fmt::format("--depth {}: the model has {} positions", o.depth, of_rank->max_positions));
  if (auto fine = check_load_options(load, target->kind); !fine) return report(fine.error());
  const KernelChooser kernels(target->kind, target->features, {});
  o.engine.max_logit_rows = o.engine.max_num_seqs * (1 + most_drafts(o.engine.speculation));
  auto alone =
      plan_for(**checkpoint, draft->get(), o.engine, load, kernels, target->available_bytes);
  if (!alone) return report(alone.error());
  EngineOptions serve_options = o.engine;
  if (!o.kv_memory.empty()) {
    auto bytes = parse_bytes(o.kv_memory, "--kv-cache-memory");
    if (!bytes) return usage(bytes.error().message());
    serve_options.kv_cache_bytes = *bytes;
  }
  fit_service(flags.given("--max-num-seqs") ? o.engine.max_num_seqs : 0, &serve_options);
  auto serve =
      plan_for(**checkpoint, draft->get(), serve_options, load, kernels, target->available_bytes);
  if (!serve) return report(serve.error());
  const ModelWeights layout = (*checkpoint)->layout(load);
  const GptOssConfig& config = *of_rank;
  Work work = decode_work(config, layout, alone->shape.dtype, o.depth, alone->memory.max_num_seqs);
  // Ranks of a CPU read through the same memory.
  if (target->kind == DeviceKind::kCpu) work.bytes *= load.ranks.size;
  const Outcome found{.o = o,
                      .target = *target,
                      .alone = *alone,
                      .serve = *serve,
                      .draft = draft->get(),
                      .work = work,
                      .speeds = speeds_on(*target, *alone, config, layout, *mxfp4),
                      .billions = billions_of(config)};
  o.json ? print_json(found) : print_tables(found);
  return kExitDone;
}

}  // namespace

Command plan_command() {
  auto o = std::make_shared<PlanFlags>();
  return {.name = "plan",
          .summary = "Memory by part and the speed the bytes allow, before loading anything",
          .example = "moxie plan --model synthetic:gpt-oss-120b --gpu H200 --max-model-len 32768",
          .declare =
              [o](Flags& flags) {
                declare_model_flags(flags, &o->engine);
                o->speculation.declare(flags);
                flags.text("--gpu", &o->gpu,
                           "plan for this GPU instead of this machine, and predict speeds on it");
                flags.integer("--max-num-seqs", &o->engine.max_num_seqs, {1, kMostSeqs},
                              "streams at once");
                flags.integer("--max-num-batched-tokens", &o->engine.max_batch_tokens,
                              {0, kMostBatchTokens}, "tokens a launch; 0: what suits");
                flags.text("--kv-cache-memory", &o->kv_memory,
                           "of a server, such as 20GiB; default: what suits");
                flags.integer("--depth", &o->depth, kFromZero,
                              "context at which the limit is computed");
                flags.toggle("--json", &o->json, "print one JSON document");
                flags.toggle("--markdown", &o->markdown, "print docs/gpus.md");
              },
          .run = [o](const Flags& flags) { return run(*o, flags); }};
}

}  // namespace moxie
