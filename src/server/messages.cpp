// Turns messages into harmony.
#include "server/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

namespace moxie {
namespace {

constexpr std::array<std::string_view, 6> kTextTypes = {
    "text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text"};
constexpr size_t kMaxMessages = 10'000;

struct Reader {
  ChatRequest* request;
  std::map<std::string, std::string> call_names;  // by id

  harmony::Conversation& out() { return request->conversation; }
  ApiStatus read(const Json& message, const std::string& param);
  ApiStatus read_assistant(const Json& message, const std::string& param);
  ApiStatus read_calls(const Json& calls, const std::string& param);
  ApiStatus read_tool(const Json& message, const std::string& param);
};

Api<std::string> content_of(const Json& message, const std::string& param) {
  const Json* content = find_member(message, "content");
  if (content == nullptr) return missing(param + ".content");
  return read_text_content(*content, param + ".content");
}

ApiStatus Reader::read(const Json& message, const std::string& param) {
  if (!message.is_object()) return wrong_type(param, "an object", message);
  const auto role = required_string(message, "role", param);
  if (!role) return tl::unexpected(role.error());
  if (*role == "assistant") return read_assistant(message, param);
  if (*role == "tool" || *role == "function") return read_tool(message, param);
  if (*role != "system" && *role != "developer" && *role != "user") {
    return invalid(param + ".role",
                   "Invalid value for '" + param +
                       ".role': expected one of 'system', 'developer', 'user', 'assistant', "
                       "'tool' or 'function'.",
                   "invalid_value");
  }
  if (auto status = known_members(message, param, {"role", "content", "name"}); !status)
    return status;
  auto text = content_of(message, param);
  if (!text) return tl::unexpected(text.error());
  if (*role == "user") {
    out().messages.push_back(harmony::user_message(std::move(*text)));
  } else {
    instruct(&request->instructions, *text);
  }
  return {};
}

ApiStatus Reader::read_assistant(const Json& message, const std::string& param) {
  // The last ones are what clients make of an answer: they send it back as they hold it.
  if (auto status = known_members(
          message, param,
          {"role", "content", "name", "reasoning", "reasoning_content", "tool_calls", "refusal",
           "audio", "function_call", "annotations", "reasoning_details", "parsed",
           "provider_specific_fields", "thinking_blocks", "reasoning_items"});
      !status) {
    return status;
  }
  for (const char* key : {"audio", "function_call"}) {
    if (find_member(message, key) != nullptr) {
      return unsupported(param + "." + key, "'" + param + "." + key + "' is not supported here.");
    }
  }
  for (const char* key : {"reasoning", "reasoning_content"}) {
    const Json* value = find_member(message, key);
    if (value == nullptr) continue;
    auto text = read_string(*value, param + "." + key);
    if (!text) return tl::unexpected(text.error());
    if (!text->empty()) {
      out().messages.push_back(harmony::assistant_message(std::move(*text), "analysis"));
    }
    break;  // both names hold the same text
  }
  const Json* calls = find_member(message, "tool_calls");
  const bool has_calls = calls != nullptr && !(calls->is_array() && calls->empty());
  std::string text;
  if (const Json* content = find_member(message, "content")) {
    auto read = read_text_content(*content, param + ".content");
    if (!read) return tl::unexpected(read.error());
    text = std::move(*read);
  } else if (const Json* refusal = find_member(message, "refusal")) {
    auto read = read_string(*refusal, param + ".refusal");
    if (!read) return tl::unexpected(read.error());
    text = std::move(*read);
  }
  if (!text.empty() || !has_calls) {
    out().messages.push_back(
        harmony::assistant_message(std::move(text), has_calls ? "commentary" : "final"));
  }
  return has_calls ? read_calls(*calls, param + ".tool_calls") : ApiStatus{};
}

ApiStatus Reader::read_calls(const Json& calls, const std::string& param) {
  if (!calls.is_array()) return wrong_type(param, "an array of tool calls", calls);
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", param, i);
    if (!calls[i].is_object()) return wrong_type(at, "an object", calls[i]);
    const Json* function = find_member(calls[i], "function");
    if (function == nullptr) return missing(at + ".function");
    if (!function->is_object()) return wrong_type(at + ".function", "an object", *function);
    auto id = required_string(calls[i], "id", at);
    if (!id) return tl::unexpected(id.error());
    auto name = required_string(*function, "name", at + ".function");
    if (!name) return tl::unexpected(name.error());
    if (auto status = check_function_name(*name, at + ".function.name"); !status) return status;
    const Json* arguments = find_member(*function, "arguments");
    std::string text = "{}";
    if (arguments != nullptr && arguments->is_string()) {
      text = arguments->get<std::string>();
    } else if (arguments != nullptr && arguments->is_object()) {
      text = to_text(*arguments);  // some clients send the object itself
    } else if (arguments != nullptr) {
      return wrong_type(at + ".function.arguments", "a string", *arguments);
    }
    out().messages.push_back(harmony::function_call(*name, std::move(text)));
    call_names[*id] = std::move(*name);
  }
  return {};
}

ApiStatus Reader::read_tool(const Json& message, const std::string& param) {
  if (auto status = known_members(message, param, {"role", "content", "name", "tool_call_id"});
      !status) {
    return status;
  }
  auto text = content_of(message, param);
  if (!text) return tl::unexpected(text.error());
  std::string name;
  if (const Json* id = find_member(message, "tool_call_id")) {
    auto read = read_string(*id, param + ".tool_call_id");
    if (!read) return tl::unexpected(read.error());
    if (const auto found = call_names.find(*read); found != call_names.end()) name = found->second;
  }
  if (name.empty()) {
    const Json* given = find_member(message, "name");
    if (given == nullptr) {
      return invalid(param + ".tool_call_id",
                     "'" + param +
                         "' answers no tool call of an assistant message before it, and has no "
                         "'name'.",
                     "invalid_value");
    }
    auto read = read_string(*given, param + ".name");
    if (!read) return tl::unexpected(read.error());
    name = std::move(*read);
    if (auto status = check_function_name(name, param + ".name"); !status) return status;
  }
  out().messages.push_back(harmony::function_result(name, std::move(*text)));
  return {};
}

}  // namespace

void instruct(std::optional<std::string>* all, const std::string& text) {
  if (*all) {
    (*all)->append("\n\n").append(text);
  } else {
    *all = text;
  }
}

Api<std::string> read_text_content(const Json& value, const std::string& param) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return wrong_type(param, "a string or an array of content parts", value);
  std::string text;
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", param, i);
    if (value[i].is_string()) {  // a text part may be a bare string
      text += value[i].get_ref<const std::string&>();
      continue;
    }
    if (!value[i].is_object()) return wrong_type(at, "an object", value[i]);
    const auto type = required_string(value[i], "type", at);
    if (!type) return tl::unexpected(type.error());
    if (std::find(kTextTypes.begin(), kTextTypes.end(), *type) == kTextTypes.end()) {
      return invalid(at + ".type",
                     fmt::format("'{}' is '{}', but this model reads text only.", at + ".type",
                                 type->substr(0, 64)),
                     "unsupported_content_type");
    }
    const auto part = required_string(value[i], *type == "refusal" ? "refusal" : "text", at);
    if (!part) return tl::unexpected(part.error());
    text += *part;
  }
  return text;
}

ApiStatus read_messages(const Json& value, ChatRequest* request) {
  if (!value.is_array()) return wrong_type("messages", "an array of messages", value);
  if (value.empty()) {
    return invalid("messages", "Invalid 'messages': empty array. Expected at least one message.",
                   "empty_array");
  }
  if (value.size() > kMaxMessages) {
    return invalid("messages",
                   fmt::format("Invalid 'messages': at most {} are read, but got {}.", kMaxMessages,
                               value.size()),
                   "array_above_max_length");
  }
  Reader reader{.request = request, .call_names = {}};
  for (size_t i = 0; i < value.size(); ++i) {
    auto status = reader.read(value[i], fmt::format("messages[{}]", i));
    if (!status) return status;
  }
  return {};
}

}  // namespace moxie
