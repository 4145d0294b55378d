#include "hub/partial_blob.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "hub/cache.h"

namespace moxie::hub {

PartialBlob::PartialBlob(int fd, std::string path, const RepoFile& file)
    : fd_(fd),
      path_(std::move(path)),
      bytes_(file.bytes),
      hash_kind_(file.hash),
      hasher_(file.hash, file.bytes) {}

PartialBlob::~PartialBlob() { ::close(fd_); }

Result<std::unique_ptr<PartialBlob>> PartialBlob::open(const std::string& path,
                                                       const RepoFile& file,
                                                       const std::atomic<bool>& stop) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (fd < 0) return fail(write_error(errno, path));
  std::unique_ptr<PartialBlob> blob(new PartialBlob(fd, path, file));
  if (Status status = blob->read_found(stop); !status) return fail(status.error());
  return blob;
}

Status PartialBlob::read_found(const std::atomic<bool>& stop) {
  struct stat found = {};
  if (::fstat(fd_, &found) != 0) return fail(write_error(errno, path_));
  auto size = static_cast<uint64_t>(found.st_size);
  if (size > bytes_) {  // of something else
    size = 0;
    if (::ftruncate(fd_, 0) != 0) return fail(write_error(errno, path_));
  }
  std::vector<std::byte> block(size_t{1} << 20);
  uint64_t at = 0;
  while (at < size) {
    if (stop.load()) return fail("interrupted", path_);
    const ssize_t count = ::pread(fd_, block.data(), std::min<uint64_t>(block.size(), size - at),
                                  static_cast<off_t>(at));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0)
      return fail(std::string("cannot be read: ") + std::strerror(errno), path_,
                  "delete this file");
    hasher_.add(std::span(block).first(static_cast<size_t>(count)));
    at += static_cast<uint64_t>(count);
  }
  written_ = found_ = cut_ = size;
  return {};
}

std::optional<Piece> PartialBlob::cut(uint64_t max_bytes) {
  const std::lock_guard lock(mutex_);
  if (cut_ >= bytes_) return std::nullopt;
  Piece piece{.at = cut_, .end = std::min(bytes_, cut_ + max_bytes), .generation = generation_};
  cut_ = piece.end;
  return piece;
}

Status PartialBlob::write(std::span<const std::byte> bytes) {
  hasher_.add(bytes);
  while (!bytes.empty()) {
    const ssize_t count =
        ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(written_.load()));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return fail(write_error(count < 0 ? errno : ENOSPC, path_));
    written_ += static_cast<uint64_t>(count);
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return {};
}

Status PartialBlob::write_waiting() {
  while (!waiting_.empty() && waiting_.begin()->first == written_) {
    const std::vector<std::byte> bytes = std::move(waiting_.begin()->second);
    waiting_.erase(waiting_.begin());
    num_waiting_ = waiting_.size();
    if (Status status = write(bytes); !status) return status;
  }
  return {};
}

Status PartialBlob::accept(Piece* piece, std::span<const std::byte> bytes) {
  CHECK(bytes.size() <= piece->end - piece->at);
  const std::lock_guard lock(mutex_);
  if (is_obsolete(*piece)) return {};
  const bool is_next = piece->at - piece->kept.size() == written_;
  if (!is_next && piece->kept.empty()) piece->kept.reserve(piece->end - piece->at);
  piece->at += bytes.size();
  if (!is_next) {
    piece->kept.insert(piece->kept.end(), bytes.begin(), bytes.end());
    return {};
  }
  if (Status status = write(piece->kept); !status) return status;
  piece->kept.clear();
  return write(bytes);
}

Status PartialBlob::close(Piece* piece) {
  CHECK(piece->at == piece->end);
  const std::lock_guard lock(mutex_);
  if (is_obsolete(*piece)) return {};
  if (!piece->kept.empty())
    waiting_.emplace(piece->at - piece->kept.size(), std::move(piece->kept));
  piece->kept = {};
  num_waiting_ = waiting_.size();
  return write_waiting();
}

Status PartialBlob::drop() {
  ++generation_;
  written_ = found_ = cut_ = 0;
  hasher_ = Hasher(hash_kind_, bytes_);
  waiting_.clear();
  num_waiting_ = 0;
  if (::ftruncate(fd_, 0) != 0) return fail(write_error(errno, path_));
  return {};
}

Status PartialBlob::reset() {
  const std::lock_guard lock(mutex_);
  return drop();
}

Result<bool> PartialBlob::start_over(Piece* piece) {
  const std::lock_guard lock(mutex_);
  if (is_obsolete(*piece)) return false;
  if (Status status = drop(); !status) return fail(status.error());
  cut_ = bytes_;
  *piece = {.at = 0, .end = bytes_, .generation = generation_};
  return true;
}

std::string PartialBlob::hash() {
  const std::lock_guard lock(mutex_);
  return hasher_.finish();
}

Status PartialBlob::publish(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (::fdatasync(fd_) != 0 && errno != EINVAL && errno != EROFS)
    return fail(write_error(errno, path_));
  if (::rename(path_.c_str(), path.c_str()) != 0) return fail(write_error(errno, path));
  return {};
}

}  // namespace moxie::hub
