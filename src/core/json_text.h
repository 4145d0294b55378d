// The text of JSON documents.
#pragma once

#include <string>

namespace moxie {

/// The document's text. Names of files and text of a model need not be UTF-8, JSON must be: other
/// bytes become U+FFFD. `indent` -1: on one line. `Json`: a type of nlohmann's.
template <typename Json>
std::string json_text(const Json& document, int indent = -1) {
  return document.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace moxie
