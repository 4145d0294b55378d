// Conversations to token ids, and the builders of an ordinary chat's messages.
//
// Each header part and each content part is encoded separately: "Hello" + " world" in two parts are
// two BPE calls, so equal text does not mean equal ids.
#include <algorithm>
#include <array>
#include <ctime>

#include "text/bpe.h"
#include "text/harmony.h"

namespace moxie::harmony {
namespace {

constexpr std::array<std::string_view, 5> kRoleNames = {"user", "assistant", "system", "developer",
                                                        "tool"};
constexpr std::string_view kConstrainMarker = "<|constrain|>";

class Renderer {
 public:
  Renderer(const Tokenizer& tokenizer, const ControlTokens& control, bool has_function_tools)
      : tokenizer_(tokenizer), control_(control), has_function_tools_(has_function_tools) {}

  Status add(const Message& message) {
    ids_.push_back(control_.start);
    if (message.role == Role::kTool) {
      if (!message.name) {
        return fail("a tool message has no name", "conversation",
                    "name the tool, such as functions.get_weather");
      }
      text(*message.name);
    } else {
      text(role_name(message.role));
      if (message.name) text(":" + *message.name);
    }
    if (message.recipient && *message.recipient != "all") text(" to=" + *message.recipient);
    if (message.channel) {
      ids_.push_back(control_.channel);
      text(*message.channel);
    }
    if (message.content_type) content_type(*message.content_type);
    ids_.push_back(control_.message);
    for (const Content& part : message.content) {
      if (const Status status = content(part, message.role); !status) return status;
    }
    // A recipient makes an assistant message a call, even the unprinted "all".
    const bool calls = message.role == Role::kAssistant && message.recipient;
    ids_.push_back(calls ? control_.call : control_.end);
    return {};
  }

  void text(std::string_view part) { tokenizer_.encode(part, SpecialMode::kNone, &ids_); }
  std::vector<int32_t>& ids() { return ids_; }

 private:
  // The marker is the one control-token string that becomes its token.
  void content_type(const std::string& type) {
    if (type.starts_with(kConstrainMarker)) {
      text(" ");
      ids_.push_back(control_.constrain);
      text(std::string_view(type).substr(kConstrainMarker.size()));
    } else {
      text(" " + type);
    }
  }

  Status content(const Content& part, Role role) {
    if (const auto* plain = std::get_if<TextContent>(&part)) {
      text(plain->text);
      return {};
    }
    const bool is_system = std::holds_alternative<SystemContent>(part);
    if (role != (is_system ? Role::kSystem : Role::kDeveloper)) {
      return fail(std::string("found ") + (is_system ? "system_content" : "developer_content") +
                      " in a message of role " + std::string(role_name(role)),
                  "conversation");
    }
    const auto body = is_system ? system_text(std::get<SystemContent>(part))
                                : developer_text(std::get<DeveloperContent>(part));
    if (!body) return fail(body.error());
    text(*body);
    return {};
  }

  static void add_section(const std::string& section, bool* any, std::string* out) {
    if (*any) *out += "\n\n";
    *any = true;
    *out += section;
  }

  static Status add_tools(const std::optional<ToolNamespaces>& tools, bool* any, std::string* out) {
    if (!tools || tools->empty()) return {};
    const auto section = render_tools(*tools);
    if (!section) return fail(section.error());
    add_section(*section, any, out);
    return {};
  }

  Result<std::string> system_text(const SystemContent& content) const {
    std::string out;
    bool any = false;
    std::vector<std::string> lines;
    if (content.model_identity) lines.push_back(*content.model_identity);
    if (content.knowledge_cutoff) lines.push_back("Knowledge cutoff: " + *content.knowledge_cutoff);
    if (content.conversation_start_date) {
      lines.push_back("Current date: " + *content.conversation_start_date);
    }
    for (size_t i = 0; i < lines.size(); ++i) {
      out += (i > 0 ? "\n" : "") + lines[i];
      any = true;
    }
    if (content.reasoning_effort) {
      constexpr const char* kNames[] = {"low", "medium", "high"};
      add_section(std::string("Reasoning: ") + kNames[static_cast<int>(*content.reasoning_effort)],
                  &any, &out);
    }
    if (const Status status = add_tools(content.tools, &any, &out); !status) {
      return fail(status.error());
    }
    const auto& channels = content.channel_config;
    if (channels && !channels->valid_channels.empty()) {
      std::string line = "# Valid channels: ";
      for (size_t i = 0; i < channels->valid_channels.size(); ++i) {
        line += (i > 0 ? ", " : "") + channels->valid_channels[i];
      }
      line += '.';
      if (channels->channel_required) line += " Channel must be included for every message.";
      if (has_function_tools_) {
        line += "\nCalls to these tools must go to the commentary channel: 'functions'.";
      }
      add_section(line, &any, &out);
    }
    return out;
  }

  static Result<std::string> developer_text(const DeveloperContent& content) {
    std::string out;
    bool any = false;
    if (content.instructions) {
      add_section("# Instructions\n\n" + *content.instructions, &any, &out);
    }
    if (const Status status = add_tools(content.tools, &any, &out); !status) {
      return fail(status.error());
    }
    return out;
  }

  const Tokenizer& tokenizer_;
  const ControlTokens control_;
  const bool has_function_tools_;
  std::vector<int32_t> ids_;
};

bool has_function_tools(const Message& message) {
  return std::ranges::any_of(message.content, [](const Content& content) {
    const auto* developer = std::get_if<DeveloperContent>(&content);
    if (developer == nullptr || !developer->tools) return false;
    const auto functions = developer->tools->find("functions");
    return functions != developer->tools->end() && !functions->second.tools.empty();
  });
}

bool is_final(const Message& message) { return message.channel == "final"; }

// How many leading messages lose their analysis: those before the first final of any role, if the
// last assistant message is final.
size_t num_without_analysis(const std::vector<Message>& messages) {
  const auto last = std::find_if(messages.rbegin(), messages.rend(), [](const Message& message) {
    return message.role == Role::kAssistant;
  });
  if (last == messages.rend() || !is_final(*last)) return 0;
  const auto first = std::ranges::find_if(messages, is_final);
  return static_cast<size_t>(first - messages.begin());
}

Message text_message(Role role, std::string text) {
  Message message;
  message.role = role;
  message.content.push_back(TextContent{std::move(text)});
  return message;
}

}  // namespace

std::string_view role_name(Role role) { return kRoleNames[static_cast<size_t>(role)]; }

std::optional<Role> role_from_name(std::string_view name) {
  const auto it = std::ranges::find(kRoleNames, name);
  if (it == kRoleNames.end()) return std::nullopt;
  return static_cast<Role>(it - kRoleNames.begin());
}

std::optional<ReasoningEffort> effort_from_name(std::string_view name) {
  if (name == "low" || name == "none" || name == "minimal") return ReasoningEffort::kLow;
  if (name == "medium") return ReasoningEffort::kMedium;
  if (name == "high") return ReasoningEffort::kHigh;
  return std::nullopt;
}

bool is_function_call(const Message& message) {
  return message.role == Role::kAssistant && message.recipient &&
         message.recipient->starts_with(kFunctions);
}

std::string Message::text() const {
  std::string out;
  for (const Content& part : content) {
    if (const auto* plain = std::get_if<TextContent>(&part)) out += plain->text;
  }
  return out;
}

Result<ControlTokens> ControlTokens::find(const Tokenizer& tokenizer) {
  ControlTokens control;
  const std::pair<const char*, int32_t*> names[] = {{"<|start|>", &control.start},
                                                    {"<|end|>", &control.end},
                                                    {"<|message|>", &control.message},
                                                    {"<|channel|>", &control.channel},
                                                    {"<|constrain|>", &control.constrain},
                                                    {"<|return|>", &control.return_token},
                                                    {"<|call|>", &control.call}};
  for (const auto& [name, id] : names) {
    const auto found = tokenizer.special_id(name);
    if (!found) {
      return fail(std::string("no special token ") + name, "tokenizer",
                  "harmony needs the tokenizer of a gpt-oss model");
    }
    *id = *found;
  }
  control.endoftext = tokenizer.special_id("<|endoftext|>");
  return control;
}

Result<std::vector<int32_t>> render(const Conversation& conversation, RenderMode mode,
                                    const RenderConfig& config, const Tokenizer& tokenizer) {
  const auto control = ControlTokens::find(tokenizer);
  if (!control) return fail(control.error());
  const std::vector<Message>& messages = conversation.messages;
  Renderer renderer(tokenizer, *control, std::ranges::any_of(messages, has_function_tools));
  const size_t num_dropping = config.auto_drop_analysis ? num_without_analysis(messages) : 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (i < num_dropping && messages[i].channel == "analysis") continue;
    if (const Status status = renderer.add(messages[i]); !status) return fail(status.error());
  }
  std::vector<int32_t>& ids = renderer.ids();
  if (mode == RenderMode::kCompletion) {
    ids.push_back(control->start);
    renderer.text(role_name(Role::kAssistant));
  } else if (mode == RenderMode::kTraining && !messages.empty() && !ids.empty() &&
             messages.back().role == Role::kAssistant && is_final(messages.back())) {
    ids.back() = control->return_token;
  }
  return std::move(ids);
}

Message default_system_message(std::optional<std::string> current_date, ReasoningEffort effort) {
  SystemContent content;
  content.model_identity = "You are ChatGPT, a large language model trained by OpenAI.";
  content.knowledge_cutoff = "2024-06";
  content.conversation_start_date = std::move(current_date);
  content.reasoning_effort = effort;
  content.channel_config = ChannelConfig{{"analysis", "commentary", "final"}, true};
  Message message;
  message.role = Role::kSystem;
  message.content.push_back(std::move(content));
  return message;
}

std::optional<Message> developer_message(std::optional<std::string> instructions,
                                         std::vector<ToolDescription> function_tools) {
  if (!instructions && function_tools.empty()) return std::nullopt;
  DeveloperContent content;
  content.instructions = std::move(instructions);
  if (!function_tools.empty()) {
    content.tools = ToolNamespaces{
        {"functions", ToolNamespace{"functions", std::nullopt, std::move(function_tools)}}};
  }
  Message message;
  message.role = Role::kDeveloper;
  message.content.push_back(std::move(content));
  return message;
}

Message user_message(std::string text) { return text_message(Role::kUser, std::move(text)); }

Message assistant_message(std::string text, std::string channel) {
  Message message = text_message(Role::kAssistant, std::move(text));
  message.channel = std::move(channel);
  return message;
}

Message function_call(std::string_view name, std::string arguments) {
  Message message = assistant_message(std::move(arguments), "commentary");
  message.recipient = std::string(kFunctions).append(name);
  message.content_type = std::string(kConstrainMarker) + "json";
  return message;
}

Message function_result(std::string_view name, std::string text) {
  Message message = text_message(Role::kTool, std::move(text));
  message.name = std::string(kFunctions).append(name);
  message.recipient = "assistant";
  message.channel = "commentary";
  return message;
}

std::string local_date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  std::array<char, 16> buffer{};
  const size_t size = std::strftime(buffer.data(), buffer.size(), "%Y-%m-%d", &parts);
  return std::string(buffer.data(), size);
}

void drop_finished_analysis(Conversation& conversation) {
  std::vector<Message>& messages = conversation.messages;
  const auto is_assistant_final = [](const Message& message) {
    return message.role == Role::kAssistant && is_final(message);
  };
  const auto last_final = std::find_if(messages.rbegin(), messages.rend(), is_assistant_final);
  if (last_final == messages.rend()) return;
  const auto is_reasoning = [](const Message& message) {
    return message.role == Role::kAssistant && message.channel == "analysis" && !message.recipient;
  };
  const auto before = last_final.base() - 1;  // the last final itself
  messages.erase(std::remove_if(messages.begin(), before, is_reasoning), before);
}

}  // namespace moxie::harmony
