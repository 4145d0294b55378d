// What `moxie score` and its comparison of switches share.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/engine.h"

namespace moxie {

/// Negative log-likelihoods of ids[1..], and all logits if `logits` is given ([ids, vocab] behind
/// what it holds). The engine's launches hold as many rows of logits as tokens.
Result<std::vector<double>> score_ids(Engine& engine, const std::vector<int32_t>& ids,
                                      std::vector<float>* logits);

/// log(sum(exp(row))).
double log_sum_exp(const float* row, int32_t n);

/// `moxie score --compare-switches`: what each switch that saves bytes costs in perplexity, and how
/// far it moves the model's predictions. Without `lists` the model is asked a few questions, and
/// scored on what it answers. Returns the exit code.
int compare_switches(EngineOptions options, const std::vector<std::vector<int32_t>>& lists,
                     bool as_json);

}  // namespace moxie
