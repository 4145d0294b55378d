// JSON strings of bounded length, checked by counting characters instead of by the grammar.
//
// A grammar would need a state for each character still to come, and a mask over the whole
// vocabulary for each state. So the grammar holds one mark in the string's place, and the matcher
// counts: while the bounds are far, any token of string characters may come.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar_rules.h"
#include "text/grammar_vocabulary.h"

namespace moxie::grammar {

/// A string between quotes: `min` to `max` (kUnbounded: any number) characters of `set`, and none
/// of the texts in `excluded` (sorted, in UTF-8), however it is spelled.
struct CountedString {
  CharSet set;
  int64_t min = 0;
  int64_t max = kUnbounded;
  std::vector<std::string> excluded;
  bool operator==(const CountedString&) const = default;
};

/// The characters that JSON strings of grammars may have; no halves of surrogate pairs.
CharSet string_chars();

/// EBNF in which the private character kFirstMark + i, between quotes, stands for counted[i].
struct Translation {
  std::string ebnf;
  std::vector<CountedString> counted;
};
constexpr uint32_t kFirstMark = 0xF0000;
constexpr size_t kMaxCounted = 256;
/// The last code point in strings of grammars. Marks are above it, so that only marks begin with
/// their first bytes of UTF-8.
constexpr uint32_t kLastTextCodePoint = 0xBFFFF;
bool has_mark_byte(std::string_view text);

/// The state inside a string, between any two bytes. Half a surrogate pair is not a character.
class StringState {
 public:
  enum class Step {
    kInside,  ///< within a character
    kChar,    ///< a character has ended
    kClosed,  ///< the closing quote
    kRefused,
  };
  Step step(unsigned char byte, const CharSet& set);
  bool between_chars() const { return kind_ == Kind::kPlain; }
  /// The character that ended last, escapes read.
  uint32_t last_char() const { return last_char_; }

 private:
  enum class Kind : uint8_t { kPlain, kUtf8, kEscape, kHex, kLowBackslash, kLowU };
  Step in_plain(unsigned char byte, const CharSet& set);
  Step begin_hex();
  Step in_hex(unsigned char byte, const CharSet& set);
  Step end(uint32_t code_point, const CharSet& set);
  bool utf8_meets(const CharSet& set) const;
  Kind kind_ = Kind::kPlain;
  uint8_t left_ = 0;    // bytes or digits to come
  uint32_t value_ = 0;  // of the bytes or digits so far
  uint32_t least_ = 0;  // kUtf8: below this the form is too long
  uint32_t high_ = 0;   // the first half of a pair
  uint32_t last_char_ = 0;
};

/// The text of a string so far, as long as it may still become an excluded one.
class ExcludedTexts {
 public:
  /// `string` must outlive this.
  explicit ExcludedTexts(const CountedString& string) : is_open_(!string.excluded.empty()) {}
  bool is_open() const { return is_open_; }  ///< it may still become one
  void add(uint32_t code_point, const CountedString& string);
  bool is_excluded(const CountedString& string) const;

 private:
  bool is_open_;
  std::string text_;
};

/// The effect of each token inside a string over one character set.
class StringTable {
 public:
  StringTable(const Vocabulary& vocabulary, const CharSet& set, const StringState& from = {});

  struct Closer {
    int32_t id;
    int32_t num_chars;      ///< before the quote
    std::string_view text;  ///< up to the quote
    std::string_view rest;  ///< from the quote on
  };
  /// Tokens that close the string, those with equal rests together.
  const std::vector<Closer>& closers() const { return closers_; }
  /// Sets the bits of tokens that stay inside and complete at most `room` characters.
  void add_inside(int64_t room, std::span<uint32_t> mask) const;

 private:
  static constexpr int32_t kMaxChars = 255;  // of one token; longer ones are left out
  std::vector<int32_t> inside_;              // tokens by their number of characters
  std::vector<size_t> num_up_to_;  // [kMaxChars + 1]: how many of them have at most so many
  std::vector<Closer> closers_;
  std::vector<uint32_t> all_inside_;
};

}  // namespace moxie::grammar
