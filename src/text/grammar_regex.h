// Regular expressions of JSON Schema (the regular part of ECMA-262's) as trees and as grammars.
//
// Supported: literals, `.`, classes with ranges and \d \w \s and their negations, groups (named and
// not capturing too), alternatives, greedy and lazy quantifiers (the same set of texts), escapes,
// and ^ and $ at the ends of an alternative. Look-around, back references, \b, \p{..} and flags are
// refused: a grammar cannot hold them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base.h"
#include "text/grammar_rules.h"

namespace moxie::grammar {

/// The most repeats of a quantifier, and of nested quantifiers multiplied.
constexpr int64_t kMaxRepeats = 20'000;

struct RegexNode;
using RegexPtr = std::shared_ptr<const RegexNode>;
struct RegexNode {
  enum class Kind : uint8_t { kEmpty, kOneOf, kSequence, kChoice, kRepeat, kBegin, kEnd };
  Kind kind = Kind::kEmpty;
  CharSet set;                  ///< kOneOf
  std::vector<RegexPtr> parts;  ///< kRepeat: one
  int32_t min = 0, max = 0;     ///< kRepeat; max may be kUnbounded
};

/// `where` names the keyword in errors.
Result<RegexPtr> parse_regex(std::string_view pattern, const std::string& where);

/// How a pattern applies to a text.
enum class RegexMode {
  kSearch,  ///< it matches somewhere in the text: what `pattern` means
  kWhole,   ///< it matches the text from end to end: what guided_regex means
};

/// The tree of all texts that `regex` admits under `mode`, without anchors. Fails on an anchor at a
/// place where no text can begin or end, and on too many repeats.
Result<RegexPtr> resolve_anchors(const RegexPtr& regex, RegexMode mode, const std::string& where);

/// The least and greatest (kUnbounded: no bound) number of characters of a resolved tree's texts.
struct LengthRange {
  int64_t min = 0;
  int64_t max = 0;
};
LengthRange length_range(const RegexPtr& resolved);

/// The resolved tree restricted to texts of min..max characters, if counting in one place suffices
/// (one repeated class, all else of fixed length); else none.
std::optional<RegexPtr> with_length(const RegexPtr& resolved, int64_t min, int64_t max);

/// The number of copies of atoms, anchors left out, that a tree expands to, saturating.
int64_t weight(const RegexPtr& regex);

/// Whether a resolved tree admits `text`.
bool matches(const RegexPtr& resolved, std::string_view text);

/// How characters are written in the text that the grammar describes.
enum class CharEncoding {
  kPlain,
  kJsonString,  ///< inside the quotes of JSON: quotes, backslashes and controls escaped
};
ExprId regex_expr(Rules& rules, const RegexPtr& resolved, CharEncoding encoding);

/// About how many milliseconds it takes to compile a resolved tree: each copy of a class is a state
/// that is checked against the whole vocabulary.
int64_t mask_cost(const RegexPtr& resolved);
constexpr int64_t kMaxMaskCost = 4'000;

/// The characters that stand for themselves between JSON's quotes.
CharSet unescaped_chars();

}  // namespace moxie::grammar
