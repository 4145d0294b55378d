// Regular expressions without anchors: their lengths, matching, and writing as grammars.
#include <algorithm>
#include <map>
#include <utility>

#include "text/grammar_counted.h"
#include "text/grammar_regex.h"
#include "text/utf8.h"

namespace moxie::grammar {
namespace {

using Kind = RegexNode::Kind;

RegexPtr repeat_of(const RegexPtr& part, int32_t min, int32_t max) {
  return std::make_shared<const RegexNode>(
      RegexNode{.kind = Kind::kRepeat, .parts = {part}, .min = min, .max = max});
}

/// The positions that `regex` can reach from the positions `from` (a set by index).
std::vector<bool> reach(const RegexPtr& regex, const std::vector<uint32_t>& text,
                        const std::vector<bool>& from) {
  std::vector<bool> to(text.size() + 1, false);
  switch (regex->kind) {
    case Kind::kOneOf:
      for (size_t i = 0; i < text.size(); ++i) {
        to[i + 1] = from[i] && contains(regex->set, text[i]);
      }
      return to;
    case Kind::kSequence: {
      to = from;
      for (const RegexPtr& part : regex->parts) to = reach(part, text, to);
      return to;
    }
    case Kind::kChoice:
      for (const RegexPtr& part : regex->parts) {
        const std::vector<bool> more = reach(part, text, from);
        for (size_t i = 0; i < to.size(); ++i) to[i] = to[i] || more[i];
      }
      return to;
    case Kind::kRepeat: {
      std::vector<bool> at = from;
      if (regex->min == 0) to = from;
      // Past `min` repeats, an iteration that reaches no new position ends the loop.
      for (int32_t n = 1; regex->max == kUnbounded || n <= regex->max; ++n) {
        at = reach(regex->parts[0], text, at);
        if (std::none_of(at.begin(), at.end(), [](bool b) { return b; })) break;
        if (n < regex->min) continue;
        bool more = false;
        for (size_t i = 0; i < to.size(); ++i) {
          more = more || (at[i] && !to[i]);
          to[i] = to[i] || at[i];
        }
        if (!more) break;
      }
      return to;
    }
    default:
      return from;
  }
}

}  // namespace

LengthRange length_range(const RegexPtr& regex) {
  switch (regex->kind) {
    case Kind::kOneOf:
      return {1, 1};
    case Kind::kSequence: {
      LengthRange sum;
      for (const RegexPtr& part : regex->parts) {
        const LengthRange length = length_range(part);
        sum.min += length.min;
        sum.max =
            sum.max == kUnbounded || length.max == kUnbounded ? kUnbounded : sum.max + length.max;
      }
      return sum;
    }
    case Kind::kChoice: {
      LengthRange all = length_range(regex->parts[0]);
      for (const RegexPtr& part : regex->parts) {
        const LengthRange length = length_range(part);
        all.min = std::min(all.min, length.min);
        all.max = all.max == kUnbounded || length.max == kUnbounded ? kUnbounded
                                                                    : std::max(all.max, length.max);
      }
      return all;
    }
    case Kind::kRepeat: {
      const LengthRange one = length_range(regex->parts[0]);
      LengthRange all = {one.min * regex->min, kUnbounded};
      if (one.max == 0) all.max = 0;
      if (one.max != kUnbounded && regex->max != kUnbounded) all.max = one.max * regex->max;
      return all;
    }
    default:
      return {0, 0};
  }
}

std::optional<RegexPtr> with_length(const RegexPtr& regex, int64_t min, int64_t max) {
  const LengthRange length = length_range(regex);
  if (length.min >= min && (max == kUnbounded || (length.max != kUnbounded && length.max <= max))) {
    return regex;
  }
  std::vector<RegexPtr> parts =
      regex->kind == Kind::kSequence ? regex->parts : std::vector<RegexPtr>{regex};
  int64_t fixed = 0;
  RegexPtr* counted = nullptr;
  for (RegexPtr& part : parts) {
    const LengthRange one = length_range(part);
    if (one.min == one.max) {
      fixed += one.min;
    } else if (counted == nullptr && part->kind == Kind::kRepeat) {
      const LengthRange unit = length_range(part->parts[0]);
      if (unit.min != 1 || unit.max != 1) return std::nullopt;
      counted = &part;
    } else {
      return std::nullopt;
    }
  }
  if (counted == nullptr || (max != kUnbounded && max < fixed)) return std::nullopt;
  const int64_t low = std::max<int64_t>((*counted)->min, min - fixed);
  int64_t high = (*counted)->max;
  if (max != kUnbounded) high = high == kUnbounded ? max - fixed : std::min(high, max - fixed);
  if (high != kUnbounded && high < low) return std::nullopt;
  *counted = repeat_of((*counted)->parts[0], static_cast<int32_t>(low), static_cast<int32_t>(high));
  if (parts.size() == 1) return parts[0];
  return std::make_shared<const RegexNode>(
      RegexNode{.kind = Kind::kSequence, .parts = std::move(parts)});
}

bool matches(const RegexPtr& resolved, std::string_view text) {
  const std::vector<uint32_t> chars = code_points(text);
  std::vector<bool> from(chars.size() + 1, false);
  from[0] = true;
  return reach(resolved, chars, from).back();
}

CharSet unescaped_chars() {
  return intersection(string_chars(), complement({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}));
}

int64_t mask_cost(const RegexPtr& regex) {
  constexpr int64_t kMany = int64_t{1} << 40;
  if (regex->kind == Kind::kOneOf) {
    int64_t num = 0;
    for (const CharRange& range : regex->set) num += range.last - range.first + 1;
    return num <= 16 ? 1 : num <= 80 ? 4 : 60;
  }
  int64_t sum = 0;
  for (const RegexPtr& part : regex->parts) sum = std::min(kMany, sum + mask_cost(part));
  if (regex->kind == Kind::kRepeat) {
    sum = std::min(kMany, sum * std::max<int64_t>({1, regex->min, regex->max}));
  }
  return sum;
}

namespace {

/// The ways to write one character of `set` between quotes.
std::vector<ExprId> json_char_ways(Rules& rules, const CharSet& set) {
  static const std::map<uint32_t, std::string_view> kEscapes = {
      {'"', "\\\""}, {'\\', "\\\\"}, {'\n', "\\n"}, {'\r', "\\r"},
      {'\t', "\\t"}, {'\b', "\\b"},  {'\f', "\\f"}};
  std::vector<ExprId> ways = {rules.one_of(intersection(set, unescaped_chars()))};
  for (const auto& [c, written] : kEscapes) {
    if (contains(set, c)) ways.push_back(rules.text(written));
  }
  // Other control characters have only the long form; it is used only if the set has no others.
  if (ways.size() == 1 && ways[0] == rules.never()) {
    for (uint32_t c = 0; c < 0x20; ++c) {
      constexpr char kDigits[] = "0123456789abcdef";
      if (contains(set, c)) {
        ways.push_back(rules.text(std::string("\\u00") + kDigits[c >> 4] + kDigits[c & 15]));
      }
    }
  }
  return ways;
}

/// A repeated character, as rules that each write one and lead to the next. If a character can be
/// written in several ways, xgrammar could not precompute a plain repeat's tokens of more than one
/// character.
ExprId repeated_char(Rules& rules, const std::vector<ExprId>& ways, int32_t min, int32_t max) {
  const auto then = [&](ExprId next) {
    std::vector<ExprId> out;
    for (const ExprId way : ways) out.push_back(rules.sequence({way, next}));
    return rules.choice(std::move(out));
  };
  ExprId rest = rules.empty();
  int32_t num_written = max;
  if (max == kUnbounded) {
    const RuleId loop = rules.add_rule();
    rules.define(loop, rules.optional(then(rules.ref(loop))));
    rest = rules.ref(loop);
    num_written = min;
  }
  for (int32_t n = num_written; n > 0; --n) {
    const ExprId more = then(rest);
    rest = rules.shared(n > min ? rules.optional(more) : more);
  }
  return rest;
}

}  // namespace

ExprId regex_expr(Rules& rules, const RegexPtr& regex, CharEncoding encoding) {
  const bool quoted = encoding == CharEncoding::kJsonString;
  if (quoted && regex->kind == Kind::kRepeat && regex->parts[0]->kind == Kind::kOneOf) {
    const std::vector<ExprId> ways = json_char_ways(rules, regex->parts[0]->set);
    if (ways.size() > 1) return repeated_char(rules, ways, regex->min, regex->max);
  }
  std::vector<ExprId> parts;
  for (const RegexPtr& part : regex->parts) parts.push_back(regex_expr(rules, part, encoding));
  switch (regex->kind) {
    case Kind::kOneOf:
      if (quoted) return rules.choice(json_char_ways(rules, regex->set));
      return rules.one_of(intersection(regex->set, string_chars()));
    case Kind::kSequence:
      return rules.sequence(std::move(parts));
    case Kind::kChoice:
      return rules.choice(std::move(parts));
    case Kind::kRepeat:
      return rules.repeat(parts[0], regex->min, regex->max);
    default:
      return rules.empty();
  }
}

}  // namespace moxie::grammar
