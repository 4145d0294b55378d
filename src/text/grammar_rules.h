// A context-free grammar under construction: expressions over Unicode characters, rules that may
// refer to one another, and its text in the EBNF that xgrammar reads.
//
// Expressions that nothing can match are allowed while building (an unsatisfiable sub-schema is
// one). ebnf() removes every alternative from which no end is reachable, so that any text begun by
// the grammar can be finished.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base.h"

namespace moxie::grammar {

/// An inclusive range of code points.
struct CharRange {
  uint32_t first = 0;
  uint32_t last = 0;
  bool operator==(const CharRange&) const = default;
};
constexpr uint32_t kLastCodePoint = 0x10FFFF;

/// A set of code points: sorted ranges that neither overlap nor touch.
using CharSet = std::vector<CharRange>;
CharSet char_set(std::vector<CharRange> ranges);  ///< sorts and joins
CharSet complement(const CharSet& set);           ///< within 0..kLastCodePoint
CharSet intersection(const CharSet& a, const CharSet& b);
bool contains(const CharSet& set, uint32_t code_point);

using ExprId = int32_t;
using RuleId = int32_t;
constexpr int32_t kUnbounded = -1;

class Rules {
 public:
  Rules();

  ExprId never() const { return 0; }  ///< matches nothing, not even the empty text
  ExprId empty() const { return 1; }  ///< matches the empty text
  ExprId text(std::string_view utf8);
  ExprId one_of(const CharSet& set);
  ExprId sequence(const std::vector<ExprId>& parts);
  ExprId choice(const std::vector<ExprId>& alternatives);
  ExprId optional(ExprId part) { return choice({empty(), part}); }
  /// `max` may be kUnbounded.
  ExprId repeat(ExprId part, int32_t min, int32_t max);
  ExprId ref(RuleId rule);

  RuleId add_rule();  ///< matches nothing until it is defined
  void define(RuleId rule, ExprId body);
  /// Makes a separate rule for `body`, so that it is written once.
  ExprId shared(ExprId body);
  /// Sets the text that follows this rule at every use: helps xgrammar decide tokens that end it.
  void set_lookahead(RuleId rule, ExprId what_follows);

  size_t num_rules() const { return bodies_.size(); }
  size_t num_exprs() const { return exprs_.size(); }

  /// The rules that `root` reaches, as EBNF whose first rule is "root". Empty if nothing matches.
  std::string ebnf(RuleId root) const;

 private:
  enum class Kind : uint8_t { kNever, kEmpty, kText, kOneOf, kSequence, kChoice, kRepeat, kRef };
  struct Expr {
    Kind kind;
    int32_t min = 0, max = 0;  // kRepeat; kRef: the rule in `min`
    std::vector<ExprId> parts;
    std::string text;
    CharSet set;
  };
  ExprId add(Expr expr);
  std::vector<bool> productive_rules() const;
  void print(ExprId id, const std::vector<bool>& productive, bool in_sequence,
             std::string* out) const;
  bool is_productive(ExprId id, const std::vector<bool>& rules) const;
  void collect(ExprId id, const std::vector<bool>& productive, std::vector<RuleId>* found) const;

  std::vector<Expr> exprs_;
  std::vector<ExprId> bodies_;      // by rule
  std::vector<ExprId> lookaheads_;  // by rule; never() where there is none
  std::map<std::string, ExprId, std::less<>> texts_;
};

/// The characters of a text, each invalid part as U+FFFD.
std::vector<uint32_t> code_points(std::string_view utf8);

}  // namespace moxie::grammar
