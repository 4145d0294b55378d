// The hashes by which a hub names contents: SHA-256 of large files, git's blob hash of small ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace moxie::hub {

enum class HashKind {
  kSha256,   ///< of the content: files in LFS
  kGitBlob,  ///< SHA-1 of "blob SIZE\0" and the content: files in git itself
};

/// Fed in order; one use.
class Hasher {
 public:
  /// `size` is the whole content's: git hashes it first.
  Hasher(HashKind kind, uint64_t size);
  void add(std::span<const std::byte> bytes);
  /// Lower-case hexadecimal digits.
  std::string finish();

 private:
  struct Free {
    void operator()(void* context) const;
  };
  std::unique_ptr<void, Free> context_;
};

}  // namespace moxie::hub
