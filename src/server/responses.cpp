// Reads requests of /v1/responses.
#include "server/responses.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "kernels/sample/sample.h"
#include "server/messages.h"
#include "server/structured_fields.h"

namespace moxie {
namespace {

struct ItemReader {
  ResponseRequest* request;
  std::vector<harmony::Message>& out() { return request->conversation.messages; }

  ApiStatus read(const Json& item, const std::string& param);
  ApiStatus read_message(const Json& item, const std::string& param);
  ApiStatus read_call(const Json& item, const std::string& param);
  ApiStatus read_output(const Json& item, const std::string& param);
  ApiStatus read_reasoning(const Json& item, const std::string& param);
};

ApiStatus ItemReader::read(const Json& item, const std::string& param) {
  if (!item.is_object()) return wrong_type(param, "an object", item);
  const Json* given = find_member(item, "type");
  if (given == nullptr) return read_message(item, param);
  const auto type = read_string(*given, param + ".type");
  if (!type) return tl::unexpected(type.error());
  if (*type == "message") return read_message(item, param);
  if (*type == "function_call") return read_call(item, param);
  if (*type == "function_call_output") return read_output(item, param);
  if (*type == "reasoning") return read_reasoning(item, param);
  return invalid(param + ".type",
                 fmt::format("'{}.type' is '{}'; supported are 'message', 'function_call', "
                             "'function_call_output' and 'reasoning'.",
                             param, type->substr(0, 64)),
                 "unsupported_item_type");
}

ApiStatus ItemReader::read_message(const Json& item, const std::string& param) {
  const auto role = required_string(item, "role", param);
  if (!role) return tl::unexpected(role.error());
  const Json* content = find_member(item, "content");
  if (content == nullptr) return missing(param + ".content");
  auto text = read_text_content(*content, param + ".content");
  if (!text) return tl::unexpected(text.error());
  if (*role == "user") {
    out().push_back(harmony::user_message(std::move(*text)));
  } else if (*role == "assistant") {
    out().push_back(harmony::assistant_message(std::move(*text), "final"));
  } else if (*role == "system" || *role == "developer") {
    instruct(&request->item_instructions, *text);
  } else {
    return invalid(param + ".role",
                   fmt::format("Invalid value for '{}.role': expected 'user', 'assistant', "
                               "'system' or 'developer'.",
                               param),
                   "invalid_value");
  }
  return {};
}

ApiStatus ItemReader::read_call(const Json& item, const std::string& param) {
  auto id = required_string(item, "call_id", param);
  if (!id) return tl::unexpected(id.error());
  auto name = required_string(item, "name", param);
  if (!name) return tl::unexpected(name.error());
  if (auto status = check_function_name(*name, param + ".name"); !status) return status;
  auto arguments = required_string(item, "arguments", param);
  if (!arguments) return tl::unexpected(arguments.error());
  // Text before a call in the same turn was a preamble, not the answer.
  if (!out().empty() && out().back().channel == "final" &&
      out().back().role == harmony::Role::kAssistant) {
    out().back().channel = "commentary";
  }
  out().push_back(harmony::function_call(*name, std::move(*arguments)));
  request->call_names[*id] = std::move(*name);
  return {};
}

ApiStatus ItemReader::read_output(const Json& item, const std::string& param) {
  const auto id = required_string(item, "call_id", param);
  if (!id) return tl::unexpected(id.error());
  const auto name = request->call_names.find(*id);
  if (name == request->call_names.end()) {
    return invalid(param + ".call_id",
                   fmt::format("No tool call found for function call output with call_id {}.",
                               id->substr(0, 128)),
                   "invalid_value");
  }
  const Json* output = find_member(item, "output");
  if (output == nullptr) return missing(param + ".output");
  auto text = read_text_content(*output, param + ".output");
  if (!text) return tl::unexpected(text.error());
  out().push_back(harmony::function_result(name->second, std::move(*text)));
  return {};
}

ApiStatus ItemReader::read_reasoning(const Json& item, const std::string& param) {
  const Json* content = find_member(item, "content");
  if (content == nullptr) return {};  // it has nothing readable
  auto text = read_text_content(*content, param + ".content");
  if (!text) return tl::unexpected(text.error());
  if (!text->empty()) {
    out().push_back(harmony::assistant_message(std::move(*text), "analysis"));
  }
  return {};
}

// The parts of a content that has been read: texts get the type that OpenAI lists them with.
Json listed_parts(const Json& content, const char* text_type) {
  Json parts = Json::array();
  for (const Json& part : content.is_string() ? Json::array({content}) : content) {
    Json listed = part.is_string() ? Json{{"type", "text"}, {"text", part}} : part;
    if (listed["type"] == "text") listed["type"] = text_type;
    if (listed["type"] == "output_text" && find_member(listed, "annotations") == nullptr) {
      listed["annotations"] = Json::array();
    }
    parts.push_back(std::move(listed));
  }
  return parts;
}

// An item as it is listed later: clients have types for it that require more than a request must
// hold.
Json listed_item(Json item) {
  const Json* given = find_member(item, "type");
  const std::string type = given == nullptr ? "message" : given->get<std::string>();
  item["type"] = type;
  const char* prefix = "msg_";
  if (type == "message") {
    const bool is_answer = item["role"] == "assistant";
    item["content"] = listed_parts(item["content"], is_answer ? "output_text" : "input_text");
  } else if (type == "reasoning") {
    prefix = "rs_";
    if (const Json* content = find_member(item, "content")) {
      item["content"] = listed_parts(*content, "reasoning_text");
    }
    if (find_member(item, "summary") == nullptr) item["summary"] = Json::array();
  } else {
    prefix = type == "function_call" ? "fc_" : "fco_";
  }
  if (find_member(item, "id") == nullptr) item["id"] = prefix + random_name(24);
  if (find_member(item, "status") == nullptr) item["status"] = "completed";
  return item;
}

ApiStatus read_input(const Json& value, ResponseRequest& request) {
  if (value.is_string()) {
    request.conversation.messages.push_back(harmony::user_message(value.get<std::string>()));
    request.input_items.push_back(listed_item({{"role", "user"}, {"content", value}}));
    return {};
  }
  if (!value.is_array()) return wrong_type("input", "a string or an array of items", value);
  ItemReader reader{&request};
  for (size_t i = 0; i < value.size(); ++i) {
    auto status = reader.read(value[i], fmt::format("input[{}]", i));
    if (!status) return status;
    request.input_items.push_back(listed_item(value[i]));
  }
  return {};
}

ApiStatus read_response_reasoning(const Json& value, ResponseRequest& request) {
  if (auto status = read_reasoning_effort(value, request); !status) return status;
  for (auto it = value.begin(); it != value.end(); ++it) {
    // There are no summaries: the answer holds the reasoning itself.
    if (it.key() != "effort" && it.key() != "summary" && it.key() != "generate_summary") {
      return unknown_field("reasoning." + it.key(), {"effort", "summary"});
    }
  }
  return {};
}

ApiStatus read_text(const Json& value, ResponseRequest& request) {
  if (!value.is_object()) return wrong_type("text", "an object", value);
  for (auto it = value.begin(); it != value.end(); ++it) {
    if (it.key() == "verbosity" || it->is_null()) continue;  // the model has no such setting
    if (it.key() != "format") return unknown_field("text." + it.key(), {"format", "verbosity"});
    auto status = read_response_format(*it, "text.format", &request.structured);
    if (!status) return status;
  }
  return {};
}

ApiStatus read_include(const Json& value, ResponseRequest& request) {
  // Items that answers here never have, and reasoning, which answers hold in plain text anyway.
  constexpr std::array<std::string_view, 7> kWithoutEffect = {
      "reasoning.encrypted_content",    "web_search_call.results",
      "web_search_call.action.sources", "file_search_call.results",
      "code_interpreter_call.outputs",  "computer_call_output.output.image_url",
      "message.input_image.image_url"};
  if (!value.is_array()) return wrong_type("include", "an array of strings", value);
  for (size_t i = 0; i < value.size(); ++i) {
    const auto entry = read_string(value[i], fmt::format("include[{}]", i));
    if (!entry) return tl::unexpected(entry.error());
    if (*entry == "message.output_text.logprobs") {
      request.logprobs = true;
    } else if (std::find(kWithoutEffect.begin(), kWithoutEffect.end(), *entry) ==
               kWithoutEffect.end()) {
      return invalid(
          "include",
          "Invalid value in 'include': 'message.output_text.logprobs' has an effect; the "
          "others that OpenAI knows have none here.",
          "invalid_value");
    }
  }
  return {};
}

Fields<ResponseRequest> make_fields() {
  Fields<ResponseRequest> f;
  f.text("model", &GenerationFields::model, "the served model's name");
  f.field("input", {{"anyOf", {{{"type", "string"}}, {{"type", "array"}}}}}, read_input,
          "a text, or items: messages, calls, their outputs, reasoning", true);
  f.field(
      "instructions", {{"type", "string"}},
      [](const Json& value, ResponseRequest& request) -> ApiStatus {
        auto text = read_string(value, "instructions");
        if (!text) return tl::unexpected(text.error());
        request.instructions = std::move(*text);
        return {};
      },
      "not kept for the responses that follow");
  f.text("previous_response_id", &ResponseRequest::previous_id,
         "goes on where that stored response ended");
  f.toggle("store", &ResponseRequest::store, "keep it for GET and previous_response_id; default");
  f.toggle("background", &ResponseRequest::background,
           "answer at once, and go on whoever listens; needs store");
  f.ignored("background_options", "a response in the background begins at once");
  f.toggle("stream", &GenerationFields::stream, "server-sent events");
  f.field(
      "stream_options", {{"type", "object"}},
      [](const Json& value, ResponseRequest&) -> ApiStatus {
        if (!value.is_object()) return wrong_type("stream_options", "an object", value);
        for (auto it = value.begin(); it != value.end(); ++it) {
          if (it.key() != "include_obfuscation") {
            return unknown_field("stream_options." + it.key(), {"include_obfuscation"});
          }
        }
        return {};
      },
      "include_obfuscation, without effect: no padding is sent");
  add_sampling_fields(f);
  f.integer("max_output_tokens", &GenerationFields::max_tokens, 1, INT32_MAX,
            "of the answer, reasoning included");
  f.integer(
      "top_logprobs",
      [](ResponseRequest& request) -> int32_t& { return request.sampling.num_logprobs; }, 0,
      kMaxTopLogprobs, "with include message.output_text.logprobs");
  f.field("include", {{"type", "array"}, {"items", {{"type", "string"}}}}, read_include,
          "message.output_text.logprobs; OpenAI's others are without effect");
  f.field("reasoning", {{"type", "object"}}, read_response_reasoning, "{effort}");
  f.field("text", {{"type", "object"}}, read_text, "{format}: text, json_object or json_schema");
  add_tool_fields(f);
  f.toggle("parallel_tool_calls", &ChatRequest::parallel_tool_calls,
           "the model writes one call a turn");
  add_scheduling_fields(f);
  f.field(
      "metadata", {{"type", "object"}},
      [](const Json& value, ResponseRequest&) -> ApiStatus {
        if (!value.is_object()) return wrong_type("metadata", "an object", value);
        return {};
      },
      "comes back with the response");
  f.field(
      "structured_outputs", {{"type", "object"}},
      [](const Json& value, ResponseRequest& request) {
        return read_structured_outputs(value, &request.structured);
      },
      "{json}, {regex}, {choice}, {grammar} or {json_object}: what the answer's text is");
  f.ignored("user", "kept nowhere");
  f.ignored("request_id", "kept nowhere; X-Request-Id names a request");
  f.ignored("skip_special_tokens", "control tokens are never text");
  f.ignored("safety_identifier", "kept nowhere");
  add_platform_fields(f);
  f.ignored("max_tool_calls", "it counts built-in tools, of which there are none");
  f.either("truncation", &ResponseRequest::truncate, "auto", "disabled", "auto",
           "auto: items at the beginning of the conversation are left out where it is too long");
  f.refused("conversation", Json(), "use previous_response_id");
  f.refused("max_tokens", Json(), "use max_output_tokens");
  f.refused("prompt", Json(), "there are no stored prompts");
  f.refused("context_management", Json(), "send the items that shall count");
  f.refused("access_programs", Json(), "there are none");
  f.refused("image", Json(), "this model reads text");
  f.refused("mm_processor_kwargs", Json::object(), "this model reads text");
  f.refused("previous_response", Json(), "use previous_response_id, or send the items");
  f.refused("previous_input_messages", Json(), "use previous_response_id, or send the items");
  f.refused("enable_response_messages", false, "use /v1/chat/completions/render");
  f.refused("vllm_xargs", Json::object(), "none is known");
  return f;
}

}  // namespace

const Fields<ResponseRequest>& response_fields() {
  static const Fields<ResponseRequest> fields = make_fields();
  return fields;
}

Api<ResponseRequest> read_response_request(
    const Json& document, const std::function<StoredPtr(const std::string&)>& find) {
  ResponseRequest request;
  request.prompt_field = "input";
  request.given = document;
  request.given.erase("input");
  if (const Json* id = find_member(document, "previous_response_id"); id && id->is_string()) {
    const StoredPtr previous = find(id->get<std::string>());
    if (previous == nullptr || previous->cancel) {
      return tl::unexpected(
          ApiError{.status = previous == nullptr ? 404 : 400,
                   .message = fmt::format("Previous response with id '{}' {}.",
                                          id->get<std::string>().substr(0, 128),
                                          previous == nullptr ? "not found" : "is not complete"),
                   .param = "previous_response_id",
                   .code = "previous_response_not_found"});
    }
    request.conversation = previous->conversation;
    request.call_names = previous->call_names;
    request.item_instructions = previous->item_instructions;
  }
  if (auto status = response_fields().read(document, request); !status) {
    return tl::unexpected(status.error());
  }
  if (request.background && !request.store) {
    return invalid("background", "'background' needs 'store': true.", "invalid_value");
  }
  if (!request.logprobs) {
    request.sampling.num_logprobs = -1;
  } else if (request.sampling.num_logprobs < 0) {
    request.sampling.num_logprobs = 0;
  }
  if (request.item_instructions) {
    instruct(&request.instructions, *request.item_instructions);
  }
  if (request.conversation.messages.empty() && !request.instructions) {
    return invalid("input", "Invalid 'input': it holds no message.", "empty_array");
  }
  if (auto status = check_tool_choice(request); !status) return tl::unexpected(status.error());
  return request;
}

}  // namespace moxie
