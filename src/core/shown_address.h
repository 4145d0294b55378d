// Addresses as they may be shown and kept.
#pragma once

#include <string>

namespace moxie {

/// The text without the user names and passwords of the addresses in it: http://user:word@host/v1
/// becomes http://host/v1.
inline std::string shown_address(std::string text) {
  for (size_t at = text.find("://"); at != text.npos; at = text.find("://", at)) {
    at += 3;
    const size_t end = text.find_first_of("/?#", at);
    const size_t user_end = text.rfind('@', end);
    if (user_end != text.npos && user_end >= at) text.erase(at, user_end + 1 - at);
  }
  return text;
}

}  // namespace moxie
