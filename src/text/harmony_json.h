// Harmony's JSON forms: conversations and messages as openai-harmony 0.0.8 writes them, and the
// documents of `moxie harmony render` and `moxie harmony parse`, one in, one out.
//
// Documents come from outside: wrong types, broken UTF-8 and values beyond the limits below are
// errors of the Result (or an "error" field), never a crash.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "text/harmony.h"
#include "text/harmony_parser.h"

namespace moxie::harmony {

/// Arrays and objects inside one another. The package stops at 127.
constexpr int kMaxJsonDepth = 512;
/// Members of one object: keeping their order costs a search for each.
constexpr int kMaxJsonMembers = 10'000;

/// JSON text within these limits to a value, key order kept; `where` names the document in errors.
Result<std::unique_ptr<nlohmann::ordered_json>> parse_json_bounded(std::string_view text,
                                                                   const std::string& where);

/// `{"messages":[...]}`, the form of Conversation.to_json. Unknown fields are ignored, null is
/// absent. A message's content is a list of contents or one string.
Result<Conversation> conversation_from_json(const nlohmann::ordered_json& document);
Result<Conversation> read_conversation(std::string_view text);
std::string conversation_to_json(const Conversation& conversation);

/// The form of Message.to_json: role, name, content; channel, recipient and content_type if set.
Result<Message> message_from_json(const nlohmann::ordered_json& document);
nlohmann::ordered_json message_to_json(const Message& message);

/// Options that a document may leave to the command's flags.
struct LineDefaults {
  RenderMode mode = RenderMode::kCompletion;
  bool stream = false;  ///< adds the state after each token
};

/// `{"conversation","mode","config"}`, or a bare conversation, to `{"ids","text"}` or `{"error"}`.
std::string render_line(std::string_view line, const Tokenizer& tokenizer,
                        const LineDefaults& defaults = {});

/// `{"ids","role","strict"}` to `{"messages","warnings","raw"}`, with `stream` also `"stream":
/// [[role,channel,recipient,content_type,last_delta,state],...]`; `{"error"}` only for a document
/// that is not of that form. `raw[i]` is the text of all tokens of message i, `raw_rest` the text
/// after the last message. Without "role": assistant, or none if the ids begin with <|start|>. If
/// "strict" is given, the messages that openai-harmony finished before it refused are reported as
/// that package has them, so that the two parsers can be compared.
std::string parse_line(std::string_view line, const Tokenizer& tokenizer,
                       const LineDefaults& defaults = {});

Result<RenderMode> render_mode_from_name(std::string_view name);

}  // namespace moxie::harmony
