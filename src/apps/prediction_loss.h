// How far switches move a model's predictions: its likelihood of texts, and the divergence from the
// logits of the unchanged model. `moxie score --compare-switches` and `moxie eval` share this.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "engine/engine.h"

namespace moxie {

/// A text and the first position whose prediction counts.
struct ScoredText {
  std::vector<int32_t> ids;
  size_t first = 1;
};

/// The model's answers at temperature 1 to a few questions: texts of the kind that it was trained
/// for. `tokenizer` null: the model's own, without which this fails.
Result<std::vector<ScoredText>> own_texts(Engine& engine, const Tokenizer* tokenizer = nullptr);

/// Sums over all scored predictions.
struct PredictionLoss {
  double nll = 0, kl = 0;
  size_t same = 0, count = 0;  ///< same: the best token is that of the unchanged model
  double perplexity() const { return std::exp(nll / static_cast<double>(count)); }
  double mean_kl() const { return kl / static_cast<double>(count); }
  double agreement() const { return static_cast<double>(same) / static_cast<double>(count); }
};

/// Fails if the logits of these texts are more than may be kept for a comparison.
Status check_texts(const std::vector<ScoredText>& texts, int32_t vocab);

/// Scores all texts. An empty `base` receives their logits; otherwise predictions are compared with
/// these. The engine's launches must allow as many rows of logits as tokens.
Result<PredictionLoss> measure_loss(Engine& engine, const std::vector<ScoredText>& texts,
                                    std::vector<std::vector<float>>* base);

}  // namespace moxie
