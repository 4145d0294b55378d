// Files in the user's cache in which starts leave results for later ones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base.h"

namespace moxie {

/// $XDG_CACHE_HOME/moxie/NAME, else ~/.cache/moxie/NAME; empty if nothing says where.
std::string kept_file_path(const std::string& name);

/// The text of a regular file of at most `most_bytes`; nothing if there is no such file. `what`
/// says in errors what it would hold.
Result<std::optional<std::string>> read_kept_file(const std::string& path, uint64_t most_bytes,
                                                  const std::string& what);

/// Writes the file, complete or not at all, and makes its folders.
Status write_kept_file(const std::string& path, std::string_view text, const std::string& what);

}  // namespace moxie
