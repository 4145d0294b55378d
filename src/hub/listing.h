// What a repository holds at a revision, and which of its files are fetched.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/hash.h"
#include "hub/http.h"
#include "hub/retry.h"

namespace moxie::hub {

struct RepoFile {
  std::string path;
  std::string etag;  ///< the name of its blob: SHA-256 of a file in LFS, else git's blob hash
  uint64_t bytes = 0;
  HashKind hash = HashKind::kGitBlob;
};

struct Listing {
  std::string commit;
  std::vector<RepoFile> files;  ///< sorted by path
};

/// Asks the hub, with retries. `say` hears of these.
Result<Listing> fetch_listing(HttpClient& client, const Settings& settings, const std::string& repo,
                              const std::string& revision, const RetryPolicy& policy,
                              const std::atomic<bool>& stop,
                              const std::function<void(const std::string&)>& say);

/// The files of one page of /api/models/REPO/tree/COMMIT, appended to `files`. Paths are checked by
/// choose_files, for the files that are chosen.
Status parse_tree_page(std::string_view json, std::vector<RepoFile>* files);
/// The commit of /api/models/REPO/revision/REVISION.
Result<std::string> parse_commit(std::string_view json);

/// The files that `include` patterns match; without any, those that Moxie reads: the safetensors
/// and JSON files and the tokenizer of the top folder (else of `original/`), or else the one GGUF.
Result<std::vector<RepoFile>> choose_files(const std::vector<RepoFile>& files,
                                           const std::vector<std::string>& include);

/// What an answer that is no success means.
Error status_error(const Answer& answer, const Settings& settings, const std::string& repo);

}  // namespace moxie::hub
