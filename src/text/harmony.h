// Harmony, the conversation format of gpt-oss: messages with roles, channels and recipients, and
// their rendering to token ids exactly as openai-harmony 0.0.8 does it.
//
// Rendering is piecewise: every header word group and content part is a BPE call of its own, and
// control-token strings inside texts stay ordinary text. Parsing back is in harmony_parser.h, the
// JSON forms are in harmony_json.h. Grammar and rules: the format's public documentation and the
// vectors in tests/data/harmony.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base.h"

namespace moxie {
class Tokenizer;
}

namespace moxie::harmony {

enum class Role { kUser, kAssistant, kSystem, kDeveloper, kTool };
std::string_view role_name(Role role);  ///< "user", "assistant", ...
std::optional<Role> role_from_name(std::string_view name);

enum class ReasoningEffort { kLow, kMedium, kHigh };
/// Accepts low, medium, high; none and minimal mean low. Anything else: nullopt.
std::optional<ReasoningEffort> effort_from_name(std::string_view name);

/// One callable tool. `parameters` is a JSON schema as JSON text, its key order kept in rendering;
/// none means that the tool takes no argument.
struct ToolDescription {
  std::string name;
  std::string description;
  std::optional<std::string> parameters;
  bool operator==(const ToolDescription&) const = default;
};

struct ToolNamespace {
  std::string name;
  std::optional<std::string> description;
  std::vector<ToolDescription> tools;
  bool operator==(const ToolNamespace&) const = default;
};
/// Sorted by key in byte order, which is the order of rendering.
using ToolNamespaces = std::map<std::string, ToolNamespace>;

struct ChannelConfig {
  std::vector<std::string> valid_channels;
  bool channel_required = true;
  bool operator==(const ChannelConfig&) const = default;
};

/// Absent fields render nothing; empty strings keep their line.
struct SystemContent {
  std::optional<std::string> model_identity;
  std::optional<ReasoningEffort> reasoning_effort;
  std::optional<std::string> conversation_start_date;
  std::optional<std::string> knowledge_cutoff;
  std::optional<ChannelConfig> channel_config;
  std::optional<ToolNamespaces> tools;
  bool operator==(const SystemContent&) const = default;
};

struct DeveloperContent {
  std::optional<std::string> instructions;
  std::optional<ToolNamespaces> tools;
  bool operator==(const DeveloperContent&) const = default;
};

struct TextContent {
  std::string text;
  bool operator==(const TextContent&) const = default;
};
using Content = std::variant<TextContent, SystemContent, DeveloperContent>;

/// Empty is not none: a present but empty channel, recipient, name or content type is rendered.
struct Message {
  Role role = Role::kUser;
  std::optional<std::string> name;
  std::vector<Content> content;
  std::optional<std::string> channel;
  std::optional<std::string> recipient;
  std::optional<std::string> content_type;

  /// The text parts joined; system and developer contents count as nothing.
  std::string text() const;
  bool operator==(const Message&) const = default;
};

struct Conversation {
  std::vector<Message> messages;
  bool operator==(const Conversation&) const = default;
};

/// The ids of the tokens that make up the format, looked up by name: models differ.
struct ControlTokens {
  int32_t start = -1;
  int32_t end = -1;
  int32_t message = -1;
  int32_t channel = -1;
  int32_t constrain = -1;
  int32_t return_token = -1;
  int32_t call = -1;
  std::optional<int32_t> endoftext;  ///< tolerated after a message; not part of the format

  /// Fails where the tokenizer lacks one of the seven.
  static Result<ControlTokens> find(const Tokenizer& tokenizer);
  bool is_stop(int32_t id) const { return id == end || id == return_token || id == call; }
};

enum class RenderMode {
  kCompletion,    ///< ends in <|start|>assistant: the prompt of the next assistant message
  kTraining,      ///< a last assistant message in `final` ends in <|return|>
  kConversation,  ///< the messages, nothing added
};

struct RenderConfig {
  /// If the last assistant message is final: drops every `analysis` message before the first
  /// `final` one. Reasoning of later turns stays; see drop_finished_analysis for the stricter rule.
  bool auto_drop_analysis = true;
};

/// The prefix of a function tool's full name.
inline constexpr std::string_view kFunctions = "functions.";
/// Whether an assistant message is addressed to a function, on any channel.
bool is_function_call(const Message& message);

/// Renders a conversation to ids. Fails on a tool message without a name, a system or developer
/// content in a message of another role, and a tool schema that is not JSON or nested too deep.
Result<std::vector<int32_t>> render(const Conversation& conversation, RenderMode mode,
                                    const RenderConfig& config, const Tokenizer& tokenizer);

/// The "# Tools" section: TypeScript-like declarations of every namespace.
Result<std::string> render_tools(const ToolNamespaces& namespaces);

// Builders: the messages of an ordinary chat.

/// The system message of the training data: identity, cutoff, effort, and the three channels,
/// required.
/// `current_date` is YYYY-MM-DD; none leaves the line out.
Message default_system_message(std::optional<std::string> current_date,
                               ReasoningEffort effort = ReasoningEffort::kMedium);
/// The developer message of `instructions` and function tools; none if there is neither.
std::optional<Message> developer_message(std::optional<std::string> instructions,
                                         std::vector<ToolDescription> function_tools);
Message user_message(std::string text);
/// An assistant message in `channel`: "analysis", "commentary" (a preamble) or "final".
Message assistant_message(std::string text, std::string channel);
/// A call of function `name` (without the namespace); `arguments` is JSON text.
Message function_call(std::string_view name, std::string arguments);
/// The result of function `name`.
Message function_result(std::string_view name, std::string text);
/// Today in local time, YYYY-MM-DD.
std::string local_date();

/// Removes the reasoning of finished turns: every assistant message in `analysis` without a
/// recipient that stands before the last assistant `final`. Reasoning after it (an unfinished tool
/// loop), calls, results and preambles stay. Render the outcome with auto_drop_analysis off.
void drop_finished_analysis(Conversation& conversation);

}  // namespace moxie::harmony
