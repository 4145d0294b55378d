// Errors and JSON at the edge.
#include "server/api.h"

#include <fmt/format.h>

#include <cmath>
#include <ctime>

#include "core/json_text.h"
#include "text/harmony_json.h"
#include "text/utf8.h"

namespace moxie {
namespace {

std::string_view anthropic_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

// Path of the first string with a NUL character: no field may have one, and programs that read the
// string later may cut it there. The parser bounds the depth.
bool has_nul(const Json& value, std::string* path) {
  if (value.is_string()) {
    return value.get_ref<const std::string&>().find('\0') != std::string::npos;
  }
  if (!value.is_structured()) return false;
  size_t idx = 0;
  for (auto it = value.begin(); it != value.end(); ++it, ++idx) {
    std::string inner;
    const bool bad_key = value.is_object() && it.key().find('\0') != std::string::npos;
    if (!bad_key && !has_nul(*it, &inner)) continue;
    if (value.is_object()) {
      *path = bad_key ? "" : it.key();
      if (!inner.empty()) *path += inner[0] == '[' ? inner : "." + inner;
    } else {
      *path = fmt::format("[{}]", idx);
      if (!inner.empty()) *path += inner[0] == '[' ? inner : "." + inner;
    }
    return true;
  }
  return false;
}

}  // namespace

tl::unexpected<ApiError> invalid(std::string param, std::string message, std::string code) {
  return tl::unexpected<ApiError>(ApiError{.status = 400,
                                           .message = std::move(message),
                                           .param = std::move(param),
                                           .code = std::move(code)});
}

std::string_view kind_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::number_float: {  // so are integers that need more than 64 bits
      constexpr double kBeyond = 0x1p63;
      return std::fabs(value.get<double>()) >= kBeyond ? "a number beyond 64 bits" : "a decimal";
    }
    default:
      return "an integer";
  }
}

tl::unexpected<ApiError> wrong_type(std::string param, std::string_view expected,
                                    const Json& found) {
  std::string message = fmt::format("Invalid type for '{}': expected {}, but got {} instead.",
                                    param, expected, kind_of(found));
  return invalid(std::move(param), std::move(message), "invalid_type");
}

tl::unexpected<ApiError> unsupported(std::string param, std::string message) {
  return invalid(std::move(param), std::move(message), "unsupported_parameter");
}

Json error_json(const ApiError& error, ErrorForm form) {
  if (form == ErrorForm::kAnthropic) {
    Json body = {
        {"type", anthropic_type(error.status)},
        {"message", error.param.empty() || error.message.find(error.param) != std::string::npos
                        ? error.message
                        : error.param + ": " + error.message}};
    if (!error.details.is_null()) body["details"] = error.details;
    return {{"type", "error"}, {"error", std::move(body)}};
  }
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  return {{"error",
           {{"message", error.message},
            {"type", error.type},
            {"param", or_null(error.param)},
            {"code", or_null(error.code)}}}};
}

HttpResponse error_response(const ApiError& error, ErrorForm form) {
  HttpResponse response = json_response(error_json(error, form), error.status);
  if (error.retry_after_s > 0) {
    response.headers.push_back(
        {"Retry-After", std::to_string(std::lround(std::ceil(error.retry_after_s)))});
  }
  return response;
}

HttpResponse json_response(const Json& document, int status) {
  return {.status = status, .body = to_text(document)};
}

Api<Json> parse_body(std::string_view body) {
  if (body.empty()) return invalid("", "The request body is empty: expected a JSON object.");
  auto document = harmony::parse_json_bounded(body, "request body");
  if (!document) {
    std::string what;
    append_repaired_utf8(document.error().what, &what);
    return invalid("", "We could not parse the JSON body of your request: " + what + ".",
                   "invalid_json");
  }
  if (!(*document)->is_object()) {
    return invalid(
        "", fmt::format("The request body must be a JSON object, but is {}.", kind_of(**document)),
        "invalid_type");
  }
  std::string path;
  if (has_nul(**document, &path)) {
    return invalid(path, "Text must not hold the character U+0000.", "invalid_value");
  }
  return std::move(**document);
}

std::string to_text(const Json& document) { return json_text(document); }

void append_json_string(std::string_view text, std::string* out) {
  *out += '"';
  for (const char c : text) {
    switch (c) {
      case '"':
        *out += "\\\"";
        break;
      case '\\':
        *out += "\\\\";
        break;
      case '\n':
        *out += "\\n";
        break;
      case '\r':
        *out += "\\r";
        break;
      case '\t':
        *out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          *out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          *out += c;
        }
    }
  }
  *out += '"';
}

int64_t unix_time() { return static_cast<int64_t>(std::time(nullptr)); }

const Json* find_member(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

}  // namespace moxie
