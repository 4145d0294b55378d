// A file's bytes, mapped for reading, or bytes that already lie in memory (the embedded model,
// tests, fuzzers) under a name.
//
// The length is taken once, when the file is opened, and every offset is checked against it. A file
// that is shortened while mapped raises SIGBUS on access; check_unchanged() finds that before a
// long read starts, nothing can exclude it during one.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "core/base.h"

namespace moxie {

class MappedFile {
 public:
  /// Maps a regular file (an empty one too). Fails with the system's reason.
  static Result<std::shared_ptr<const MappedFile>> open(const std::string& path);
  /// Borrows bytes that outlive the result; `name` stands in messages.
  static std::shared_ptr<const MappedFile> borrow(std::string name,
                                                  std::span<const std::byte> bytes);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }

  /// Copies bytes to `target` without touching the mapping, so that a file that has become shorter
  /// since it was opened gives an error, not a signal. Any number of threads may read at once.
  Status read(uint64_t offset, uint64_t num_bytes, std::byte* target) const;
  /// Asks the system to read [offset, offset + num_bytes) ahead.
  void will_need(uint64_t offset, uint64_t num_bytes) const;
  /// Drops the pages of the range, and a few around it, from this process's resident memory; they
  /// can still be read again. Keeps the peak low while weights are repacked.
  void release(uint64_t offset, uint64_t num_bytes) const;
  /// Fails if the file is shorter than when it was opened.
  Status check_unchanged() const;

 private:
  MappedFile() = default;
  std::string path_;
  std::span<const std::byte> bytes_;
  int descriptor_ = -1;
};

}  // namespace moxie
