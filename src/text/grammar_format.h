// The string formats that structured output supports, as regular expressions of whole texts.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace moxie::grammar {

/// A pattern for the whole text; none for an unknown name. Texts that match are valid by the
/// format's specification; rare valid forms may not match (quoted local parts in an email).
std::optional<std::string_view> format_pattern(std::string_view name);
std::vector<std::string_view> format_names();

}  // namespace moxie::grammar
