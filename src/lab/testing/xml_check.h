// A strict reader of XML's structure for tests: what it finds wrong with a text.
#pragma once

#include <cctype>
#include <string>
#include <string_view>
#include <vector>

namespace moxie {

/// Empty if every element is closed in order, attributes are quoted, and every '&' begins one of
/// the entities that escape_xml() writes; else what is wrong and where.
inline std::string fault_of_xml(std::string_view text) {
  std::vector<std::string> open;
  const auto fault = [](const std::string& what, size_t at) {
    return what + " at byte " + std::to_string(at);
  };
  for (size_t at = 0; at < text.size();) {
    if (text[at] == '&') {
      const std::string_view name = text.substr(at, text.find(';', at) - at);
      if (name != "&amp" && name != "&lt" && name != "&gt" && name != "&quot" && name != "&#39")
        return fault("a bare '&'", at);
      ++at;
      continue;
    }
    if (text[at] == '>') return fault("a bare '>'", at);
    if (text[at] != '<') {
      ++at;
      continue;
    }
    // A tag ends at the first '>' outside of quotes.
    size_t end = at + 1;
    for (bool is_quoted = false; end < text.size() && (is_quoted || text[end] != '>'); ++end) {
      if (text[end] == '<') return fault("'<' inside of a tag", end);
      if (text[end] == '"') is_quoted = !is_quoted;
    }
    if (end >= text.size()) return fault("a tag without an end", at);
    const std::string_view tag = text.substr(at + 1, end - at - 1);
    at = end + 1;
    if (tag.starts_with("!DOCTYPE")) continue;
    const bool closes = tag.starts_with("/"), is_empty = tag.ends_with("/");
    size_t length = closes ? 1 : 0;
    while (length < tag.size() && std::isalnum(static_cast<unsigned char>(tag[length])) != 0)
      ++length;
    const std::string name(tag.substr(closes ? 1 : 0, length - (closes ? 1 : 0)));
    if (name.empty()) return fault("a tag without a name", end);
    if (closes) {
      if (open.empty() || open.back() != name)
        return fault("</" + name + "> without its begin", end);
      open.pop_back();
    } else if (!is_empty) {
      open.push_back(name);
    }
  }
  return open.empty() ? "" : "<" + open.back() + "> is never closed";
}

}  // namespace moxie
