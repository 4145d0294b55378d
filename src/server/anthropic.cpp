// Reads requests of Anthropic's /v1/messages.
#include "server/anthropic.h"

#include <fmt/format.h>

#include <map>

#include "server/messages.h"
#include "server/structured_fields.h"

namespace moxie {
namespace {

// Rough thinking budgets, in tokens, of the efforts that the model was trained with.
constexpr int64_t kLowBudget = 2048, kMediumBudget = 16384;

struct BlockReader {
  MessagesRequest* request;
  std::map<std::string, std::string> call_names;  // by id

  harmony::Conversation& out() { return request->conversation; }
  ApiStatus read(const Json& message, const std::string& param);
  ApiStatus read_user_block(const Json& block, const std::string& type, const std::string& param);
  ApiStatus read_assistant_block(const Json& block, const std::string& type, bool has_calls,
                                 const std::string& param);
  ApiStatus read_result(const Json& block, const std::string& param);
};

tl::unexpected<ApiError> unknown_block(const std::string& type, const std::string& param) {
  return invalid(
      param + ".type",
      fmt::format("'{}.type' is '{}', but this model reads text only.", param, type.substr(0, 64)),
      "unsupported_content_type");
}

ApiStatus BlockReader::read(const Json& message, const std::string& param) {
  if (!message.is_object()) return wrong_type(param, "an object", message);
  const auto role = required_string(message, "role", param);
  if (!role) return tl::unexpected(role.error());
  for (auto it = message.begin(); it != message.end(); ++it) {
    if (it.key() != "role" && it.key() != "content") {
      return unknown_field(param + "." + it.key(), {"role", "content"});
    }
  }
  const Json* content = find_member(message, "content");
  if (content == nullptr) return missing(param + ".content");
  const std::string at = param + ".content";
  if (*role == "system") {
    auto text = read_text_content(*content, at);
    if (!text) return tl::unexpected(text.error());
    instruct(&request->instructions, *text);
    return {};
  }
  if (*role != "user" && *role != "assistant") {
    return invalid(
        param + ".role",
        fmt::format("Invalid value for '{}.role': expected 'user' or 'assistant'.", param),
        "invalid_value");
  }
  const bool is_user = *role == "user";
  if (content->is_string()) {
    auto text = content->get<std::string>();
    out().messages.push_back(is_user ? harmony::user_message(std::move(text))
                                     : harmony::assistant_message(std::move(text), "final"));
    return {};
  }
  if (!content->is_array()) {
    return wrong_type(at, "a string or an array of content blocks", *content);
  }
  if (is_user && content->empty()) {
    return invalid(at, "Invalid '" + at + "': expected at least one block.", "empty_array");
  }
  bool has_calls = false;
  for (const Json& block : *content) {
    const Json* type = find_member(block, "type");
    has_calls = has_calls || (type != nullptr && *type == "tool_use");
  }
  for (size_t i = 0; i < content->size(); ++i) {
    const Json& block = (*content)[i];
    const std::string of_block = fmt::format("{}[{}]", at, i);
    if (!block.is_object()) return wrong_type(of_block, "an object", block);
    auto type = required_string(block, "type", of_block);
    if (!type) return tl::unexpected(type.error());
    auto status = is_user ? read_user_block(block, *type, of_block)
                          : read_assistant_block(block, *type, has_calls, of_block);
    if (!status) return status;
  }
  return {};
}

ApiStatus BlockReader::read_user_block(const Json& block, const std::string& type,
                                       const std::string& param) {
  if (type == "tool_result") return read_result(block, param);
  if (type != "text") return unknown_block(type, param);
  auto text = required_string(block, "text", param);
  if (!text) return tl::unexpected(text.error());
  out().messages.push_back(harmony::user_message(std::move(*text)));
  return {};
}

ApiStatus BlockReader::read_result(const Json& block, const std::string& param) {
  auto id = required_string(block, "tool_use_id", param);
  if (!id) return tl::unexpected(id.error());
  const auto name = call_names.find(*id);
  if (name == call_names.end()) {
    return invalid(param + ".tool_use_id",
                   fmt::format("'{}.tool_use_id' names no tool_use block before it.", param),
                   "invalid_value");
  }
  std::string text;
  if (const Json* content = find_member(block, "content")) {
    auto read = read_text_content(*content, param + ".content");
    if (!read) return tl::unexpected(read.error());
    text = std::move(*read);
  }
  out().messages.push_back(harmony::function_result(name->second, std::move(text)));
  return {};
}

ApiStatus BlockReader::read_assistant_block(const Json& block, const std::string& type,
                                            bool has_calls, const std::string& param) {
  if (type == "redacted_thinking") return {};  // encrypted
  if (type == "thinking" || type == "text") {
    auto text = required_string(block, type == "text" ? "text" : "thinking", param);
    if (!text) return tl::unexpected(text.error());
    const char* channel = type == "thinking" ? "analysis" : has_calls ? "commentary" : "final";
    out().messages.push_back(harmony::assistant_message(std::move(*text), channel));
    return {};
  }
  if (type != "tool_use") return unknown_block(type, param);
  auto id = required_string(block, "id", param);
  if (!id) return tl::unexpected(id.error());
  auto name = required_string(block, "name", param);
  if (!name) return tl::unexpected(name.error());
  if (auto status = check_function_name(*name, param + ".name"); !status) return status;
  const Json* input = find_member(block, "input");
  if (input != nullptr && !input->is_object()) {
    return wrong_type(param + ".input", "an object", *input);
  }
  out().messages.push_back(
      harmony::function_call(*name, input == nullptr ? "{}" : to_text(*input)));
  call_names[*id] = std::move(*name);
  return {};
}

ApiStatus read_anthropic_messages(const Json& value, MessagesRequest& request) {
  if (!value.is_array()) return wrong_type("messages", "an array of messages", value);
  if (value.empty()) {
    return invalid("messages", "messages: at least one message is required.", "empty_array");
  }
  BlockReader reader{.request = &request, .call_names = {}};
  for (size_t i = 0; i < value.size(); ++i) {
    auto status = reader.read(value[i], fmt::format("messages[{}]", i));
    if (!status) return status;
  }
  return {};
}

ApiStatus read_anthropic_tools(const Json& value, MessagesRequest& request) {
  if (!value.is_array()) return wrong_type("tools", "an array of tools", value);
  Json tools = Json::array();
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string at = fmt::format("tools[{}]", i);
    const Json& tool = value[i];
    if (!tool.is_object()) return wrong_type(at, "an object", tool);
    if (const Json* type = find_member(tool, "type"); type != nullptr && *type != "custom") {
      return unsupported(at + ".type", "'" + at + ".type': only custom tools are supported.");
    }
    Json function = Json::object();
    for (auto it = tool.begin(); it != tool.end(); ++it) {
      const std::string& key = it.key();
      if (key == "type" || key == "cache_control" || key == "eager_input_streaming" ||
          key == "input_examples" || key == "defer_loading" || key == "allowed_callers") {
        continue;
      }
      function[key == "input_schema" ? "parameters" : key] = *it;
    }
    function["type"] = "function";
    tools.push_back(std::move(function));
  }
  return read_tools(tools, "tools", &request.tools);
}

ApiStatus read_anthropic_choice(const Json& value, MessagesRequest& request) {
  using Mode = ToolChoice::Mode;
  if (!value.is_object()) return wrong_type("tool_choice", "an object", value);
  const auto type = required_string(value, "type", "tool_choice");
  if (!type) return tl::unexpected(type.error());
  if (const Json* alone = find_member(value, "disable_parallel_tool_use")) {
    auto flag = read_bool(*alone, "tool_choice.disable_parallel_tool_use");
    if (!flag) return tl::unexpected(flag.error());
    request.parallel_tool_calls = !*flag;
  }
  if (*type == "auto") return {};
  if (*type == "none" || *type == "any") {
    request.tool_choice.mode = *type == "none" ? Mode::kNone : Mode::kRequired;
    return {};
  }
  if (*type != "tool") {
    return invalid(
        "tool_choice.type",
        "Invalid value for 'tool_choice.type': expected 'auto', 'any', 'tool' or 'none'.",
        "invalid_value");
  }
  auto name = required_string(value, "name", "tool_choice");
  if (!name) return tl::unexpected(name.error());
  request.tool_choice = {.mode = Mode::kNamed, .name = std::move(*name), .allowed = {}};
  return {};
}

ApiStatus read_thinking(const Json& value, MessagesRequest& request) {
  if (!value.is_object()) return wrong_type("thinking", "an object", value);
  const auto type = required_string(value, "type", "thinking");
  if (!type) return tl::unexpected(type.error());
  if (*type != "enabled" && *type != "disabled" && *type != "adaptive") {
    return invalid("thinking.type",
                   "Invalid value for 'thinking.type': expected 'enabled', 'adaptive' or "
                   "'disabled'.",
                   "invalid_value");
  }
  for (auto it = value.begin(); it != value.end(); ++it) {
    if (it.key() != "type" && it.key() != "budget_tokens" && it.key() != "display") {
      return unknown_field("thinking." + it.key(), {"type", "budget_tokens", "display"});
    }
  }
  const Json* display = find_member(value, "display");
  if (display != nullptr && *display != "summarized" && *display != "omitted") {
    return invalid("thinking.display",
                   "Invalid value for 'thinking.display': expected 'summarized' or 'omitted'.",
                   "invalid_value");
  }
  request.show_thinking = *type != "disabled" && (display == nullptr || *display != "omitted");
  if (*type == "disabled") request.effort = harmony::ReasoningEffort::kLow;
  if (const Json* budget = find_member(value, "budget_tokens")) {
    auto tokens = read_integer(*budget, "thinking.budget_tokens", 1, INT32_MAX);
    if (!tokens) return tl::unexpected(tokens.error());
    request.effort = *tokens <= kLowBudget     ? harmony::ReasoningEffort::kLow
                     : *tokens < kMediumBudget ? harmony::ReasoningEffort::kMedium
                                               : harmony::ReasoningEffort::kHigh;
  }
  return {};
}

ApiStatus read_output_config(const Json& value, MessagesRequest& request) {
  if (!value.is_object()) return wrong_type("output_config", "an object", value);
  for (auto it = value.begin(); it != value.end(); ++it) {
    if (it->is_null()) continue;
    if (it.key() == "effort") {
      auto effort = read_effort(*it, "output_config.effort");
      if (!effort) return tl::unexpected(effort.error());
      request.effort = *effort;
    } else if (it.key() == "format") {
      auto status = read_response_format(*it, "output_config.format", &request.structured);
      if (!status) return status;
    } else {
      return unknown_field("output_config." + it.key(), {"effort", "format"});
    }
  }
  return {};
}

// Clients always send the first one; the others would change what the model reads.
ApiStatus read_context_management(const Json& value, MessagesRequest&) {
  if (!value.is_object()) return wrong_type("context_management", "an object", value);
  const Json* edits = find_member(value, "edits");
  if (edits == nullptr) return {};
  if (!edits->is_array()) return wrong_type("context_management.edits", "an array", *edits);
  for (size_t i = 0; i < edits->size(); ++i) {
    const std::string at = fmt::format("context_management.edits[{}]", i);
    const auto type = required_string((*edits)[i], "type", at);
    if (!type) return tl::unexpected(type.error());
    if (*type != "clear_thinking_20251015") {
      return unsupported(at + ".type",
                         "'" + at +
                             ".type': only 'clear_thinking_20251015' is supported; send the "
                             "messages that shall count.");
    }
  }
  return {};
}

ApiStatus read_system(const Json& value, MessagesRequest& request) {
  auto text = read_text_content(value, "system");
  if (!text) return tl::unexpected(text.error());
  instruct(&request.instructions, *text);
  return {};
}

ApiStatus read_stop_sequences(const Json& value, MessagesRequest& request) {
  if (!value.is_array()) return wrong_type("stop_sequences", "an array of strings", value);
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string at = fmt::format("stop_sequences[{}]", i);
    auto text = read_string(value[i], at);
    if (!text) return tl::unexpected(text.error());
    if (text->empty() || text->size() > 1024 || i >= 64) {
      return invalid(at, "'" + at + "': expected at most 64 texts of 1 to 1024 bytes.",
                     "invalid_value");
    }
    request.stop.push_back(std::move(*text));
  }
  return {};
}

Fields<MessagesRequest> make_fields() {
  Fields<MessagesRequest> f;
  f.text("model", &GenerationFields::model, "the served model's name", true);
  f.field("messages", {{"type", "array"}, {"items", {{"type", "object"}}}}, read_anthropic_messages,
          "text, tool_use, tool_result and thinking blocks", true);
  f.integer("max_tokens", &GenerationFields::max_tokens, 1, INT32_MAX,
            "of the answer, thinking included");
  f.field("system", {{"anyOf", {{{"type", "string"}}, {{"type", "array"}}}}}, read_system,
          "instructions");
  f.number("temperature", &GenerationFields::temperature, 0, 1, "0 is greedy");
  f.number("top_p", &GenerationFields::top_p, 0, 1, "nucleus");
  f.integer(
      "top_k", [](MessagesRequest& request) -> int32_t& { return request.sampling.top_k; }, 0,
      INT32_MAX, "0 is off");
  f.field("stop_sequences", {{"type", "array"}, {"items", {{"type", "string"}}}},
          read_stop_sequences, "texts that end the answer");
  f.toggle("stream", &GenerationFields::stream, "server-sent events");
  f.field("tools", {{"type", "array"}, {"items", {{"type", "object"}}}}, read_anthropic_tools,
          "custom tools");
  f.field("tool_choice", {{"type", "object"}}, read_anthropic_choice, "auto, any, tool or none");
  f.field(
      "thinking", {{"type", "object"}}, read_thinking,
      "enabled or adaptive shows thinking blocks; budget_tokens chooses the effort: up to 2,048 "
      "low, below 16,384 medium, else high. The model always thinks: disabled is low effort, "
      "not shown");
  f.field("output_config", {{"type", "object"}}, read_output_config, "{effort, format}");
  f.ignored("metadata", "kept nowhere");
  f.ignored("service_tier", "there is one tier");
  f.ignored("cache_control", "the prefix cache finds equal prompts by itself");
  f.ignored("inference_geo", "the answer is made here");
  f.ignored("speed", "there is one speed");
  f.ignored("diagnostics", "usage says what the cache had");
  f.field(
      "context_management", {{"type", "object"}}, read_context_management,
      "edits of type clear_thinking_20251015, without effect: the reasoning of finished turns is "
      "dropped anyhow");
  f.ignored("billing_policy", "nothing is billed here");
  f.ignored("fallbacks", "no request is declined here");
  f.ignored("fallback_credit_token", "nothing is billed here");
  f.refused("compaction", Json(), "send the messages that shall count");
  f.refused("container", Json(), "there is none");
  f.refused("mcp_servers", Json::array(), "tools are called by the client");
  // With these details Anthropic's clients send the request again without a thread.
  f.refused(
      "thread", Json(), "no messages are kept, send all of them",
      {{"error_code", "thread_unsupported_request"}, {"unsupported", Json::array({"thread"})}});
  return f;
}

}  // namespace

const Fields<MessagesRequest>& message_fields() {
  static const Fields<MessagesRequest> fields = make_fields();
  return fields;
}

Api<MessagesRequest> read_messages_request(const Json& document, bool counts_only) {
  MessagesRequest request;
  if (auto status = message_fields().read(document, request); !status) {
    return tl::unexpected(status.error());
  }
  if (!request.max_tokens && !counts_only) return missing("max_tokens");
  const auto& messages = request.conversation.messages;
  if (!counts_only && !messages.empty() && messages.back().role == harmony::Role::kAssistant) {
    return invalid(
        "messages",
        "messages: the last one is the assistant's. Its text cannot be gone on with, and "
        "a call needs its result: end with a user message.",
        "invalid_value");
  }
  if (auto status = check_tool_choice(request); !status) return tl::unexpected(status.error());
  return request;
}

}  // namespace moxie
