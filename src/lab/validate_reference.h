// The double precision reference of a model, and how far a subject may be from it.
//
// The bars follow from the formats, not from measured runs (docs/validate.md derives them): each of
// the two updates of a layer is made with the relative error eta of the values that its rows round,
// independent errors add by squares over the layers, and a change delta of the logits has
// KL = Var(delta) / 2. Experts whose router logits nearly tie may be swapped by rounding: that
// moves a few rows much further, which the bar of the mean allows for, and the bar of the median
// hardly.
#pragma once

#include <vector>

#include "engine/engine.h"

namespace moxie {

/// Token ids, and the reference's logits behind each: [ids, vocab].
struct ReferenceText {
  std::vector<int32_t> ids;
  std::vector<float> logits;
};

struct ReferenceLimits {
  int32_t num_texts = 2, most_tokens = 320;
  double most_s = 60;  ///< texts are cut where the reference would take longer
};

/// Loads `options`' model on the CPU with reference rows alone and an F32 cache, and computes the
/// logits of texts: random ids, and a text that the reference draws itself. The weights are
/// quantised as the options ask where the CPU can.
Result<std::vector<ReferenceText>> reference_texts(const EngineOptions& options,
                                                   const ReferenceLimits& limits);

/// How far the reference's logits move when nothing but its cache is rounded, to BF16: what this
/// model makes of a rounding whose size is known. Depth and weights that were never trained make
/// more of it than the formats tell.
struct RoundingResponse {
  double eta = 0;  ///< of the rounding
  double median_kl = 0, mean_kl = 0;
};
Result<RoundingResponse> rounding_response(const EngineOptions& options, const ReferenceText& text);

/// How a subject may differ from the reference.
struct Tolerance {
  double eta = 0;           ///< relative error of one update
  double median_kl = 0;     ///< of the rows, nats
  double mean_kl = 0;       ///< nats
  double unrelated_kl = 0;  ///< of rows that have nothing in common but their variance
  std::string because;      ///< the formats that decide eta

  double nll() const;      ///< of the mean negative log-likelihood, nats
  double logprob() const;  ///< of one log-probability
  /// Raises the bars to what the model was measured to make of a rounding, scaled to this eta, but
  /// to no more than a quarter of unrelated_kl.
  void allow_for(const RoundingResponse& response);
};
/// `rows`: names of the rows that ran.
Tolerance tolerance_of(const Engine& subject, const std::vector<std::string>& rows,
                       const std::vector<ReferenceText>& texts);

/// The distance of some rows of logits from a text's.
struct LogitsDistance {
  std::vector<double> kl;  ///< of each row; infinite where a logit is not finite
  double nll = 0, reference_nll = 0;
  int64_t num_targets = 0, num_not_finite = 0;

  bool is_within(const Tolerance& tolerance) const;
  double nll_difference() const;  ///< of the means
  double perplexity() const;
  double reference_perplexity() const;
};
/// Adds rows of logits behind the tokens from `first` on.
void add_rows(const ReferenceText& text, size_t first, std::span<const float> rows, int32_t vocab,
              LogitsDistance* distance);

}  // namespace moxie
