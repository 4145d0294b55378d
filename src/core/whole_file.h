// Files that are there complete or not at all.
#pragma once

#include <string>
#include <string_view>

#include "core/base.h"

namespace moxie {

/// Writes `bytes` to a temporary file beside `path` and renames it. `what`: for the message of a
/// fault, "record". A file that was at `path` stays as it was if writing fails.
Status write_whole_file(const std::string& path, std::string_view bytes, const std::string& what);

}  // namespace moxie
