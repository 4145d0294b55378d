#include "hub/cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/hub_cache.h"

namespace moxie::hub {
namespace {

namespace fs = std::filesystem;

Status make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return fail(write_error(error.value(), path));
  return {};
}

bool is_file_of(const std::string& path, uint64_t bytes) {
  struct stat found = {};
  return ::stat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode) &&
         static_cast<uint64_t>(found.st_size) == bytes;
}

std::string unused_name(const std::string& path) {
  return fmt::format("{}.{}.tmp", path, ::getpid());
}

Status write_whole(const std::string& path, const std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return fail(write_error(errno, path));
  const bool is_written =
      ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int number = errno;
  ::close(fd);
  if (!is_written) return fail(write_error(number, path));
  return {};
}

}  // namespace

Error write_error(int number, const std::string& path) {
  if (number == ENOSPC || number == EDQUOT) {
    return {"the disk is full", path,
            "free some space, or set HF_HOME to a folder on a larger disk; what has come is kept"};
  }
  return {std::string("cannot be written: ") + std::strerror(number), path,
          "check the folder's owner and rights, or set HF_HOME to another one"};
}

RepoCache::RepoCache(const std::string& cache, const std::string& repo)
    : cache_(cache),
      folder_(cache + "/" + hub_repo_folder(repo)),
      locks_(cache + "/.locks/" + hub_repo_folder(repo)) {}

Status RepoCache::make_folders() const {
  if (Status status = make_folder(folder_ + "/blobs"); !status) return status;
  return make_folder(locks_);
}

bool RepoCache::has_blob(const RepoFile& file) const {
  return is_file_of(blob(file.etag), file.bytes);
}

uint64_t RepoCache::incomplete_bytes(const RepoFile& file) const {
  struct stat found = {};
  const std::string path = incomplete(file.etag);
  if (::lstat(path.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) return 0;
  const auto bytes = static_cast<uint64_t>(found.st_size);
  return bytes <= file.bytes ? bytes : 0;
}

Status RepoCache::link(const std::string& commit, const RepoFile& file) const {
  const std::string path = snapshot(commit) + "/" + file.path;
  std::string target = "../../";
  for (const char c : file.path) target += c == '/' ? "../" : "";
  target += "blobs/" + file.etag;
  std::error_code error;
  if (fs::read_symlink(path, error) == target) return {};
  // A cache without links holds the file itself.
  if (!fs::is_symlink(path, error) && is_file_of(path, file.bytes)) return {};
  if (Status status = make_folder(fs::path(path).parent_path().string()); !status) return status;
  const std::string unused = unused_name(path);
  ::unlink(unused.c_str());
  if (::symlink(target.c_str(), unused.c_str()) != 0) return fail(write_error(errno, unused));
  if (::rename(unused.c_str(), path.c_str()) != 0) {
    const int number = errno;
    ::unlink(unused.c_str());
    return fail(write_error(number, path));
  }
  return {};
}

Status RepoCache::write_ref(const std::string& revision, const std::string& commit) const {
  if (revision == commit) return {};
  const std::string path = folder_ + "/refs/" + revision, unused = unused_name(path);
  std::string before(commit.size() + 1, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(before.data(), static_cast<std::streamsize>(before.size()));
  before.resize(static_cast<size_t>(file.gcount()));
  if (before == commit) return {};
  if (Status status = make_folder(fs::path(path).parent_path().string()); !status) return status;
  Status status = write_whole(unused, commit);
  if (status && ::rename(unused.c_str(), path.c_str()) != 0)
    status = fail(write_error(errno, path));
  if (!status) ::unlink(unused.c_str());
  return status;
}

Result<uint64_t> RepoCache::free_bytes() const {
  std::error_code error;
  fs::path folder = folder_;
  while (!fs::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  struct statvfs found = {};
  if (::statvfs(folder.c_str(), &found) != 0)
    return fail(std::string("its free space cannot be read: ") + std::strerror(errno),
                folder.string());
  return static_cast<uint64_t>(found.f_bavail) * found.f_frsize;
}

Result<std::unique_ptr<BlobLock>> BlobLock::try_take(const std::string& path) {
  for (;;) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0664);
    if (fd < 0) return fail(write_error(errno, path));
    std::unique_ptr<BlobLock> lock(new BlobLock(fd));
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return std::unique_ptr<BlobLock>();
      if (errno == EINTR) continue;
      // File systems without locks: the blob is checked by its hash all the same.
      return lock;
    }
    // Its last holder may have removed the file between our two calls.
    struct stat held = {};
    if (::fstat(fd, &held) == 0 && held.st_nlink > 0) return lock;
  }
}

BlobLock::~BlobLock() { ::close(fd_); }

}  // namespace moxie::hub
