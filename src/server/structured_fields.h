// The fields that constrain an answer's text: response_format, vLLM's structured_outputs and its
// older guided_* names.
#pragma once

#include "server/requests.h"

namespace moxie {

/// {"json"|"regex"|"choice"|"grammar"|"json_object": ...}
ApiStatus read_structured_outputs(const Json& value, StructuredOutput* out);
/// One of these constraints, by its name `kind`; `param` names the field in errors.
ApiStatus read_structured(const std::string& kind, const Json& value, const std::string& param,
                          StructuredOutput* out);

/// `of` returns the request's GenerationFields.
template <class T, class Of>
void add_structured_fields(Fields<T>& f, Of of) {
  f.field(
      "response_format", {{"type", "object"}},
      [of](const Json& value, T& request) {
        return read_response_format(value, "response_format", &of(request).structured);
      },
      "text, json_object, or json_schema with a schema that the answer obeys");
  f.field(
      "structured_outputs", {{"type", "object"}},
      [of](const Json& value, T& request) {
        return read_structured_outputs(value, &of(request).structured);
      },
      "{json}, {regex}, {choice}, {grammar} or {json_object}: what the answer's text is");
  for (const char* kind : {"json", "regex", "choice", "grammar"}) {
    const std::string name = std::string("guided_") + kind;
    f.field(
        name, Json::object(),
        [of, name, kind](const Json& value, T& request) {
          return read_structured(kind, value, name, &of(request).structured);
        },
        std::string("the older name of structured_outputs.") + kind);
  }
}

}  // namespace moxie
