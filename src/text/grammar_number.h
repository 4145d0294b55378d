// JSON numbers within bounds, as grammars over their decimal digits. The comparison is exact: digit
// by digit. The number of digits is limited, so that no parser to double rounds a number onto the
// wrong side of a bound.
#pragma once

#include <optional>
#include <string>

#include "core/base.h"
#include "text/grammar_rules.h"

namespace moxie::grammar {

/// A decimal number without exponent: no leading zeros in `whole` ("" below one), no trailing ones
/// in `fraction`. Zero is never negative.
struct Decimal {
  bool negative = false;
  std::string whole, fraction;

  /// Reads JSON's text of a number; none for magnitudes beyond 10^40 or below 10^-20.
  static std::optional<Decimal> parse(const std::string& json);
  std::string text() const;
  bool is_zero() const { return whole.empty() && fraction.empty(); }
};
int compare(const Decimal& a, const Decimal& b);  ///< <0, 0, >0

struct Bound {
  Decimal value;
  bool exclusive = false;
};

struct NumberRange {
  std::optional<Bound> min, max;
  std::optional<Decimal> multiple_of;  ///< above zero
};

/// The stricter bound at each end.
NumberRange intersection(const NumberRange& a, const NumberRange& b);
bool contains(const NumberRange& range, const Decimal& value);  ///< ignores multiple_of
bool is_multiple(const Decimal& value, const Decimal& of);

/// Whole numbers without fraction or exponent, at most 18 digits if unbounded. never() if the range
/// holds none; fails if multiple_of needs too large a grammar.
Result<ExprId> integer_expr(Rules& rules, const NumberRange& range, const std::string& where);
/// Numbers with at most 15 significant digits; exponents only where there are no bounds.
Result<ExprId> number_expr(Rules& rules, const NumberRange& range, const std::string& where);

}  // namespace moxie::grammar
