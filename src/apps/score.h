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

/// log(sum(exp(row))).
double log_sum_exp(const float* row, int32_t n);

/// `moxie score --compare-switches`: the cost in perplexity of each switch that saves bytes, and
/// how far it moves the model's predictions. Without `lists` the model answers a few questions and
/// is scored on its answers. Returns the exit code.
int compare_switches(EngineOptions options, const std::vector<std::vector<int32_t>>& lists,
                     bool as_json);

}  // namespace moxie
