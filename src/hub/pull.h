// Fetches a repository's files from a hub into the Hugging Face cache.
//
// A blob is written as ETAG.incomplete under a lock, checked by length and hash, and renamed; links
// in the snapshot come after all blobs, and the reference of the branch after all links: what is
// named is whole. An interrupted pull leaves the beginnings of blobs, from which the next one goes
// on.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base.h"
#include "hub/settings.h"

namespace moxie::hub {

inline constexpr int kMaxConnections = 16, kMaxTries = 100;

struct PullOptions {
  std::string repo;
  std::string revision = "main";
  std::vector<std::string> include;  ///< globs; empty: the files that Moxie reads
  int connections = 4;
  int max_tries = 5;  ///< of a request that fails, without progress between them
  bool is_dry_run = false;
};

enum class FileStatus {
  kAbsent,   ///< only in a dry run: to be fetched
  kPartial,  ///< only in a dry run: its beginning is there
  kFetched,
  kCached,   ///< was there, or came by another process
  kResumed,  ///< fetched from where an earlier pull ended
};
const char* file_status_name(FileStatus status);

struct FileReport {
  std::string path, etag;
  uint64_t bytes = 0;
  FileStatus status = FileStatus::kAbsent;
};

struct PullReport {
  std::string repo, revision, commit;
  std::string path;  ///< the snapshot's folder
  std::vector<FileReport> files;
  uint64_t bytes = 0;          ///< of all files
  uint64_t present_bytes = 0;  ///< of these, there before
  double seconds = 0;
};

/// Hears of a pull, one call at a time, from several threads.
class PullObserver {
 public:
  virtual ~PullObserver() = default;
  /// The files are known. `present_bytes` of all `bytes` are there already.
  virtual void on_start(const PullReport& plan) = 0;
  /// Some times a second: so many bytes are there now; `path` is one of the files being fetched.
  virtual void on_progress(uint64_t present_bytes, const std::string& path) = 0;
  virtual void on_file(const FileReport& file) = 0;
  /// A retry, or a wait for another process.
  virtual void on_message(const std::string& text) = 0;
};

/// Blocks until done, or failed, or `stop` is true.
Result<PullReport> pull(const Settings& settings, const PullOptions& options,
                        const std::atomic<bool>& stop, PullObserver& observer);

}  // namespace moxie::hub
