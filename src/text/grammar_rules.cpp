// Grammars under construction: sets of characters, expressions, and the writing of EBNF.
#include "text/grammar_rules.h"

#include <algorithm>
#include <utility>

#include "text/utf8.h"

namespace moxie::grammar {

CharSet char_set(std::vector<CharRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const CharRange& a, const CharRange& b) { return a.first < b.first; });
  CharSet out;
  for (const CharRange& range : ranges) {
    if (!out.empty() && range.first <= out.back().last + 1) {
      out.back().last = std::max(out.back().last, range.last);
    } else {
      out.push_back(range);
    }
  }
  return out;
}

CharSet complement(const CharSet& set) {
  CharSet out;
  uint32_t next = 0;
  for (const CharRange& range : set) {
    if (range.first > next) out.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) out.push_back({next, kLastCodePoint});
  return out;
}

CharSet intersection(const CharSet& a, const CharSet& b) {
  CharSet out;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const uint32_t first = std::max(a[i].first, b[j].first);
    const uint32_t last = std::min(a[i].last, b[j].last);
    if (first <= last) out.push_back({first, last});
    a[i].last < b[j].last ? ++i : ++j;
  }
  return out;
}

bool contains(const CharSet& set, uint32_t code_point) {
  return std::any_of(set.begin(), set.end(), [&](const CharRange& range) {
    return range.first <= code_point && code_point <= range.last;
  });
}

std::vector<uint32_t> code_points(std::string_view utf8) {
  std::vector<uint32_t> out;
  for (size_t i = 0; i < utf8.size();) {
    const Utf8Char c = decode_utf8(utf8, i);
    out.push_back(c.code_point);
    i += c.size_bytes;
  }
  return out;
}

Rules::Rules() {
  exprs_.push_back({.kind = Kind::kNever});
  exprs_.push_back({.kind = Kind::kEmpty});
}

ExprId Rules::add(Expr expr) {
  exprs_.push_back(std::move(expr));
  return static_cast<ExprId>(exprs_.size()) - 1;
}

ExprId Rules::text(std::string_view utf8) {
  if (utf8.empty()) return empty();
  if (const auto it = texts_.find(utf8); it != texts_.end()) return it->second;
  const ExprId id = add({.kind = Kind::kText, .text = std::string(utf8)});
  texts_.emplace(std::string(utf8), id);
  return id;
}

ExprId Rules::one_of(const CharSet& set) {
  if (set.empty()) return never();
  return add({.kind = Kind::kOneOf, .set = set});
}

ExprId Rules::sequence(const std::vector<ExprId>& parts) {
  std::vector<ExprId> kept;
  for (const ExprId part : parts) {
    if (part == never()) return never();
    if (part != empty()) kept.push_back(part);
  }
  if (kept.empty()) return empty();
  if (kept.size() == 1) return kept[0];
  return add({.kind = Kind::kSequence, .parts = std::move(kept)});
}

ExprId Rules::choice(const std::vector<ExprId>& alternatives) {
  std::vector<ExprId> kept;
  for (const ExprId part : alternatives) {
    if (part != never() && std::find(kept.begin(), kept.end(), part) == kept.end()) {
      kept.push_back(part);
    }
  }
  if (kept.empty()) return never();
  if (kept.size() == 1) return kept[0];
  return add({.kind = Kind::kChoice, .parts = std::move(kept)});
}

ExprId Rules::repeat(ExprId part, int32_t min, int32_t max) {
  if (max != kUnbounded && max < min) return never();
  if (max == 0 || part == empty() || (part == never() && min == 0)) return empty();
  if (part == never()) return never();
  if (min == 1 && max == 1) return part;
  return add({.kind = Kind::kRepeat, .min = min, .max = max, .parts = {part}});
}

ExprId Rules::ref(RuleId rule) { return add({.kind = Kind::kRef, .min = rule}); }

RuleId Rules::add_rule() {
  bodies_.push_back(never());
  lookaheads_.push_back(never());
  return static_cast<RuleId>(bodies_.size()) - 1;
}

void Rules::define(RuleId rule, ExprId body) { bodies_[static_cast<size_t>(rule)] = body; }

ExprId Rules::shared(ExprId body) {
  const RuleId rule = add_rule();
  define(rule, body);
  return ref(rule);
}

void Rules::set_lookahead(RuleId rule, ExprId what_follows) {
  lookaheads_[static_cast<size_t>(rule)] = what_follows;
}

bool Rules::is_productive(ExprId id, const std::vector<bool>& rules) const {
  const Expr& expr = exprs_[static_cast<size_t>(id)];
  const auto productive = [&](ExprId part) { return is_productive(part, rules); };
  switch (expr.kind) {
    case Kind::kNever:
      return false;
    case Kind::kSequence:
      return std::all_of(expr.parts.begin(), expr.parts.end(), productive);
    case Kind::kChoice:
      return std::any_of(expr.parts.begin(), expr.parts.end(), productive);
    case Kind::kRepeat:
      return expr.min == 0 || productive(expr.parts[0]);
    case Kind::kRef:
      return rules[static_cast<size_t>(expr.min)];
    default:
      return true;
  }
}

std::vector<bool> Rules::productive_rules() const {
  std::vector<bool> productive(bodies_.size(), false);
  // Each round finds at least one more rule; from the last rule to the first, because rules are
  // mostly made after those that use them.
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = bodies_.size(); i-- > 0;) {
      if (!productive[i] && is_productive(bodies_[i], productive)) {
        productive[i] = true;
        changed = true;
      }
    }
  }
  return productive;
}

void Rules::collect(ExprId id, const std::vector<bool>& productive,
                    std::vector<RuleId>* found) const {
  if (!is_productive(id, productive)) return;
  const Expr& expr = exprs_[static_cast<size_t>(id)];
  if (expr.kind == Kind::kRef) found->push_back(expr.min);
  for (const ExprId part : expr.parts) collect(part, productive, found);
}

namespace {

void append_hex(uint32_t c, std::string* out) {
  constexpr char kDigits[] = "0123456789abcdef";
  const int width = c <= 0xFFFF ? 4 : 8;
  *out += width == 4 ? "\\u" : "\\U";
  for (int shift = 4 * (width - 1); shift >= 0; shift -= 4) *out += kDigits[c >> shift & 15];
}

void append_class_char(uint32_t c, std::string* out) {
  const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  plain ? out->push_back(static_cast<char>(c)) : append_hex(c, out);
}

void append_text(std::string_view text, std::string* out) {
  *out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      *out += '\\';
      *out += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      append_hex(byte, out);
    } else {
      *out += c;
    }
  }
  *out += '"';
}

void append_class(const CharSet& set, std::string* out) {
  *out += '[';
  for (const CharRange& range : set) {
    append_class_char(range.first, out);
    if (range.last == range.first) continue;
    *out += '-';
    append_class_char(range.last, out);
  }
  *out += ']';
}

}  // namespace

void Rules::print(ExprId id, const std::vector<bool>& productive, bool in_sequence,
                  std::string* out) const {
  const Expr& expr = exprs_[static_cast<size_t>(id)];
  switch (expr.kind) {
    case Kind::kNever:
      break;  // not reached: only productive expressions are written
    case Kind::kEmpty:
      *out += "\"\"";
      break;
    case Kind::kText:
      append_text(expr.text, out);
      break;
    case Kind::kOneOf:
      append_class(expr.set, out);
      break;
    case Kind::kSequence:
      for (size_t i = 0; i < expr.parts.size(); ++i) {
        if (i > 0) *out += ' ';
        print(expr.parts[i], productive, true, out);
      }
      break;
    case Kind::kChoice: {
      if (in_sequence) *out += '(';
      bool first = true;
      for (const ExprId part : expr.parts) {
        if (!is_productive(part, productive)) continue;
        if (!first) *out += " | ";
        first = false;
        print(part, productive, false, out);
      }
      if (in_sequence) *out += ')';
      break;
    }
    case Kind::kRepeat: {
      if (!is_productive(expr.parts[0], productive)) {
        *out += "\"\"";
        break;
      }
      const Kind inner = exprs_[static_cast<size_t>(expr.parts[0])].kind;
      const bool atom = inner == Kind::kOneOf || inner == Kind::kRef;
      if (!atom) *out += '(';
      print(expr.parts[0], productive, false, out);
      if (!atom) *out += ')';
      if (expr.max == kUnbounded && expr.min <= 1) {
        *out += expr.min == 0 ? '*' : '+';
      } else {
        *out += '{' + std::to_string(expr.min) + ',';
        if (expr.max != kUnbounded) *out += std::to_string(expr.max);
        *out += '}';
      }
      break;
    }
    case Kind::kRef:
      *out += 'r' + std::to_string(expr.min);
      break;
  }
}

std::string Rules::ebnf(RuleId root) const {
  const std::vector<bool> productive = productive_rules();
  if (!productive[static_cast<size_t>(root)]) return {};
  std::string out = "root ::= r" + std::to_string(root) + "\n";
  std::vector<bool> seen(bodies_.size(), false);
  std::vector<RuleId> pending = {root};
  while (!pending.empty()) {
    const auto rule = static_cast<size_t>(pending.back());
    pending.pop_back();
    if (seen[rule]) continue;
    seen[rule] = true;
    out += 'r' + std::to_string(rule) + " ::= ";
    print(bodies_[rule], productive, lookaheads_[rule] != never(), &out);
    if (lookaheads_[rule] != never()) {
      out += " (=";
      print(lookaheads_[rule], productive, true, &out);
      out += ')';
    }
    out += '\n';
    collect(bodies_[rule], productive, &pending);
    collect(lookaheads_[rule], productive, &pending);
  }
  return out;
}

}  // namespace moxie::grammar
