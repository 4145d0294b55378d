// JSON Schema as a grammar: EBNF whose every text is JSON that holds against the schema.
//
// Objects are written with their declared names in the schema's order, each at most once; names
// that nothing declares come last, and only where additionalProperties (or the lack of any declared
// name) admits them. The reverse does not hold: valid JSON in another order, with other white space
// or with more digits is not in the grammar. docs/structured-output.md lists the keywords.
#pragma once

#include <string>
#include <string_view>

#include "core/base.h"
#include "text/grammar_counted.h"

namespace moxie::grammar {

/// Fails, naming every keyword at fault (up to a few), where the schema cannot be enforced exactly,
/// where no value holds, and where it is larger than the limits. `where` names it in errors.
/// `compact`: without white space.
Result<Translation> translate_schema(std::string_view schema_json, const std::string& where,
                                     bool compact = false);

/// Fails where the text is no JSON Schema at all, whether it could be enforced or not.
Status check_schema(std::string_view schema_json, const std::string& where);

/// Any JSON object.
Translation any_json_object(bool compact = false);

/// The texts that match `pattern` from end to end.
Result<Translation> translate_regex(std::string_view pattern, const std::string& where);

}  // namespace moxie::grammar
