// Words that an answer must not contain (vLLM's bad_words), as the tokens that the tokenizer makes
// of them at the beginning of a text and behind a space. A word made of other tokens is not seen.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/constraint.h"
#include "text/bpe.h"
#include "text/harmony.h"

namespace moxie {

/// Token sequences, none empty.
using BannedWords = std::vector<std::vector<int32_t>>;

BannedWords banned_words(const Tokenizer& tokenizer, const std::vector<std::string>& words);

/// Bars the last token of a word when the tokens before it have just been written. What else binds
/// the answer comes first: if it leaves no other token, the word may be written. Words in a
/// message's header stay allowed, since headers are harmony's and not the answer's.
class BadWords final : public TokenConstraint {
 public:
  /// `control` null: no harmony, all is text. `inner` null: nothing else binds the answer.
  BadWords(std::shared_ptr<const BannedWords> words, const harmony::ControlTokens* control,
           std::shared_ptr<TokenConstraint> inner);

  bool fill_mask(std::span<uint32_t> mask) override;
  Status accept(int32_t token) override;
  std::unique_ptr<TokenConstraint> fork() const override;

 private:
  std::shared_ptr<const BannedWords> words_;
  const harmony::ControlTokens* control_;
  std::shared_ptr<TokenConstraint> inner_;
  size_t longest_ = 0;
  std::vector<int32_t> written_;  // the end of the text, as long as a word may be
  bool in_header_;                // an answer begins with one
};

}  // namespace moxie
