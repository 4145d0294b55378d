// Regular expressions: the parser and the resolving of anchors.
#include "text/grammar_regex.h"

#include <algorithm>
#include <utility>

#include "text/utf8.h"

namespace moxie::grammar {
namespace {

using Kind = RegexNode::Kind;

constexpr size_t kMaxPatternBytes = 16 * 1024;
constexpr int kMaxGroupDepth = 64;

RegexPtr make(RegexNode node) { return std::make_shared<const RegexNode>(std::move(node)); }
RegexPtr one_of(CharSet set) { return make({.kind = Kind::kOneOf, .set = std::move(set)}); }

CharSet digits() { return {{'0', '9'}}; }
CharSet word_chars() { return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}; }
CharSet spaces() {
  return char_set({{'\t', '\r'},
                   {' ', ' '},
                   {0xA0, 0xA0},
                   {0x1680, 0x1680},
                   {0x2000, 0x200A},
                   {0x2028, 0x2029},
                   {0x202F, 0x202F},
                   {0x205F, 0x205F},
                   {0x3000, 0x3000},
                   {0xFEFF, 0xFEFF}});
}
CharSet line_ends() { return {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}; }

std::string shown(uint32_t c) {
  std::string out;
  if (c > 0x20) append_utf8(c, &out);
  return out;
}

class Parser {
 public:
  Parser(std::string_view pattern, const std::string& where)
      : chars_(code_points(pattern)), where_(where) {}

  Result<RegexPtr> run() {
    auto regex = choice(0);
    if (!regex) return regex;
    if (!done()) return error("a \")\" without its \"(\"");
    return regex;
  }

 private:
  bool done() const { return pos_ >= chars_.size(); }
  uint32_t peek(size_t ahead = 0) const {
    return pos_ + ahead < chars_.size() ? chars_[pos_ + ahead] : 0;
  }
  bool take(uint32_t c) {
    if (done() || peek() != c) return false;
    ++pos_;
    return true;
  }
  tl::unexpected<Error> error(const std::string& what) const {
    return fail(what + ", at character " + std::to_string(pos_ + 1) + " of the pattern", where_);
  }

  Result<RegexPtr> choice(int depth) {
    if (depth > kMaxGroupDepth) return error("groups nested too deep");
    std::vector<RegexPtr> alternatives;
    do {
      auto part = sequence(depth);
      if (!part) return part;
      alternatives.push_back(*part);
    } while (take('|'));
    if (alternatives.size() == 1) return alternatives[0];
    return make({.kind = Kind::kChoice, .parts = std::move(alternatives)});
  }

  Result<RegexPtr> sequence(int depth) {
    std::vector<RegexPtr> parts;
    while (!done() && peek() != '|' && peek() != ')') {
      auto part = quantified(depth);
      if (!part) return part;
      parts.push_back(*part);
    }
    if (parts.empty()) return make({});
    if (parts.size() == 1) return parts[0];
    return make({.kind = Kind::kSequence, .parts = std::move(parts)});
  }

  Result<RegexPtr> quantified(int depth) {
    auto part = atom(depth);
    if (!part) return part;
    int32_t min = 1, max = 1;
    if (take('*')) {
      min = 0, max = kUnbounded;
    } else if (take('+')) {
      max = kUnbounded;
    } else if (take('?')) {
      min = 0;
    } else if (peek() == '{') {
      auto braces = counts(&min, &max);
      if (!braces) return fail(braces.error());
    } else {
      return part;
    }
    if ((*part)->kind == Kind::kBegin || (*part)->kind == Kind::kEnd) {
      return error("a quantifier behind an anchor");
    }
    take('?');  // lazy: the same texts
    if (!done() && (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{')) {
      return error("a quantifier behind a quantifier");
    }
    return repeated(*part, min, max);
  }

  /// A repeat of a repeat becomes one repeat if it admits the same counts. Two would read a text in
  /// many ways, and the time of a token would grow with the ways.
  static RegexPtr repeated(const RegexPtr& part, int32_t min, int32_t max) {
    const bool inside = part->kind == Kind::kRepeat && part->min <= 1 && part->max != 0;
    if (!inside || max != kUnbounded) {
      return make({.kind = Kind::kRepeat, .parts = {part}, .min = min, .max = max});
    }
    return make(
        {.kind = Kind::kRepeat, .parts = part->parts, .min = min * part->min, .max = kUnbounded});
  }

  Result<int64_t> number() {
    int64_t value = 0;
    const size_t begin = pos_;
    while (!done() && peek() >= '0' && peek() <= '9') {
      value = std::min<int64_t>(value * 10 + (peek() - '0'), kMaxRepeats + 1);
      ++pos_;
    }
    if (pos_ == begin)
      return error("\"{\" without a count behind it (write \\{ for the character)");
    if (value > kMaxRepeats) {
      return error("a count above " + std::to_string(kMaxRepeats));
    }
    return value;
  }

  Status counts(int32_t* min, int32_t* max) {
    take('{');
    auto low = number();
    if (!low) return fail(low.error());
    *min = *max = static_cast<int32_t>(*low);
    if (take(',')) {
      *max = kUnbounded;
      if (peek() != '}') {
        auto high = number();
        if (!high) return fail(high.error());
        *max = static_cast<int32_t>(*high);
        if (*high < *low) return error("a count range with its ends exchanged");
      }
    }
    if (!take('}')) return error("\"{\" without its \"}\"");
    return {};
  }

  Result<RegexPtr> atom(int depth) {
    const uint32_t c = peek();
    ++pos_;
    switch (c) {
      case '(':
        return group(depth);
      case '[':
        return bracket();
      case '.':
        return one_of(complement(line_ends()));
      case '^':
        return make({.kind = Kind::kBegin});
      case '$':
        return make({.kind = Kind::kEnd});
      case '\\': {
        auto set = escape(false);
        if (!set) return fail(set.error());
        return one_of(std::move(*set));
      }
      case '*':
      case '+':
      case '?':
        --pos_;
        return error("a quantifier with nothing before it");
      default:
        return one_of({{c, c}});
    }
  }

  Result<RegexPtr> group(int depth) {
    if (take('?')) {
      if (take('<')) {
        if (peek() == '=' || peek() == '!') return error("look-behind is not supported");
        while (!done() && peek() != '>') ++pos_;
        if (!take('>')) return error("a group name without its \">\"");
      } else if (peek() == '=' || peek() == '!') {
        return error("look-ahead is not supported");
      } else if (!take(':')) {
        return error("this kind of group is not supported");
      }
    }
    auto inner = choice(depth + 1);
    if (!inner) return inner;
    if (!take(')')) return error("a \"(\" without its \")\"");
    return inner;
  }

  /// After a backslash. `in_class`: inside brackets, where \b is a backspace.
  Result<CharSet> escape(bool in_class) {
    if (done()) return error("a backslash at the end");
    const uint32_t c = peek();
    ++pos_;
    switch (c) {
      case 'd':
        return digits();
      case 'D':
        return complement(digits());
      case 'w':
        return word_chars();
      case 'W':
        return complement(word_chars());
      case 's':
        return spaces();
      case 'S':
        return complement(spaces());
      case 't':
        return CharSet{{'\t', '\t'}};
      case 'n':
        return CharSet{{'\n', '\n'}};
      case 'r':
        return CharSet{{'\r', '\r'}};
      case 'f':
        return CharSet{{'\f', '\f'}};
      case 'v':
        return CharSet{{'\v', '\v'}};
      case 'x':
        return hex(2);
      case 'u':
        if (take('{')) {
          auto set = hex(6);
          if (set && !take('}')) return error("\\u{ without its }");
          return set;
        }
        return hex(4);
      case 'b':
        if (in_class) return CharSet{{'\b', '\b'}};
        return error("\\b (a word border) is not supported");
      case '0':
        if (peek() >= '0' && peek() <= '9') return error("octal escapes are not supported");
        return CharSet{{0, 0}};
      default:
        break;
    }
    if (c >= '1' && c <= '9') return error("back references are not supported");
    if ((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')) {
      return error("\\" + shown(c) + " is not supported");
    }
    return CharSet{{c, c}};
  }

  /// `width` digits; if `width` is 6, one to six digits.
  Result<CharSet> hex(int width) {
    uint32_t value = 0;
    int num = 0;
    for (; num < width; ++num) {
      const uint32_t c = peek();
      const uint32_t lower = c | 0x20;
      if (c >= '0' && c <= '9') {
        value = value * 16 + c - '0';
      } else if (lower >= 'a' && lower <= 'f') {
        value = value * 16 + lower - 'a' + 10;
      } else {
        break;
      }
      ++pos_;
    }
    if (num == 0 || (width != 6 && num < width)) return error("an escape with too few hex digits");
    if (value > kLastCodePoint) return error("an escape beyond Unicode");
    if (value >= 0xD800 && value <= 0xDFFF) {
      return error("an escape of half a character (write the character itself)");
    }
    return CharSet{{value, value}};
  }

  Result<RegexPtr> bracket() {
    const bool negated = take('^');
    std::vector<CharRange> ranges;
    while (!done() && peek() != ']') {
      auto low = class_item();
      if (!low) return fail(low.error());
      const bool single = low->size() == 1 && (*low)[0].first == (*low)[0].last;
      if (single && peek() == '-' && peek(1) != ']' && peek(1) != 0) {
        ++pos_;
        auto high = class_item();
        if (!high) return fail(high.error());
        if (high->size() != 1 || (*high)[0].first != (*high)[0].last) {
          return error("a range that ends in a class");
        }
        if ((*high)[0].first < (*low)[0].first) return error("a range with its ends exchanged");
        ranges.push_back({(*low)[0].first, (*high)[0].first});
      } else {
        ranges.insert(ranges.end(), low->begin(), low->end());
      }
    }
    if (!take(']')) return error("a \"[\" without its \"]\"");
    CharSet set = char_set(std::move(ranges));
    return one_of(negated ? complement(set) : std::move(set));
  }

  Result<CharSet> class_item() {
    const uint32_t c = peek();
    ++pos_;
    if (c == '\\') return escape(true);
    return CharSet{{c, c}};
  }

  std::vector<uint32_t> chars_;
  size_t pos_ = 0;
  const std::string& where_;
};

RegexPtr any_text() {
  return make(
      {.kind = Kind::kRepeat, .parts = {one_of(complement({}))}, .min = 0, .max = kUnbounded});
}

bool has_anchor(const RegexPtr& regex) {
  return regex->kind == Kind::kBegin || regex->kind == Kind::kEnd ||
         std::any_of(regex->parts.begin(), regex->parts.end(), has_anchor);
}

/// Takes the anchors off the ends of an alternative; what stays between must have none.
Result<RegexPtr> resolve(const RegexPtr& regex, RegexMode mode, bool begun, bool ended,
                         const std::string& where) {
  if (regex->kind == Kind::kChoice && (has_anchor(regex) || mode == RegexMode::kSearch)) {
    std::vector<RegexPtr> alternatives;
    for (const RegexPtr& part : regex->parts) {
      auto resolved = resolve(part, mode, begun, ended, where);
      if (!resolved) return resolved;
      alternatives.push_back(*resolved);
    }
    return make({.kind = Kind::kChoice, .parts = std::move(alternatives)});
  }
  std::vector<RegexPtr> parts =
      regex->kind == Kind::kSequence ? regex->parts : std::vector<RegexPtr>{regex};
  while (!parts.empty() && parts.front()->kind == Kind::kBegin) {
    begun = true;
    parts.erase(parts.begin());
  }
  while (!parts.empty() && parts.back()->kind == Kind::kEnd) {
    ended = true;
    parts.pop_back();
  }
  if (parts.size() == 1 && parts[0]->kind == Kind::kChoice && has_anchor(parts[0])) {
    return resolve(parts[0], mode, begun, ended, where);
  }
  if (std::any_of(parts.begin(), parts.end(), has_anchor)) {
    return fail("^ and $ are supported at the ends of an alternative only", where);
  }
  if (mode == RegexMode::kSearch) {
    if (!begun) parts.insert(parts.begin(), any_text());
    if (!ended) parts.push_back(any_text());
  }
  if (parts.size() == 1) return parts[0];
  if (parts.empty()) return make({});
  return make({.kind = Kind::kSequence, .parts = std::move(parts)});
}

}  // namespace

int64_t weight(const RegexPtr& regex) {
  constexpr int64_t kMany = int64_t{1} << 40;
  // Anchors are no characters. What is repeated counts as one at least, so that repeats of anchors
  // are bounded too.
  const bool is_anchor = regex->kind == Kind::kBegin || regex->kind == Kind::kEnd;
  int64_t sum = regex->parts.empty() && !is_anchor ? 1 : 0;
  for (const RegexPtr& part : regex->parts) sum = std::min(kMany, sum + weight(part));
  if (regex->kind == Kind::kRepeat) {
    const int64_t times = std::max<int64_t>({1, regex->min, regex->max});
    sum = std::min(kMany, std::max<int64_t>(1, sum) * times);
  }
  return sum;
}

Result<RegexPtr> parse_regex(std::string_view pattern, const std::string& where) {
  if (pattern.size() > kMaxPatternBytes) {
    return fail("a pattern of " + std::to_string(pattern.size()) + " bytes", where,
                "at most " + std::to_string(kMaxPatternBytes) + " are supported");
  }
  if (!is_valid_utf8(pattern)) return fail("the pattern is no valid UTF-8", where);
  return Parser(pattern, where).run();
}

Result<RegexPtr> resolve_anchors(const RegexPtr& regex, RegexMode mode, const std::string& where) {
  if (weight(regex) > kMaxRepeats) {
    return fail(
        "the pattern's repeats stand for more than " + std::to_string(kMaxRepeats) + " characters",
        where, "ask for fewer repeats, or nest fewer of them");
  }
  return resolve(regex, mode, false, false, where);
}

}  // namespace moxie::grammar
