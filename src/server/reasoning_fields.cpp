// The fields of a chat that say how much the model reasons, and where the reasoning stands.
#include <fmt/format.h>

#include "server/requests.h"

namespace moxie {
namespace {

ApiStatus read_reasoning(const Json& value, ChatRequest& request) {
  if (auto status = read_reasoning_effort(value, request); !status) return status;
  if (const Json* exclude = find_member(value, "exclude")) {
    auto read = read_bool(*exclude, "reasoning.exclude");
    if (!read) return tl::unexpected(read.error());
    request.include_reasoning = !*read;
  }
  for (auto it = value.begin(); it != value.end(); ++it) {
    if (it.key() != "effort" && it.key() != "exclude" && it.key() != "summary" &&
        it.key() != "generate_summary") {
      return unknown_field("reasoning." + it.key(), {});
    }
  }
  return {};
}

// A chat template's variables, by the name of the field: vLLM's, or Dynamo's. The conversation
// format has one of them, the effort; of others, values that ask for nothing are accepted.
Fields<ChatRequest>::Read template_variables(const char* field) {
  return [field](const Json& value, ChatRequest& request) -> ApiStatus {
    static const Json kIdle = {{"enable_thinking", true},         {"thinking", true},
                               {"add_generation_prompt", true},   {"add_special_tokens", false},
                               {"continue_final_message", false}, {"builtin_tools", Json::array()},
                               {"documents", Json::array()},      {"tools", Json::array()}};
    if (!value.is_object()) return wrong_type(field, "an object", value);
    for (auto it = value.begin(); it != value.end(); ++it) {
      const std::string at = std::string(field) + "." + it.key().substr(0, 64);
      if (it->is_null()) continue;
      if (it.key() == "reasoning_effort") {
        auto read = read_effort(*it, at);
        if (!read) return tl::unexpected(read.error());
        request.template_effort = *read;
        continue;
      }
      const auto idle = kIdle.find(it.key());
      if (idle == kIdle.end()) {
        return unsupported(
            at,
            "'" + at + "' is not supported: the conversation format has reasoning_effort only.");
      }
      if (*it == *idle) continue;
      const bool thinks = it.key() == "enable_thinking" || it.key() == "thinking";
      return unsupported(at, fmt::format("'{}' may only be {}: {}.", at, idle->dump(),
                                         thinks ? "the model always reasons; use reasoning_effort"
                                                : "the conversation format is built in"));
    }
    return {};
  };
}

}  // namespace

Api<harmony::ReasoningEffort> read_effort(const Json& value, const std::string& param) {
  auto name = read_string(value, param);
  if (!name) return tl::unexpected(name.error());
  if (*name == "xhigh" || *name == "max") return harmony::ReasoningEffort::kHigh;
  if (const auto effort = harmony::effort_from_name(*name)) return *effort;
  return invalid(param,
                 "Invalid value for '" + param +
                     "': expected one of 'none', 'minimal', 'low', 'medium', 'high', 'xhigh' or "
                     "'max'.",
                 "invalid_value");
}

ApiStatus read_reasoning_effort(const Json& reasoning, ChatRequest& request) {
  if (!reasoning.is_object()) return wrong_type("reasoning", "an object", reasoning);
  const Json* effort = find_member(reasoning, "effort");
  if (effort == nullptr) return {};
  auto read = read_effort(*effort, "reasoning.effort");
  if (!read) return tl::unexpected(read.error());
  request.effort = *read;
  return {};
}

void add_reasoning_fields(Fields<ChatRequest>& f) {
  f.field(
      "reasoning_effort",
      {{"type", "string"}, {"enum", {"none", "minimal", "low", "medium", "high", "xhigh", "max"}}},
      [](const Json& value, ChatRequest& request) -> ApiStatus {
        auto effort = read_effort(value, "reasoning_effort");
        if (!effort) return tl::unexpected(effort.error());
        request.effort = *effort;
        return {};
      },
      "how much to think; none and minimal are low, xhigh and max are high: the model knows three");
  f.field("reasoning", {{"type", "object"}}, read_reasoning, "{effort, exclude}");
  f.toggle("include_reasoning", &ChatRequest::include_reasoning,
           "false leaves the reasoning out of the answer");
  f.toggle("separate_reasoning", &ChatRequest::separate_reasoning,
           "false: the reasoning stands in the content, before the answer, with an empty line "
           "between");
  f.toggle("stream_reasoning", &ChatRequest::stream_reasoning,
           "false: a stream sends the reasoning as a whole, before the content");
  for (const char* name : {"chat_template_kwargs", "chat_template_args"}) {
    f.field(name, {{"type", "object"}}, template_variables(name),
            "{reasoning_effort}, which the fields of the request override");
  }
}

void choose_effort(const Json& document, ChatRequest* request) {
  const Json* reasoning = find_member(document, "reasoning");
  if (find_member(document, "reasoning_effort") != nullptr) return;
  if (reasoning != nullptr && find_member(*reasoning, "effort") != nullptr) return;
  request->effort = request->template_effort.value_or(request->effort);
}

}  // namespace moxie
