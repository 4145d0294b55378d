// Files in the user's cache in which starts leave results for later ones.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "core/base.h"
#include "text/json_fields.h"

namespace moxie {

/// $XDG_CACHE_HOME/moxie/NAME, else ~/.cache/moxie/NAME; empty if nothing says where.
std::string kept_file_path(const std::string& name);

/// The text of a regular file of at most `most_bytes`; nothing if there is no such file. `what`
/// says in errors what it would hold.
Result<std::optional<std::string>> read_kept_file(const std::string& path, uint64_t most_bytes,
                                                  const std::string& what);

/// Writes the file, complete or not at all, and makes its folders.
Status write_kept_file(const std::string& path, std::string_view text, const std::string& what);

/// The text of such a file is one JSON document: {"form": form, list: [entries]}.
struct KeptForm {
  const char *form, *list;
  size_t most_entries;
  const char* mend;  ///< what to do with a file that cannot be read
};
/// The longest text that an entry's readers take.
inline constexpr size_t kMostKeptText = 4096;

/// Calls `read` with a reader of each entry; what the readers refuse is an error.
Status parse_kept(std::string_view text, const std::string& where, const KeptForm& form,
                  const std::function<void(JsonFields&)>& read);
std::string kept_text(const KeptForm& form, nlohmann::ordered_json list);

}  // namespace moxie
