// For tests: tokenizers with their compilers, and random walks through grammars.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar.h"
#include "text/grammar_vocabulary.h"

namespace moxie::testing {

/// The embedded model's tokenizer (4,096 ids), and one compiler for it.
const Tokenizer& tiny_tokenizer();
grammar::Compiler& tiny_compiler();
/// A compiler whose tokenizer has single bytes as tokens.
grammar::Compiler& byte_compiler();

/// One of the ids in `mask`: uniform two times of three, else one that tends to end things.
int32_t random_token(const grammar::Vocabulary& vocabulary, const std::vector<uint32_t>& mask,
                     uint64_t& state);

struct Walk {
  std::string text;  ///< control tokens by their names
  std::vector<int32_t> ids;
  bool ended = false;  ///< the grammar or a stop token ended it, within the limit
  std::string fault;   ///< a dead end, or a token of the mask that was not accepted
};
/// Draws tokens until the text is complete and a random choice ends it, `max_tokens` at most.
Walk random_text(const grammar::Vocabulary& vocabulary, const grammar::GrammarPtr& grammar,
                 uint64_t seed, int max_tokens);
Walk random_answer(const Tokenizer& tokenizer, const grammar::Vocabulary& vocabulary,
                   grammar::AnswerConstraint& answer, uint64_t seed, int max_tokens);

/// Whether a grammar admits a whole text, in the tokenizer's own tokens.
bool accepts(const Tokenizer& tokenizer, const grammar::GrammarPtr& grammar, std::string_view text);

}  // namespace moxie::testing
