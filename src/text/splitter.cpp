// The seven alternatives, written by hand. Greedy runs need no general backtracking: the place that
// the expression would back up to is noted while the run is scanned (see WordEnds).
#include "text/splitter.h"

#include <array>
#include <cstdint>

#include "text/unicode.h"
#include "text/utf8.h"

namespace moxie {
namespace {

using ClassSet = uint32_t;

constexpr ClassSet set_of(CharClass c) { return 1u << static_cast<uint32_t>(c); }
constexpr ClassSet kMark = set_of(CharClass::kMark);
constexpr ClassSet kUncased = set_of(CharClass::kLetter) | kMark;
constexpr ClassSet kUpperRun = set_of(CharClass::kUpper) | kUncased;
constexpr ClassSet kLowerRun = set_of(CharClass::kLower) | kUncased;
constexpr ClassSet kNumber = set_of(CharClass::kNumber);
constexpr ClassSet kNewline = set_of(CharClass::kNewline);
constexpr ClassSet kSpace = set_of(CharClass::kSpace) | kNewline;  // \s
constexpr ClassSet kSymbol = set_of(CharClass::kOther) | kMark;    // [^\s\p{L}\p{N}]
constexpr ClassSet kPrefix = kSymbol | set_of(CharClass::kSpace);  // [^\r\n\p{L}\p{N}]

constexpr CharClass ascii_class(uint8_t byte) {
  if (byte == '\n' || byte == '\r') return CharClass::kNewline;
  if (byte == ' ' || (byte >= 0x09 && byte <= 0x0C)) return CharClass::kSpace;
  if (byte >= '0' && byte <= '9') return CharClass::kNumber;
  if (byte >= 'A' && byte <= 'Z') return CharClass::kUpper;
  if (byte >= 'a' && byte <= 'z') return CharClass::kLower;
  return CharClass::kOther;
}

constexpr std::array<uint8_t, 128> kAsciiSets = [] {
  std::array<uint8_t, 128> sets{};
  for (uint32_t byte = 0; byte < 128; ++byte) {
    sets[byte] = static_cast<uint8_t>(set_of(ascii_class(static_cast<uint8_t>(byte))));
  }
  return sets;
}();

struct Char {
  ClassSet set;  // the one class of the character; empty at the end of the text
  uint32_t size_bytes;
};

class Text {
 public:
  explicit Text(std::string_view text) : text_(text) {}

  Char at(size_t pos) const {
    if (pos >= text_.size()) return {0, 0};
    const uint8_t byte = static_cast<uint8_t>(text_[pos]);
    if (byte < 0x80) [[likely]] {
      return {kAsciiSets[byte], 1};
    }
    return beyond_ascii(pos);
  }
  uint8_t byte(size_t pos) const {
    return pos < text_.size() ? static_cast<uint8_t>(text_[pos]) : 0;
  }
  size_t skip(size_t pos, ClassSet set) const {
    for (Char c = at(pos); c.set & set; c = at(pos)) pos += c.size_bytes;
    return pos;
  }

 private:
  Char beyond_ascii(size_t pos) const {
    const Utf8Char c = decode_utf8(text_, pos);
    if (!c.valid) return {set_of(CharClass::kOther), 1};
    return {set_of(char_class(c.code_point)), c.size_bytes};
  }

  std::string_view text_;
};

// The letters of alternatives 1 and 2 from one start, without prefix and contraction.
struct WordEnds {
  size_t rule1 = 0;  // 0: no match, since a match is never empty and never ends at 0
  size_t rule2 = 0;
};

WordEnds word_ends(const Text& text, size_t start) {
  size_t pos = start;
  size_t last_uncased_end = 0;
  for (Char c = text.at(pos); c.set & kUpperRun; c = text.at(pos)) {
    pos += c.size_bytes;
    if (c.set & kLowerRun) last_uncased_end = pos;
  }
  const size_t upper_end = pos;
  const size_t lower_end = text.skip(upper_end, kLowerRun);
  if (lower_end > upper_end) return {.rule1 = lower_end};
  // The upper run took all: alternative 1 gives back characters until its lower run can have one.
  if (last_uncased_end > 0) return {.rule1 = last_uncased_end};
  if (upper_end > start) return {.rule2 = upper_end};
  return {};
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)? where case folding lets U+017F (C5 BF) stand for s.
size_t contraction_end(const Text& text, size_t pos) {
  if (text.byte(pos) != '\'') return pos;
  const uint8_t first = text.byte(pos + 1);
  const uint8_t second = text.byte(pos + 2);
  switch (first | 0x20) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return pos + 2;
    case 'r':
    case 'v':
      return (second | 0x20) == 'e' ? pos + 3 : pos;
    case 'l':
      return (second | 0x20) == 'l' ? pos + 3 : pos;
    default:
      return first == 0xC5 && second == 0xBF ? pos + 3 : pos;
  }
}

// Alternatives 1 and 2, each first with the prefix and then without it; 0 if neither matches.
size_t word_end(const Text& text, size_t start, Char first) {
  WordEnds with_prefix;
  if (first.set & kPrefix) {
    with_prefix = word_ends(text, start + first.size_bytes);
    if (with_prefix.rule1) return contraction_end(text, with_prefix.rule1);
  }
  if (first.set & (kUpperRun | kLowerRun)) {
    const WordEnds bare = word_ends(text, start);
    if (bare.rule1) return contraction_end(text, bare.rule1);
    // A mark is both a prefix and a letter of alternative 1, so here the first is upper case.
    if (bare.rule2) return contraction_end(text, bare.rule2);
  }
  if (with_prefix.rule2) return contraction_end(text, with_prefix.rule2);
  return 0;
}

size_t number_end(const Text& text, size_t pos) {
  for (int digits = 0; digits < 3; ++digits) {
    const Char c = text.at(pos);
    if (!(c.set & kNumber)) break;
    pos += c.size_bytes;
  }
  return pos;
}

// Alternative 4 behind its optional space.
size_t symbols_end(const Text& text, size_t pos) {
  pos = text.skip(pos, kSymbol);
  while (text.byte(pos) == '\n' || text.byte(pos) == '\r' || text.byte(pos) == '/') ++pos;
  return pos;
}

// Alternatives 5 to 7.
size_t space_end(const Text& text, size_t start) {
  size_t pos = start;
  size_t last_start = start;
  size_t newline_end = 0;
  for (Char c = text.at(pos); c.set & kSpace; c = text.at(pos)) {
    last_start = pos;
    pos += c.size_bytes;
    if (c.set & kNewline) newline_end = pos;
  }
  if (newline_end) return newline_end;
  const bool at_text_end = text.at(pos).set == 0;
  // Before other text the last space is left for the next piece, unless it is all there is.
  return at_text_end || last_start == start ? pos : last_start;
}

}  // namespace

size_t piece_end(std::string_view whole, size_t start) {
  const Text text(whole);
  const Char first = text.at(start);
  if (const size_t end = word_end(text, start, first)) return end;
  if (first.set & kNumber) return number_end(text, start);
  if (first.set & kSymbol) return symbols_end(text, start);
  if (text.byte(start) == ' ' && (text.at(start + 1).set & kSymbol)) {
    return symbols_end(text, start + 1);
  }
  return space_end(text, start);
}

}  // namespace moxie
