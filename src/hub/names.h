// What a user and a hub may name: repositories, revisions, commits, files, hashes. A hub's answers
// are not trusted: a name that could leave the snapshot's folder, or write to the terminal, is
// refused.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base.h"

namespace moxie::hub {

/// "org/name" or "name", by the hub's own rules.
Status check_repo(const std::string& repo);
/// A branch, tag, commit or "refs/pr/1"; it becomes a path under refs/.
Status check_revision(const std::string& revision);
/// The path of a file in a repository: relative, no "." or "..", no control characters.
Status check_file_path(const std::string& path);

bool is_commit(std::string_view text);  ///< 40 lower-case hexadecimal digits
bool is_sha256(std::string_view text);  ///< 64 of them

/// The etag as huggingface_hub names a blob by it: without W/ and quotes. Empty if it holds
/// anything that a file's name should not.
std::string normalized_etag(std::string_view etag);

/// Python's fnmatchcase, as huggingface_hub matches: `*` also crosses "/", `?`, `[a-z]`, `[!a-z]`;
/// a pattern that ends in "/" takes the whole folder.
bool matches(std::string_view pattern, std::string_view path);

/// One segment of a URL's path: everything but letters, digits and "-._~" as %XX; "/" stays if
/// `keeps_slashes`.
std::string url_quoted(std::string_view text, bool keeps_slashes);

/// The URL behind rel="next" in a Link header; empty if there is none.
std::string next_link(std::string_view link);

/// A server's words, made safe for a terminal and cut to a line.
std::string printable_line(std::string_view text, size_t max_bytes = 300);

}  // namespace moxie::hub
