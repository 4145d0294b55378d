// Shared by `moxie score` and its comparison of switches.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/engine.h"

namespace moxie {

/// Negative log-likelihoods of ids[1..]. If `logits` is given, appends all logits, [ids, vocab], to
/// it. The engine's launches must allow as many rows of logits as tokens.
Result<std::vector<double>> score_ids(Engine& engine, const std::vector<int32_t>& ids,
                                      std::vector<float>* logits);

/// The same in a sequence of the caller's, which is empty and has the ids afterwards.
Result<std::vector<double>> score_ids(Engine& engine, SeqId seq, const std::vector<int32_t>& ids,
                                      std::vector<float>* logits);

/// `moxie score --draft-logits`: for list i writes draft_logits.i F32, EAGLE [ids, draft vocab],
/// DFlash [block - 1, vocab]; draft_ids.i I32, the drafted tokens; and next_id.i, the target's best
/// token, behind which they were drafted.
Status write_draft_logits(Engine& engine, const std::vector<std::vector<int32_t>>& lists,
                          const std::string& path);

/// `moxie score --compare-switches`: the cost in perplexity of each switch that saves bytes, and
/// how far it moves the model's predictions. Without `lists` the model answers a few questions and
/// is scored on its answers. Returns the exit code.
int compare_switches(EngineOptions options, const std::vector<std::vector<int32_t>>& lists,
                     bool as_json);

}  // namespace moxie
