// Maps files read-only, and advises the kernel of pages to read ahead or to drop.
#include "weights/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace moxie {
namespace {

std::string system_reason(int error) {
  char text[256] = {};
  // GNU strerror_r returns the text, which need not be in the buffer.
  return strerror_r(error, text, sizeof text);
}

uint64_t page_bytes() {
  static const auto bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return fail("cannot be opened: " + system_reason(errno), path);
  std::shared_ptr<MappedFile> file(new MappedFile);
  file->path_ = path;
  file->descriptor_ = descriptor;
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0)
    return fail("cannot be read: " + system_reason(errno), path);
  if (!S_ISREG(status.st_mode)) return fail("is not a regular file", path);
  const auto size = static_cast<uint64_t>(status.st_size);
  if (size == 0) return std::shared_ptr<const MappedFile>(file);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
  if (data == MAP_FAILED) return fail("cannot be mapped: " + system_reason(errno), path);
  file->bytes_ = {static_cast<const std::byte*>(data), size};
  return std::shared_ptr<const MappedFile>(file);
}

std::shared_ptr<const MappedFile> MappedFile::borrow(std::string name,
                                                     std::span<const std::byte> bytes) {
  std::shared_ptr<MappedFile> file(new MappedFile);
  file->path_ = std::move(name);
  file->bytes_ = bytes;
  return file;
}

MappedFile::~MappedFile() {
  if (descriptor_ < 0) return;
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  ::close(descriptor_);
}

void MappedFile::will_need(uint64_t offset, uint64_t num_bytes) const {
  if (descriptor_ < 0 || offset >= bytes_.size()) return;
  const uint64_t begin = offset / page_bytes() * page_bytes();
  const uint64_t end = std::min<uint64_t>(bytes_.size(), offset + num_bytes);
  ::madvise(const_cast<std::byte*>(bytes_.data()) + begin, end - begin, MADV_WILLNEED);
}

void MappedFile::release(uint64_t offset, uint64_t num_bytes) const {
  if (descriptor_ < 0 || offset >= bytes_.size()) return;
  // Reading one page maps its neighbours too: drops pages up to the borders of such groups.
  constexpr uint64_t kGroupBytes = 64 << 10;
  const uint64_t group = std::max(kGroupBytes, page_bytes());
  const uint64_t begin = offset / group * group;
  const uint64_t end = std::min<uint64_t>(
      bytes_.size(), round_up(offset + std::min<uint64_t>(num_bytes, bytes_.size()), group));
  if (begin >= end) return;
  ::madvise(const_cast<std::byte*>(bytes_.data()) + begin, end - begin, MADV_DONTNEED);
}

Status MappedFile::read(uint64_t offset, uint64_t num_bytes, std::byte* target) const {
  CHECK(offset <= bytes_.size() && num_bytes <= bytes_.size() - offset, path_);
  if (descriptor_ < 0) {
    if (num_bytes > 0) std::memcpy(target, bytes_.data() + offset, num_bytes);
    return {};
  }
  while (num_bytes > 0) {
    const ssize_t count = ::pread(descriptor_, target, num_bytes, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return fail("cannot be read: " + system_reason(errno), path_);
    if (count == 0) {
      if (Status same = check_unchanged(); !same) return same;
      return fail("ends at byte " + std::to_string(offset), path_, "fetch the file again");
    }
    offset += static_cast<uint64_t>(count);
    target += count;
    num_bytes -= static_cast<uint64_t>(count);
  }
  return {};
}

Status MappedFile::check_unchanged() const {
  if (descriptor_ < 0) return {};
  struct stat status = {};
  if (::fstat(descriptor_, &status) != 0) return fail("cannot be read any more", path_);
  if (static_cast<uint64_t>(status.st_size) < bytes_.size()) {
    return fail("has been shortened from " + std::to_string(bytes_.size()) + " to " +
                    std::to_string(status.st_size) + " bytes since it was opened",
                path_, "let the copy or download finish, then start again");
  }
  return {};
}

}  // namespace moxie
