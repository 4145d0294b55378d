#include "text/grammar_counted.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "text/utf8.h"

namespace moxie::grammar {

CharSet string_chars() { return {{0, 0xD7FF}, {0xE000, kLastTextCodePoint}}; }

bool has_mark_byte(std::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) >= 0xF3; });
}

namespace {

bool meets(const CharSet& set, uint32_t first, uint32_t last) {
  return std::any_of(set.begin(), set.end(), [&](const CharRange& range) {
    return range.first <= last && first <= range.last;
  });
}

/// The character of a pair of halves.
uint32_t joined(uint32_t high, uint32_t low) {
  return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
}

/// Whether `\\u` with digits from `first` to `last` can still become a character of the set;
/// `high`: the half before it, or 0.
bool hex_meets(const CharSet& set, uint32_t first, uint32_t last, uint32_t high) {
  if (high != 0) {
    const uint32_t from = std::max(first, 0xDC00u), to = std::min(last, 0xDFFFu);
    return from <= to && meets(set, joined(high, from), joined(high, to));
  }
  const uint32_t from = std::max(first, 0xD800u), to = std::min(last, 0xDBFFu);
  return (first < 0xD800 && meets(set, first, std::min(last, 0xD7FFu))) ||
         (last > 0xDFFF && meets(set, std::max(first, 0xE000u), last)) ||
         (from <= to && meets(set, joined(from, 0xDC00), joined(to, 0xDFFF)));
}

}  // namespace

StringState::Step StringState::end(uint32_t code_point, const CharSet& set) {
  kind_ = Kind::kPlain;
  last_char_ = code_point;
  return contains(set, code_point) ? Step::kChar : Step::kRefused;
}

/// Whether the bytes so far can become a character of the set: a token may end inside one.
bool StringState::utf8_meets(const CharSet& set) const {
  const uint32_t first = std::max(value_ << 6 * left_, least_);
  const uint32_t last = value_ << 6 * left_ | ((1u << 6 * left_) - 1);
  return first <= last && meets(set, first, last);
}

StringState::Step StringState::step(unsigned char byte, const CharSet& set) {
  switch (kind_) {
    case Kind::kPlain:
      return in_plain(byte, set);
    case Kind::kUtf8:
      if ((byte & 0xC0) != 0x80) return Step::kRefused;
      value_ = value_ << 6 | (byte & 0x3F);
      --left_;
      if (!utf8_meets(set)) return Step::kRefused;
      return left_ > 0 ? Step::kInside : end(value_, set);
    case Kind::kEscape: {
      static constexpr std::string_view kEscaped = "\"\\/bfnrt";
      static constexpr std::string_view kMeant = "\"\\/\b\f\n\r\t";
      if (byte == 'u') return begin_hex();
      const size_t at = kEscaped.find(static_cast<char>(byte));
      if (at == std::string_view::npos) return Step::kRefused;
      return end(static_cast<unsigned char>(kMeant[at]), set);
    }
    case Kind::kHex:
      return in_hex(byte, set);
    case Kind::kLowBackslash:
      if (byte != '\\') return Step::kRefused;
      kind_ = Kind::kLowU;
      return Step::kInside;
    case Kind::kLowU:
      return byte == 'u' ? begin_hex() : Step::kRefused;
  }
  return Step::kRefused;
}

StringState::Step StringState::in_plain(unsigned char byte, const CharSet& set) {
  if (byte == '"') return Step::kClosed;
  if (byte == '\\') {
    kind_ = Kind::kEscape;
    return Step::kInside;
  }
  if (byte < 0x20) return Step::kRefused;
  if (byte < 0x80) return end(byte, set);
  if (byte < 0xC2 || byte > 0xF2) return Step::kRefused;
  left_ = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
  least_ = left_ == 1 ? 0x80 : left_ == 2 ? 0x800 : 0x10000;
  value_ = byte & (0x3Fu >> left_);
  kind_ = Kind::kUtf8;
  return utf8_meets(set) ? Step::kInside : Step::kRefused;
}

StringState::Step StringState::begin_hex() {
  kind_ = Kind::kHex;
  left_ = 4;
  value_ = 0;
  return Step::kInside;
}

StringState::Step StringState::in_hex(unsigned char byte, const CharSet& set) {
  const unsigned lower = byte | 0x20u;
  if (byte >= '0' && byte <= '9') {
    value_ = value_ * 16 + byte - '0';
  } else if (lower >= 'a' && lower <= 'f') {
    value_ = value_ * 16 + lower - 'a' + 10;
  } else {
    return Step::kRefused;
  }
  --left_;
  const uint32_t first = value_ << 4 * left_;
  if (!hex_meets(set, first, first | ((1u << 4 * left_) - 1), high_)) return Step::kRefused;
  if (left_ > 0) return Step::kInside;
  if (high_ != 0) {
    const uint32_t whole = joined(high_, value_);
    high_ = 0;
    return end(whole, set);
  }
  if (value_ < 0xD800 || value_ > 0xDBFF) return end(value_, set);
  high_ = value_;
  kind_ = Kind::kLowBackslash;
  return Step::kInside;
}

void ExcludedTexts::add(uint32_t code_point, const CountedString& string) {
  if (!is_open_) return;
  append_utf8(code_point, &text_);
  const auto it = std::lower_bound(string.excluded.begin(), string.excluded.end(), text_);
  is_open_ = it != string.excluded.end() && it->rfind(text_, 0) == 0;
}

bool ExcludedTexts::is_excluded(const CountedString& string) const {
  return is_open_ && std::binary_search(string.excluded.begin(), string.excluded.end(), text_);
}

StringTable::StringTable(const Vocabulary& vocabulary, const CharSet& set, const StringState& from)
    : num_up_to_(kMaxChars + 1), all_inside_(vocabulary.text_mask().size()) {
  std::vector<std::pair<int32_t, int32_t>> counts;  // characters, id
  for (const int32_t id : vocabulary.sorted()) {
    const std::string_view text = vocabulary.text_of(id);
    StringState state = from;
    int32_t num = 0;
    auto step = StringState::Step::kInside;
    size_t i = 0;
    for (; i < text.size(); ++i) {
      step = state.step(static_cast<unsigned char>(text[i]), set);
      if (step == StringState::Step::kChar) ++num;
      if (step == StringState::Step::kClosed || step == StringState::Step::kRefused) break;
    }
    if (step == StringState::Step::kRefused) continue;
    if (step == StringState::Step::kClosed) {
      if (!has_mark_byte(text)) closers_.push_back({id, num, text.substr(0, i), text.substr(i)});
      continue;
    }
    if (!state.between_chars()) ++num;
    if (num > kMaxChars) continue;
    counts.emplace_back(num, id);
    set_bit(all_inside_, id);
  }
  std::sort(counts.begin(), counts.end());
  for (const auto& [num, id] : counts) {
    inside_.push_back(id);
    ++num_up_to_[static_cast<size_t>(num)];
  }
  for (size_t n = 1; n < num_up_to_.size(); ++n) num_up_to_[n] += num_up_to_[n - 1];
  std::sort(closers_.begin(), closers_.end(), [](const Closer& a, const Closer& b) {
    return std::tie(a.rest, a.id) < std::tie(b.rest, b.id);
  });
}

void StringTable::add_inside(int64_t room, std::span<uint32_t> mask) const {
  const size_t num =
      room < 0 ? 0 : num_up_to_[static_cast<size_t>(std::min<int64_t>(room, kMaxChars))];
  if (num < inside_.size() / 2) {
    for (size_t i = 0; i < num; ++i) set_bit(mask, inside_[i]);
    return;
  }
  std::vector<uint32_t> inside = all_inside_;
  for (size_t i = num; i < inside_.size(); ++i) {
    const auto id = static_cast<size_t>(inside_[i]);
    inside[id / 32] &= ~(uint32_t{1} << (id % 32));
  }
  for (size_t i = 0; i < inside.size(); ++i) mask[i] |= inside[i];
}

}  // namespace moxie::grammar
