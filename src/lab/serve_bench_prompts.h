// Prompts of an asked number of tokens for an endpoint whose tokenizer is elsewhere. They are made
// of words that the endpoint's tokenizer makes one token each, so that a prompt of so many words
// has so many tokens and those of the chat template. Words are drawn from a seed: prompts differ
// from their beginning on, so that no prefix cache finds them.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "core/base.h"

namespace moxie {

/// The texts of one request; `context` is empty at depth 0.
struct PromptText {
  std::string context, user;
};

class PromptMaker {
 public:
  /// Tokens of a whole prompt with these texts, template included.
  using CountTokens = std::function<Result<int64_t>(const PromptText&)>;

  /// Finds the words and the template's tokens, by up to a few dozen counts.
  static Result<PromptMaker> calibrate(const CountTokens& count, uint64_t seed);

  /// A prompt of `num_prompt` tokens behind a context of `depth` tokens: both together are the
  /// whole prompt, template included (which counts to the prompt at depth 0, else to the context).
  /// Fails where the template alone is longer.
  Result<PromptText> make(int64_t num_prompt, int64_t depth);

  int64_t num_template_tokens() const { return plain_overhead_; }
  const std::vector<std::string>& words() const { return words_; }

 private:
  std::string text_of(int64_t num_words);

  std::mt19937_64 random_;
  std::vector<std::string> words_;
  int64_t plain_overhead_ = 0;    // of a request without context, and its first word
  int64_t context_overhead_ = 0;  // of a request with context, and the two first words
};

}  // namespace moxie
