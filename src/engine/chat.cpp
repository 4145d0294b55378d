// From conversation to reply.
#include "engine/chat.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "text/harmony_json.h"
#include "text/harmony_parser.h"

namespace moxie {
namespace {

using harmony::is_function_call, harmony::kFunctions;

bool is_reasoning(const harmony::Message& message) { return message.channel == "analysis"; }

// Full names of the function tools that the conversation's developer messages declare.
std::vector<std::string> function_names(const harmony::Conversation& conversation) {
  std::vector<std::string> names;
  for (const harmony::Message& message : conversation.messages) {
    for (const harmony::Content& content : message.content) {
      const auto* developer = std::get_if<harmony::DeveloperContent>(&content);
      if (developer == nullptr || !developer->tools) continue;
      const auto found = developer->tools->find("functions");
      if (found == developer->tools->end()) continue;
      for (const auto& tool : found->second.tools) {
        names.push_back(std::string(kFunctions) + tool.name);
      }
    }
  }
  return names;
}

// Sorts the parser's events by ReplyPart and passes them on as they come.
class ReplySorter {
 public:
  ReplySorter(harmony::Parser& parser, Reply& reply, const OnReply& on_text)
      : parser_(parser), reply_(reply), on_text_(on_text) {}

  bool take(const std::vector<harmony::Event>& events) {
    bool go_on = true;
    for (const harmony::Event& event : events) go_on = take(event) && go_on;
    return go_on;
  }

 private:
  bool take(const harmony::Event& event) {
    const harmony::Message& message = parser_.message(event.message_idx);
    if (event.kind == harmony::Event::Kind::kOpen) return open(message);
    if (event.text.empty()) return true;
    if (is_function_call(message)) {
      reply_.tool_calls.back().arguments += event.text;
      return pass(ReplyPart::kToolArguments, event.text);
    }
    std::string& target = is_reasoning(message) ? reply_.reasoning : reply_.content;
    target += event.text;
    return pass(is_reasoning(message) ? ReplyPart::kReasoning : ReplyPart::kContent, event.text);
  }

  // Several texts of one kind are joined by a line break.
  bool open(const harmony::Message& message) {
    if (is_function_call(message)) {
      reply_.tool_calls.push_back({message.recipient->substr(kFunctions.size()), ""});
      return pass(ReplyPart::kToolName, reply_.tool_calls.back().name);
    }
    std::string& target = is_reasoning(message) ? reply_.reasoning : reply_.content;
    if (target.empty()) return true;
    target += '\n';
    return pass(is_reasoning(message) ? ReplyPart::kReasoning : ReplyPart::kContent, "\n");
  }

  bool pass(ReplyPart part, std::string_view text) { return !on_text_ || on_text_(part, text); }

  harmony::Parser& parser_;
  Reply& reply_;
  const OnReply& on_text_;
};

}  // namespace

Result<Reply> answer(Engine& engine, const harmony::Conversation& conversation,
                     const SamplingOptions& sampling, const OnReply& on_text,
                     const Drafting& drafting) {
  const Tokenizer* tokenizer = engine.tokenizer();
  if (tokenizer == nullptr) {
    return fail("this model carries no tokenizer", engine.checkpoint().path(),
                "`moxie bench` and `moxie score` work without one");
  }
  const auto control = harmony::ControlTokens::find(*tokenizer);
  if (!control) return fail(control.error());
  harmony::Conversation kept = conversation;
  harmony::drop_finished_analysis(kept);
  const auto prompt = harmony::render(kept, harmony::RenderMode::kCompletion,
                                      {.auto_drop_analysis = false}, *tokenizer);
  if (!prompt) return fail(prompt.error());

  Reply reply;
  harmony::ParserOptions options;
  options.drop_stray_control = true;
  options.known_recipients = function_names(conversation);
  harmony::Parser parser(*tokenizer, *control, options);
  ReplySorter sorter(parser, reply, on_text);
  const auto take = [&](const SampleAnswer& token) {
    if (token.token == control->endoftext) return true;  // ends the answer; not in its text
    return sorter.take(parser.process(token.token));
  };
  auto generated = engine.generate(*prompt, sampling, take, drafting);
  if (!generated) return fail(std::move(generated.error()));
  sorter.take(parser.finish());

  for (const auto& parsed : parser.messages()) reply.messages.push_back(parsed.message);
  for (ToolCall& call : reply.tool_calls) {
    if (call.arguments.empty()) call.arguments = "{}";
  }
  reply.warnings = parser.warnings();
  reply.timing = generated->timing;
  reply.drafts = generated->drafts;
  reply.finish_reason = finish_reason_name(generated->reason);
  if (generated->reason == FinishReason::kStop && !reply.tool_calls.empty()) {
    reply.finish_reason = "tool_calls";
  }
  return reply;
}

Result<std::vector<harmony::ToolDescription>> parse_function_tools(const std::string& json,
                                                                   const std::string& where) {
  auto document = harmony::parse_json_bounded(json, where);
  if (!document) return fail(std::move(document.error()));
  if (!(*document)->is_array()) return fail("expected a JSON list of tools", where);
  std::vector<harmony::ToolDescription> tools;
  for (const auto& entry : **document) {
    const auto& function =
        entry.is_object() && entry.contains("function") ? entry["function"] : entry;
    const std::string at = fmt::format("{}: tool {}", where, tools.size());
    if (!function.is_object()) return fail("expected an object", at);
    if (!function.contains("name") || !function["name"].is_string()) {
      return fail("expected a string \"name\"", at);
    }
    harmony::ToolDescription tool{.name = function["name"].get<std::string>()};
    if (function.contains("description") && function["description"].is_string()) {
      tool.description = function["description"].get<std::string>();
    }
    if (function.contains("parameters") && !function["parameters"].is_null()) {
      tool.parameters = function["parameters"].dump();
    }
    tools.push_back(std::move(tool));
  }
  return tools;
}

}  // namespace moxie
