// Shared by all endpoints: a request's error and its JSON forms, bounded parsing of bodies, and
// messages about values of a wrong type.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "server/http.h"

namespace moxie {

using Json = nlohmann::ordered_json;

/// An error of a request, mostly the client's. `param` names the field ("messages[2].content"),
/// `code` is for programs.
struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param, code;
  double retry_after_s = 0;  ///< 429 and 503
  Json details = {};         ///< for programs, in Anthropic's form only; null: none
};

template <typename T>
using Api = tl::expected<T, ApiError>;
using ApiStatus = tl::expected<void, ApiError>;

tl::unexpected<ApiError> invalid(std::string param, std::string message, std::string code = {});
/// "expected a number, but found a string".
tl::unexpected<ApiError> wrong_type(std::string param, std::string_view expected,
                                    const Json& found);
tl::unexpected<ApiError> unsupported(std::string param, std::string message);

enum class ErrorForm : uint8_t { kOpenAi, kAnthropic };
/// {"error": {"message", "type", "param", "code"}}, or Anthropic's {"type": "error", "error":
/// {"type", "message"}}.
Json error_json(const ApiError& error, ErrorForm form);
HttpResponse error_response(const ApiError& error, ErrorForm form = ErrorForm::kOpenAi);

HttpResponse json_response(const Json& document, int status = 200);

/// Parses a request's body: one JSON object in well-formed UTF-8, without lone surrogates or NUL
/// characters, within bounds of depth and size.
Api<Json> parse_body(std::string_view body);

/// JSON text on one line; broken UTF-8 becomes U+FFFD.
std::string to_text(const Json& document);
/// Appends `text` as a JSON string with its quotes.
void append_json_string(std::string_view text, std::string* out);

/// Seconds since 1970.
int64_t unix_time();

/// "a string", "an object", ...: the kind of a value.
std::string_view kind_of(const Json& value);

/// A member of the object; null if it is missing or JSON's null.
const Json* find_member(const Json& object, std::string_view key);

}  // namespace moxie
