// How answers are drafted, as the switches say it, and the drafter that follows from it.
//
// A draft never changes a text: it costs tokens of a launch, and saves launches if it is right.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base.h"
#include "engine/acceptance_watch.h"
#include "engine/draft_length.h"
#include "engine/drafter.h"

namespace moxie {

class Checkpoint;
class DraftCheckpoint;
class Engine;
struct DraftConfig;

enum class SpecMethod : uint8_t {
  kOff,
  kNgram,   ///< the text that followed the longest earlier match of the last tokens
  kEagle3,  ///< a head that drafts token by token; P-EAGLE heads too
  kDflash,  ///< a head that drafts a block in one pass
};
inline constexpr const char* kSpecMethodNames[] = {"off", "ngram", "eagle3", "dflash"};
inline const char* spec_method_name(SpecMethod method) {
  return kSpecMethodNames[static_cast<size_t>(method)];
}
inline bool takes_head(SpecMethod method) {
  return method == SpecMethod::kEagle3 || method == SpecMethod::kDflash;
}

/// The values of --spec and its companions.
struct SpeculationOptions {
  SpecMethod method = SpecMethod::kOff;
  std::string head;            ///< of kEagle3 and kDflash: directory, repo id, or embedded
  std::string dtype = "auto";  ///< of the head's matrices: mxfp4, bf16; auto: mxfp4
  int32_t max_drafts = 0;      ///< drafted tokens of a request in a launch; 0: the method's own
  bool is_adaptive = true;     ///< verify as many drafts as pay
  int32_t lookup_min = 0, lookup_max = 0;  ///< of kNgram: tokens of a match; 0: vLLM's defaults
  /// What a field `layer_id_offset` adds to the layer ids in a head's configuration; -1: by its
  /// form.
  int32_t layer_id_offset = -1;
  /// The drafts of a launch are accepted up to position i with this probability, from `seed`,
  /// instead of by comparing tokens. For benchmarks; empty: compare.
  std::vector<float> acceptance;
  uint64_t seed = 0;
};

/// Fails if options contradict each other: a head that the method does not take, and the like.
/// With kOff the others mean nothing.
Status check_speculation(const SpeculationOptions& options);

/// The most tokens that one request may have drafted in a launch, before the engine is loaded (a
/// head's own number is not known then); 0 with kOff. Each takes a row of logits.
int32_t most_drafts(const SpeculationOptions& options);

/// The head that the options name, open, for a target that was opened as `model`. Null if the
/// method takes none.
Result<std::unique_ptr<DraftCheckpoint>> open_draft_head(const SpeculationOptions& options,
                                                         const std::string& model,
                                                         const Checkpoint& target);

/// The most tokens that a head drafts of a request in a launch.
int32_t most_drafts(const SpeculationOptions& options, const DraftConfig& head);

/// What a head reads and drafts with: "boundaries 2, 12, 21 of the target, mask token 4066".
std::string describe_head(const DraftConfig& config);

/// The drafter that `engine` was loaded for (EngineOptions::speculation), and how many tokens it
/// drafts at most. Null with kOff. The engine must outlive the drafter.
Result<std::unique_ptr<Drafter>> make_drafter(Engine& engine, int32_t* max_drafts);

/// The same, with what a scheduler asks for.
struct Speculation {
  std::unique_ptr<Drafter> drafter;  ///< null: off
  std::unique_ptr<DraftMemory> memory;
  std::unique_ptr<AcceptanceWatch> watch;  ///< of a head whose drafts are compared; else null
  Drafting drafting;                       ///< by `drafter`, with `memory` and `watch`
};
Result<Speculation> make_speculation(Engine& engine);

}  // namespace moxie
