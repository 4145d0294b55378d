// The formats of strings that structured output binds, as regular expressions of whole texts.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace moxie::grammar {

/// A pattern for the whole text; none for an unknown name. Texts within the pattern are valid by
/// the format's own specification; rare valid forms may be missing (quoted local parts in an
/// email).
std::optional<std::string_view> format_pattern(std::string_view name);
std::vector<std::string_view> format_names();

}  // namespace moxie::grammar
