// The compiler's interface to the grammar library. One implementation a build: xgrammar's, or none.
#pragma once

#include <memory>
#include <string>

#include "text/grammar.h"
#include "text/grammar_counted.h"
#include "text/grammar_vocabulary.h"

namespace moxie::grammar {

class GrammarEngine {
 public:
  static Result<std::unique_ptr<GrammarEngine>> create(std::shared_ptr<const Vocabulary> vocabulary,
                                                       int num_threads);
  virtual ~GrammarEngine() = default;
  /// Thread-safe.
  virtual Result<GrammarPtr> compile(const Translation& translation, const std::string& where) = 0;
};

const std::shared_ptr<const Vocabulary>& vocabulary_of(const CompiledGrammar& grammar);
size_t memory_bytes(const CompiledGrammar& grammar);

/// Checks a user's EBNF: within limits, and without the constructs of xgrammar's dialect that reach
/// beyond text (tokens, sampling attributes).
Status check_ebnf(std::string_view ebnf, const std::string& where);

}  // namespace moxie::grammar
