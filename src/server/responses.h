// /v1/responses: requests as structs and their table of fields.
#pragma once

#include <functional>

#include "server/requests.h"
#include "server/response_store.h"

namespace moxie {

struct ResponseRequest : ChatRequest {
  /// Everything up to the answer: the previous response's conversation is in `conversation` too.
  std::map<std::string, std::string> call_names;
  std::optional<std::string> item_instructions;
  Json input_items = Json::array();  ///< as GET .../input_items lists them
  Json given = Json::object();       ///< the request, for the fields that the answer repeats
  std::string previous_id;
  bool store = true, background = false;
};

const Fields<ResponseRequest>& response_fields();
/// `find` gives the response of an id, or null.
Api<ResponseRequest> read_response_request(
    const Json& document, const std::function<StoredPtr(const std::string&)>& find);

}  // namespace moxie
