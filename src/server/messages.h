// OpenAI's chat messages as a harmony conversation.
#pragma once

#include "server/requests.h"

namespace moxie {

/// Reads "messages" into the request's conversation and instructions. System and developer messages
/// become instructions, wherever they stand. An assistant's reasoning goes before its content. A
/// tool result is matched to its function by the id of the call.
ApiStatus read_messages(const Json& value, ChatRequest* request);

/// Appends instructions behind a blank line.
void instruct(std::optional<std::string>* all, const std::string& text);

/// The text of a content: a string, or a list of text parts, joined without a separator.
Api<std::string> read_text_content(const Json& value, const std::string& param);

}  // namespace moxie
