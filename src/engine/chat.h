// Answers a conversation with an engine: renders it, generates, parses, and sorts the text into
// reasoning, content and tool calls. `moxie run`, `moxie chat` and the server's chat share this.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "text/harmony.h"

namespace moxie {

struct ToolCall {
  std::string name;       ///< without the "functions." namespace
  std::string arguments;  ///< JSON text; "{}" where the model wrote none
};

/// What a piece of streamed text belongs to.
enum class ReplyPart : uint8_t { kReasoning, kContent, kToolName, kToolArguments };

struct Reply {
  std::string reasoning, content;
  std::vector<ToolCall> tool_calls;
  std::string finish_reason;  ///< "stop", "length", "tool_calls", "abort"
  std::vector<std::string> warnings;
  std::vector<harmony::Message> messages;  ///< to append to the conversation
  Timing timing;
  DraftCounts drafts;
};

/// Returns false to stop the answer.
using OnReply = std::function<bool(ReplyPart part, std::string_view text)>;

/// Answers the conversation's last message. Reasoning of finished turns is dropped before
/// rendering; the conversation itself is not changed.
Result<Reply> answer(Engine& engine, const harmony::Conversation& conversation,
                     const SamplingOptions& sampling, const OnReply& on_text = {},
                     const Drafting& drafting = {});

/// Function tools from OpenAI's form: a JSON list of {"type": "function", "function": {"name",
/// "description", "parameters"}}, or of the inner objects. Key order is kept.
Result<std::vector<harmony::ToolDescription>> parse_function_tools(const std::string& json,
                                                                   const std::string& where);

}  // namespace moxie
