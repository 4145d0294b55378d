// JSON Schema as a grammar: EBNF whose every text is JSON valid under the schema. The reverse does
// not hold: valid JSON in another order, with other white space or with more digits is not in the
// grammar.
//
// Objects are written with their declared names in the schema's order, each at most once.
// Undeclared names come last, and only if additionalProperties (or the lack of any declared name)
// admits them. docs/structured-output.md lists the keywords.
#pragma once

#include <string>
#include <string_view>

#include "core/base.h"
#include "text/grammar_counted.h"

namespace moxie::grammar {

/// Fails if the schema cannot be enforced exactly, if no value is valid, or if it exceeds the
/// limits; the error names the first keywords at fault. `where` names the schema in errors.
/// `compact`: without white space.
Result<Translation> translate_schema(std::string_view schema_json, const std::string& where,
                                     bool compact = false);

/// Fails if the text is not a JSON Schema; ignores whether it could be enforced.
Status check_schema(std::string_view schema_json, const std::string& where);

/// Any JSON object.
Translation any_json_object(bool compact = false);

/// The texts that match `pattern` from end to end.
Result<Translation> translate_regex(std::string_view pattern, const std::string& where);

}  // namespace moxie::grammar
