// OpenAI's chat messages as a harmony conversation.
#pragma once

#include "server/requests.h"

namespace moxie {

/// Reads "messages" into the request's conversation and instructions. System and developer
/// messages become instructions, wherever they stand; an assistant's reasoning goes before what it
/// said; tool results find their function by the id of the call.
ApiStatus read_messages(const Json& value, ChatRequest* request);

/// More instructions, behind a blank line.
void instruct(std::optional<std::string>* all, const std::string& text);

/// The text of a content: a string, or a list of text parts, joined by nothing.
Api<std::string> read_text_content(const Json& value, const std::string& param);

}  // namespace moxie
