// /v1/messages, Anthropic's form of a chat: the request as a struct, and its table of fields.
#pragma once

#include "server/requests.h"

namespace moxie {

struct MessagesRequest : ChatRequest {
  bool show_thinking = false;  ///< thinking blocks were asked for
};

const Fields<MessagesRequest>& message_fields();
/// `counts_only`: max_tokens may be missing.
Api<MessagesRequest> read_messages_request(const Json& document, bool counts_only);

}  // namespace moxie
