// The drafter of each method.
#include "engine/speculation.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/draft_counts.h"
#include "engine/engine.h"
#include "engine/head_drafter.h"
#include "engine/measure_costs.h"
#include "engine/ngram_drafter.h"

namespace moxie {
namespace {

// A launch of one stream with 8 tokens: behind these each token adds more to its time.
constexpr int32_t kNgramDrafts = 7;

// More than the known heads of a method draft by themselves: rows of logits are kept for them.
constexpr int32_t kEagle3Drafts = 7, kDflashDrafts = 15;

// vLLM's defaults: a length that is not given equals the other one.
NgramLengths ngram_lengths(const SpeculationOptions& options) {
  NgramLengths lengths;
  if (options.lookup_min > 0 || options.lookup_max > 0) {
    lengths.min = options.lookup_min > 0 ? options.lookup_min : options.lookup_max;
    lengths.max = options.lookup_max > 0 ? options.lookup_max : options.lookup_min;
  }
  return lengths;
}

Status check_ngram(const SpeculationOptions& options) {
  const NgramLengths lengths = ngram_lengths(options);
  if (lengths.min > lengths.max) {
    return fail(fmt::format("a shortest match of {} tokens is longer than the longest of {}",
                            lengths.min, lengths.max),
                "--prompt-lookup-min, --prompt-lookup-max", "min must not exceed max");
  }
  if (lengths.max > kLongestNgram) {
    return fail(fmt::format("matches of {} tokens", lengths.max), "--prompt-lookup-max",
                fmt::format("at most {}", kLongestNgram));
  }
  return {};
}

}  // namespace

Status check_speculation(const SpeculationOptions& options) {
  if (options.method == SpecMethod::kOff) return {};
  const std::string method = spec_method_name(options.method);
  if (!takes_head(options.method) && !options.head.empty()) {
    return fail(method + " takes no draft head", "--spec-model",
                "--spec eagle3 or dflash, or leave out --spec-model");
  }
  float before = 1;
  for (const float rate : options.acceptance) {
    if (!(rate >= 0 && rate <= before)) {
      return fail("rates of acceptance by position must be from 0 to 1 and must not increase",
                  "--spec-acceptance", "each is the share of launches accepted so far, as 0.8,0.6");
    }
    before = rate;
  }
  if (options.method == SpecMethod::kNgram) return check_ngram(options);
  if (options.lookup_min > 0 || options.lookup_max > 0) {
    return fail("matches are looked up only by ngram, not by " + method,
                "--prompt-lookup-min, --prompt-lookup-max", "--spec ngram, or leave them out");
  }
  return {};
}

int32_t most_drafts(const SpeculationOptions& options) {
  if (options.method == SpecMethod::kOff) return 0;
  if (options.max_drafts > 0) return std::min(options.max_drafts, kMostDrafts);
  if (!options.acceptance.empty()) return static_cast<int32_t>(options.acceptance.size());
  return options.method == SpecMethod::kNgram    ? kNgramDrafts
         : options.method == SpecMethod::kEagle3 ? kEagle3Drafts
                                                 : kDflashDrafts;
}

int32_t most_drafts(const SpeculationOptions& options, const DraftConfig& head) {
  return options.max_drafts > 0 ? options.max_drafts : head.num_drafts;
}

Result<std::unique_ptr<DraftCheckpoint>> open_draft_head(const SpeculationOptions& options,
                                                         const std::string& model,
                                                         const Checkpoint& target) {
  if (!takes_head(options.method)) return nullptr;
  const GptOssConfig& config = target.config();
  const bool is_dflash_asked = options.method == SpecMethod::kDflash;
  const bool is_embedded =
      options.head == "embedded" || (options.head.empty() && model == "embedded");
  std::string path = options.head;
  if (path.empty() && target.kind() == CheckpointKind::kSynthetic)
    path = model + (is_dflash_asked ? "-dflash" : "-eagle3");
  if (!is_embedded && path.empty())
    return fail(
        std::string(spec_method_name(options.method)) + " drafts with a head, and none is named",
        "--spec", "name it with --spec-model");
  if (is_embedded && options.layer_id_offset >= 0)
    return fail("the layers of the embedded head are known", "layer_id_offset",
                "leave the field out, or name a head with --spec-model");
  auto head = is_embedded ? DraftCheckpoint::open_embedded(is_dflash_asked, config)
                          : DraftCheckpoint::open(path, config, options.layer_id_offset);
  if (!head) return fail(std::move(head.error()));
  const bool is_dflash = head->config().kind == DraftKind::kDflash;
  if (is_dflash != is_dflash_asked)
    return fail(fmt::format("this is a {} head", is_dflash ? "DFlash" : "EAGLE-3"), path,
                is_dflash ? "--spec dflash" : "--spec eagle3");
  if (config.num_full_layers() == 0)
    return fail("the target has no full layers, whose pages the head shares", "--spec-model");
  return std::make_unique<DraftCheckpoint>(std::move(*head));
}

std::string describe_head(const DraftConfig& config) {
  const std::string mask =
      config.mask_id >= 0 ? fmt::format(", mask token {}", config.mask_id) : "";
  return describe_boundaries(config) + mask;
}

Result<std::unique_ptr<Drafter>> make_drafter(Engine& engine, int32_t* max_drafts) {
  *max_drafts = 0;
  const SpeculationOptions& options = engine.options().speculation;
  if (options.method == SpecMethod::kOff) return nullptr;
  if (auto status = check_speculation(options); !status) return fail(std::move(status.error()));
  if (options.method == SpecMethod::kNgram) {
    *max_drafts = most_drafts(options);
    return std::make_unique<NgramDrafter>(ngram_lengths(options));
  }
  auto drafter = HeadDrafter::create(engine);
  if (!drafter) return fail(std::move(drafter.error()));
  *max_drafts = most_drafts(options, (*drafter)->config());
  return std::move(*drafter);
}

Result<Speculation> make_speculation(Engine& engine) {
  Speculation speculation;
  auto drafter = make_drafter(engine, &speculation.drafting.max_drafts);
  if (!drafter) return fail(std::move(drafter.error()));
  speculation.drafter = std::move(*drafter);
  const SpeculationOptions& options = engine.options().speculation;
  speculation.drafting.drafter = speculation.drafter.get();
  speculation.drafting.is_adaptive = options.is_adaptive;
  speculation.drafting.acceptance = options.acceptance;
  speculation.drafting.seed = options.seed;
  if (takes_head(options.method) && options.acceptance.empty()) {
    speculation.watch = std::make_unique<AcceptanceWatch>(
        spec_method_name(options.method),
        fmt::format("does the head belong to this model? It reads {}. If it counts layers in "
                    "another way, a field layer_id_offset (0 or 1) of --speculative-config says so",
                    describe_head(engine.draft_checkpoint()->config())));
    speculation.drafting.watch = speculation.watch.get();
  }
  if (speculation.drafter == nullptr || !options.is_adaptive) return speculation;
  speculation.memory = std::make_unique<DraftMemory>();
  speculation.drafting.memory = speculation.memory.get();
  if (engine.device().kind() == DeviceKind::kCuda) {
    auto status = measure_costs(engine, *speculation.drafter, speculation.drafting.max_drafts,
                                &speculation.memory->costs);
    if (!status) return fail(std::move(status.error()));
  }
  return speculation;
}

}  // namespace moxie
