// Numbers within bounds: digit strings compared from the left, where a prefix is "tight" as long as
// it equals the bound's, and free from the first digit that differs.
#include "text/grammar_number.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace moxie::grammar {
namespace {

constexpr size_t kMaxIntegerDigits = 18;  // below 2^63
constexpr size_t kMaxSignificant = 15;    // different decimals of 15 digits differ as doubles too
constexpr size_t kUsualFraction = 6;      // digits behind the point where there are bounds
constexpr size_t kMaxMultipleRules = 3'000;

struct Integer {
  bool negative = false;
  std::string digits;  // "" is zero
};

int compare_digits(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
  return a.compare(b);
}

std::string plus_one(std::string digits) {
  for (size_t i = digits.size(); i-- > 0;) {
    if (digits[i] != '9') {
      ++digits[i];
      return digits;
    }
    digits[i] = '0';
  }
  return "1" + digits;
}

/// digits > 0.
std::string minus_one(std::string digits) {
  for (size_t i = digits.size(); i-- > 0;) {
    if (digits[i] != '0') {
      --digits[i];
      break;
    }
    digits[i] = '9';
  }
  const size_t first = digits.find_first_not_of('0');
  return first == std::string::npos ? "" : digits.substr(first);
}

/// The least whole number that a lower bound admits.
Integer least(const Bound& bound) {
  const Decimal& d = bound.value;
  const bool beyond = bound.exclusive && d.fraction.empty();
  if (!d.negative) {
    return {false, !d.fraction.empty() || beyond ? plus_one(d.whole) : d.whole};
  }
  if (!d.fraction.empty()) return {!d.whole.empty(), d.whole};
  std::string digits = beyond ? minus_one(d.whole) : d.whole;
  return {!digits.empty(), digits};
}

Decimal negated(Decimal d) {
  d.negative = !d.negative && !d.is_zero();
  return d;
}

Integer greatest(const Bound& bound) {
  Integer mirrored = least({negated(bound.value), bound.exclusive});
  mirrored.negative = !mirrored.negative && !mirrored.digits.empty();
  return mirrored;
}

ExprId digit_range(Rules& rules, char first, char last) {
  return rules.one_of({{static_cast<uint32_t>(first), static_cast<uint32_t>(last)}});
}
ExprId free_digits(Rules& rules, size_t min, size_t max) {
  return rules.repeat(digit_range(rules, '0', '9'), static_cast<int32_t>(min),
                      static_cast<int32_t>(max));
}

/// Digit strings of one length between `low` and `high`, multiples of `modulus` (1: all).
class SameLength {
 public:
  SameLength(Rules& rules, std::string low, std::string high, int modulus)
      : rules_(rules), low_(std::move(low)), high_(std::move(high)), modulus_(modulus) {}

  ExprId expr() { return from(0, 0, true, true); }

 private:
  ExprId from(size_t pos, int remainder, bool at_low, bool at_high) {
    if (pos == low_.size()) return remainder == 0 ? rules_.empty() : rules_.never();
    if (modulus_ == 1 && !at_low && !at_high) {
      return free_digits(rules_, low_.size() - pos, low_.size() - pos);
    }
    const auto key = std::make_tuple(pos, remainder, at_low, at_high);
    if (const auto it = known_.find(key); it != known_.end()) return it->second;
    const char first = at_low ? low_[pos] : '0';
    const char last = at_high ? high_[pos] : '9';
    std::vector<ExprId> ways;
    for (char c = first; c <= last;) {
      const bool low = at_low && c == first;
      const bool high = at_high && c == last;
      char end = c;
      if (modulus_ == 1 && !low && !high) end = at_high ? static_cast<char>(last - 1) : last;
      const int next = (remainder * 10 + (c - '0')) % modulus_;
      ways.push_back(rules_.sequence(
          {digit_range(rules_, c, end), from(pos + 1, modulus_ == 1 ? 0 : next, low, high)}));
      c = static_cast<char>(end + 1);
    }
    ExprId expr = rules_.choice(std::move(ways));
    if (modulus_ > 1) expr = rules_.shared(expr);
    known_[key] = expr;
    return expr;
  }

  Rules& rules_;
  std::string low_, high_;
  int modulus_;
  std::map<std::tuple<size_t, int, bool, bool>, ExprId> known_;
};

/// Whole numbers from `low` to `high`, both without sign.
ExprId magnitudes(Rules& rules, const std::string& low, const std::string& high, int modulus) {
  if (compare_digits(low, high) > 0) return rules.never();
  std::vector<ExprId> ways;
  if (low.empty()) ways.push_back(rules.text("0"));
  size_t full_from = 0;  // all digit strings of these lengths are inside: written together
  const auto flush = [&](size_t end) {
    if (full_from == 0) return;
    ways.push_back(
        rules.sequence({digit_range(rules, '1', '9'), free_digits(rules, full_from - 1, end - 1)}));
    full_from = 0;
  };
  for (size_t length = std::max<size_t>(1, low.size()); length <= high.size(); ++length) {
    const std::string least_of = "1" + std::string(length - 1, '0');
    const std::string most_of(length, '9');
    const std::string from = compare_digits(low, least_of) > 0 ? low : least_of;
    const std::string to = compare_digits(high, most_of) < 0 ? high : most_of;
    if (modulus == 1 && from == least_of && to == most_of) {
      if (full_from == 0) full_from = length;
      continue;
    }
    flush(length - 1);
    ways.push_back(SameLength(rules, from, to, modulus).expr());
  }
  flush(high.size());
  return rules.choice(std::move(ways));
}

/// Multiples of `modulus` without bounds: one rule for each remainder.
ExprId any_multiple(Rules& rules, int modulus, bool with_sign, bool with_zero) {
  std::vector<RuleId> states;
  for (int i = 0; i < modulus; ++i) states.push_back(rules.add_rule());
  const auto step = [&](int remainder, char from) {
    std::vector<ExprId> ways;
    for (char c = from; c <= '9'; ++c) {
      const int next = (remainder * 10 + (c - '0')) % modulus;
      ways.push_back(
          rules.sequence({digit_range(rules, c, c), rules.ref(states[static_cast<size_t>(next)])}));
    }
    return rules.choice(std::move(ways));
  };
  for (int i = 0; i < modulus; ++i) {
    ExprId body = step(i, '0');
    if (i == 0) body = rules.optional(body);
    rules.define(states[static_cast<size_t>(i)], body);
  }
  ExprId expr = step(0, '1');
  if (with_sign) expr = rules.sequence({rules.optional(rules.text("-")), expr});
  return with_zero ? rules.choice({rules.text("0"), expr}) : expr;
}

/// The text after the whole digits of an unsigned number: nothing, or a point and digits.
class Fraction {
 public:
  /// `low`, `high`: digits of a bound's fraction, if the whole digits equal that bound's.
  Fraction(Rules& rules, const Bound* low, const Bound* high, size_t max_digits)
      : rules_(rules), low_(low), high_(high), max_digits_(max_digits) {}

  ExprId expr() {
    const ExprId none =
        may_end(0, low_ != nullptr, high_ != nullptr) ? rules_.empty() : rules_.never();
    if (max_digits_ == 0) return none;
    return rules_.choice(
        {none, rules_.sequence({rules_.text("."), digits(0, low_ != nullptr, high_ != nullptr)})});
  }

 private:
  static char at(const Bound* bound, size_t pos) {
    const std::string& digits = bound->value.fraction;
    return pos < digits.size() ? digits[pos] : '0';
  }
  bool may_end(size_t pos, bool at_low, bool at_high) const {
    if (at_low) {
      if (pos < low_->value.fraction.size()) return false;
      if (low_->exclusive) return false;
    }
    return !at_high || pos < high_->value.fraction.size() || !high_->exclusive;
  }
  ExprId digits(size_t pos, bool at_low, bool at_high) {
    const bool end = pos > 0 && may_end(pos, at_low, at_high);
    if (pos == max_digits_) return end ? rules_.empty() : rules_.never();
    if (!at_low && !at_high) {
      return free_digits(rules_, pos == 0 ? 1 : 0, max_digits_ - pos);
    }
    const char first = at_low ? at(low_, pos) : '0';
    const char last = at_high ? at(high_, pos) : '9';
    std::vector<ExprId> ways;
    if (end) ways.push_back(rules_.empty());
    for (char c = first; c <= last;) {
      const bool low = at_low && c == first;
      const bool high = at_high && c == last;
      char until = c;
      if (!low && !high) until = at_high ? static_cast<char>(last - 1) : last;
      ways.push_back(rules_.sequence({digit_range(rules_, c, until), digits(pos + 1, low, high)}));
      c = static_cast<char>(until + 1);
    }
    return rules_.choice(std::move(ways));
  }

  Rules& rules_;
  const Bound* low_;
  const Bound* high_;
  size_t max_digits_;
};

/// Numbers without sign from `low` to `high`, neither negative.
ExprId magnitudes_with_fraction(Rules& rules, const Bound& low, const Bound& high,
                                size_t max_digits) {
  const auto shown = [&](const std::string& whole) {
    return rules.text(whole.empty() ? "0" : whole);
  };
  const int order = compare_digits(low.value.whole, high.value.whole);
  if (order > 0) return rules.never();
  if (order == 0) {
    return rules.sequence(
        {shown(low.value.whole), Fraction(rules, &low, &high, max_digits).expr()});
  }
  const ExprId inner = magnitudes(rules, plus_one(low.value.whole), minus_one(high.value.whole), 1);
  return rules.choice(
      {rules.sequence({shown(low.value.whole), Fraction(rules, &low, nullptr, max_digits).expr()}),
       rules.sequence({inner, Fraction(rules, nullptr, nullptr, max_digits).expr()}),
       rules.sequence(
           {shown(high.value.whole), Fraction(rules, nullptr, &high, max_digits).expr()})});
}

bool is_power_of_ten(const Decimal& d) {
  return d.whole.empty() && d.fraction.find_first_not_of('0') == d.fraction.size() - 1 &&
         d.fraction.back() == '1';
}

Decimal ten_to_the(size_t digits) { return {false, "1" + std::string(digits, '0'), ""}; }

}  // namespace

std::optional<Decimal> Decimal::parse(const std::string& json) {
  Decimal d;
  size_t i = 0;
  if (i < json.size() && json[i] == '-') d.negative = true, ++i;
  long exponent = 0;
  std::string digits;
  bool point = false;
  for (; i < json.size(); ++i) {
    const char c = json[i];
    if (c >= '0' && c <= '9') {
      digits += c;
      if (point) --exponent;
    } else if (c == '.' && !point) {
      point = true;
    } else if (c == 'e' || c == 'E') {
      exponent += std::strtol(json.c_str() + i + 1, nullptr, 10);
      break;
    } else {
      return std::nullopt;
    }
  }
  const size_t first = digits.find_first_not_of('0');
  digits = first == std::string::npos ? "" : digits.substr(first);
  if (digits.empty()) return Decimal{};
  if (exponent > 40 || exponent < -400) return std::nullopt;
  if (exponent >= 0) {
    d.whole = digits + std::string(static_cast<size_t>(exponent), '0');
  } else {
    const auto behind = static_cast<size_t>(-exponent);
    if (digits.size() < behind) digits.insert(0, behind - digits.size(), '0');
    d.whole = digits.substr(0, digits.size() - behind);
    d.fraction = digits.substr(digits.size() - behind);
    d.fraction.erase(d.fraction.find_last_not_of('0') + 1);
  }
  if (d.whole.size() > 40 || d.fraction.size() > 20) return std::nullopt;
  if (d.is_zero()) d.negative = false;
  return d;
}

std::string Decimal::text() const {
  return (negative ? "-" : "") + (whole.empty() ? "0" : whole) +
         (fraction.empty() ? "" : "." + fraction);
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  int order = compare_digits(a.whole, b.whole);
  if (order == 0) order = a.fraction.compare(b.fraction);
  return a.negative ? -order : order;
}

NumberRange intersection(const NumberRange& a, const NumberRange& b) {
  NumberRange out = a;
  if (b.min) {
    const int order = out.min ? compare(b.min->value, out.min->value) : 1;
    if (order > 0 || (order == 0 && b.min->exclusive)) out.min = b.min;
  }
  if (b.max) {
    const int order = out.max ? compare(b.max->value, out.max->value) : -1;
    if (order < 0 || (order == 0 && b.max->exclusive)) out.max = b.max;
  }
  if (b.multiple_of) out.multiple_of = b.multiple_of;
  return out;
}

bool contains(const NumberRange& range, const Decimal& value) {
  if (range.min) {
    const int order = compare(value, range.min->value);
    if (order < 0 || (order == 0 && range.min->exclusive)) return false;
  }
  if (range.max) {
    const int order = compare(value, range.max->value);
    if (order > 0 || (order == 0 && range.max->exclusive)) return false;
  }
  return true;
}

bool is_multiple(const Decimal& value, const Decimal& of) {
  // Both as whole numbers of the smallest digit's unit; long division by at most 18 digits.
  const size_t places = std::max(value.fraction.size(), of.fraction.size());
  const auto scaled = [&](const Decimal& d) {
    return d.whole + d.fraction + std::string(places - d.fraction.size(), '0');
  };
  std::string divisor = scaled(of);
  divisor.erase(0, divisor.find_first_not_of('0'));
  if (divisor.size() > 18) return false;
  const uint64_t by = std::strtoull(divisor.c_str(), nullptr, 10);
  unsigned __int128 remainder = 0;
  for (const char c : scaled(value)) {
    remainder = (remainder * 10 + static_cast<unsigned>(c - '0')) % by;
  }
  return remainder == 0;
}

Result<ExprId> integer_expr(Rules& rules, const NumberRange& range, const std::string& where) {
  int modulus = 1;
  if (range.multiple_of) {
    const Decimal& of = *range.multiple_of;
    const bool is_unit_part = of.whole.empty() && is_power_of_ten(of);
    if (!is_unit_part) {
      if (!of.fraction.empty() || of.whole.size() > 4 || std::stoi(of.whole) > 1000) {
        return fail("multipleOf " + of.text() + " is not supported for integers", where,
                    "whole numbers up to 1000 are");
      }
      modulus = std::stoi(of.whole);
    }
  }
  if (modulus > 1 && !range.max) {
    const bool whole = !range.min;
    const Integer low = whole ? Integer{} : least(*range.min);
    const bool below_first = !low.negative && low.digits.size() <= 4 &&
                             (low.digits.empty() || std::stoi(low.digits) <= modulus);
    if (whole || below_first) return any_multiple(rules, modulus, whole, low.digits.empty());
  }
  Integer low = {true, std::string(kMaxIntegerDigits, '9')};
  Integer high = {false, std::string(kMaxIntegerDigits, '9')};
  if (range.min) low = least(*range.min);
  if (range.max) high = greatest(*range.max);
  if (!range.max && high.digits.size() <= low.digits.size() && !low.negative) {
    high.digits = std::string(low.digits.size() + 1, '9');
  }
  if (!range.min && low.digits.size() <= high.digits.size() && high.negative) {
    low.digits = std::string(high.digits.size() + 1, '9');
  }
  const size_t length = std::max(low.digits.size(), high.digits.size());
  if (modulus > 1 && length * length * static_cast<size_t>(modulus) > kMaxMultipleRules * 10) {
    return fail("multipleOf " + std::to_string(modulus) + " with bounds of " +
                    std::to_string(length) + " digits makes too large a grammar",
                where, "drop a bound, or choose a smaller multipleOf");
  }
  std::vector<ExprId> ways;
  if (!high.negative) {
    ways.push_back(magnitudes(rules, low.negative ? "" : low.digits, high.digits, modulus));
  }
  if (low.negative) {
    ways.push_back(
        rules.sequence({rules.text("-"), magnitudes(rules, high.negative ? high.digits : "1",
                                                    low.digits, modulus)}));
  }
  return rules.choice(std::move(ways));
}

Result<ExprId> number_expr(Rules& rules, const NumberRange& range, const std::string& where) {
  size_t max_digits = kUsualFraction;
  if (range.multiple_of) {
    const Decimal& of = *range.multiple_of;
    if (of.fraction.empty()) return integer_expr(rules, range, where);
    if (!is_power_of_ten(of)) {
      return fail("multipleOf " + of.text() + " is not supported", where,
                  "whole numbers up to 1000 and 0.1, 0.01, 0.001, ... are");
    }
    max_digits = of.fraction.size();
  } else if (!range.min && !range.max) {
    const ExprId whole = magnitudes(rules, "", std::string(kMaxSignificant, '9'), 1);
    const ExprId fraction = rules.sequence({rules.text("."), free_digits(rules, 1, 15)});
    const ExprId exponent = rules.sequence({rules.one_of({{'E', 'E'}, {'e', 'e'}}),
                                            rules.optional(rules.one_of({{'+', '+'}, {'-', '-'}})),
                                            free_digits(rules, 1, 2)});
    return rules.sequence({rules.optional(rules.text("-")), whole, rules.optional(fraction),
                           rules.optional(exponent)});
  }
  Bound low = range.min.value_or(Bound{negated(ten_to_the(kMaxSignificant)), true});
  Bound high = range.max.value_or(Bound{ten_to_the(kMaxSignificant), true});
  const auto widen = [](const Bound& known) {
    return Bound{ten_to_the(std::max(kMaxSignificant, known.value.whole.size() + 1)), true};
  };
  if (!range.max) high = widen(low);
  if (!range.min) low = widen(high), low.value = negated(low.value);
  if (!range.multiple_of) {
    size_t whole = 0;
    for (const auto* bound : {&range.min, &range.max}) {
      if (!*bound) continue;
      whole = std::max(whole, (*bound)->value.whole.size());
      max_digits = std::max(max_digits, (*bound)->value.fraction.size() + 1);
    }
    max_digits = std::min(max_digits, whole < kMaxSignificant ? kMaxSignificant - whole : 0);
  }
  const Bound zero = {Decimal{}, false};
  const Bound above_zero = {Decimal{}, true};
  std::vector<ExprId> ways;
  if (!high.value.negative) {
    ways.push_back(
        magnitudes_with_fraction(rules, low.value.negative ? zero : low, high, max_digits));
  }
  if (low.value.negative) {
    Bound most = low;
    most.value = negated(most.value);
    Bound fewest = above_zero;
    if (high.value.negative) fewest = {negated(high.value), high.exclusive};
    ways.push_back(rules.sequence(
        {rules.text("-"), magnitudes_with_fraction(rules, fewest, most, max_digits)}));
  }
  return rules.choice(std::move(ways));
}

}  // namespace moxie::grammar
