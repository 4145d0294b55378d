// The layout of a repository in the Hugging Face cache, as huggingface_hub makes it:
//   models--org--name/blobs/ETAG                  contents
//   models--org--name/blobs/ETAG.incomplete       the beginning of one that is being fetched
//   models--org--name/snapshots/COMMIT/PATH       a link to ../../blobs/ETAG
//   models--org--name/refs/REVISION               the commit of a branch or tag
//   .locks/models--org--name/ETAG.lock            held by flock while a blob is fetched
#pragma once

#include <memory>
#include <string>

#include "core/base.h"
#include "hub/listing.h"

namespace moxie::hub {

class RepoCache {
 public:
  RepoCache(const std::string& cache, const std::string& repo);

  std::string blob(const std::string& etag) const { return folder_ + "/blobs/" + etag; }
  std::string incomplete(const std::string& etag) const { return blob(etag) + ".incomplete"; }
  std::string snapshot(const std::string& commit) const { return folder_ + "/snapshots/" + commit; }
  std::string lock(const std::string& etag) const { return locks_ + "/" + etag + ".lock"; }
  const std::string& folder() const { return folder_; }

  /// The folders of blobs and locks.
  Status make_folders() const;
  /// Whether the whole content is there, by its name and length.
  bool has_blob(const RepoFile& file) const;
  /// Bytes of an interrupted fetch, 0 if there are none that can be used.
  uint64_t incomplete_bytes(const RepoFile& file) const;
  /// snapshots/COMMIT/PATH; replaces what does not lead to the file's content.
  Status link(const std::string& commit, const RepoFile& file) const;
  /// refs/REVISION, at once. Nothing if `revision` is the commit.
  Status write_ref(const std::string& revision, const std::string& commit) const;
  /// Free space of the file system that holds the cache.
  Result<uint64_t> free_bytes() const;

 private:
  std::string cache_, folder_, locks_;
};

/// Held until destroyed.
class BlobLock {
 public:
  /// Null if another process holds it.
  static Result<std::unique_ptr<BlobLock>> try_take(const std::string& path);
  ~BlobLock();
  BlobLock(const BlobLock&) = delete;
  BlobLock& operator=(const BlobLock&) = delete;

 private:
  explicit BlobLock(int fd) : fd_(fd) {}
  int fd_;
};

/// "cannot be written: no space left on device", with what to do, for a failed call on `path`.
Error write_error(int number, const std::string& path);

}  // namespace moxie::hub
