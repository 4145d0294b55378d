// A blob that is being fetched, in pieces and by several threads. The file grows in order, so that
// its length alone says where an interrupted fetch goes on, and its hash is computed as it grows.
// Pieces that come early are kept in memory until their turn.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base.h"
#include "hub/listing.h"

namespace moxie::hub {

/// A range of a blob that one thread fetches.
struct Piece {
  uint64_t at = 0, end = 0;     ///< still to come
  uint64_t generation = 0;      ///< of the blob when it was cut
  std::vector<std::byte> kept;  ///< came before their turn: the bytes up to `at`
};

class PartialBlob {
 public:
  /// Opens or makes `path`, and reads what an interrupted fetch has left: a fault if `stop` becomes
  /// true meanwhile.
  static Result<std::unique_ptr<PartialBlob>> open(const std::string& path, const RepoFile& file,
                                                   const std::atomic<bool>& stop);
  ~PartialBlob();
  PartialBlob(const PartialBlob&) = delete;
  PartialBlob& operator=(const PartialBlob&) = delete;

  /// The next `max_bytes` that nobody fetches yet; none if all are being fetched or are there.
  std::optional<Piece> cut(uint64_t max_bytes);
  /// Whether the blob has started over since: what the piece brings is of no use.
  bool is_obsolete(const Piece& piece) const { return piece.generation != generation_; }

  /// Takes what follows piece->at. `bytes` are no more than the piece lacks.
  Status accept(Piece* piece, std::span<const std::byte> bytes);
  /// After the last byte of a piece.
  Status close(Piece* piece);
  /// Drops all that is there; the piece becomes the whole blob. False if it is obsolete.
  Result<bool> start_over(Piece* piece);
  /// Drops all that is there: the blob is cut from its beginning again.
  Status reset();

  /// Bytes in the file, from its beginning.
  uint64_t written() const { return written_; }
  bool is_whole() const { return written_ == bytes_; }
  /// Pieces that came before their turn.
  size_t num_waiting() const { return num_waiting_; }
  /// What an earlier fetch left, which this one has used.
  uint64_t found() const { return found_; }
  /// The whole blob's hash; one use, then only reset().
  std::string hash();
  /// To the disk itself, then under its name.
  Status publish(const std::string& path);

 private:
  PartialBlob(int fd, std::string path, const RepoFile& file);
  Status read_found(const std::atomic<bool>& stop);
  // These with the mutex held.
  Status drop();
  Status write(std::span<const std::byte> bytes);
  Status write_waiting();

  const int fd_;
  const std::string path_;
  const uint64_t bytes_;
  const HashKind hash_kind_;
  std::atomic<uint64_t> generation_{0}, written_{0}, found_{0};
  std::atomic<size_t> num_waiting_{0};
  std::mutex mutex_;  // of the rest, and of the file
  uint64_t cut_ = 0;  // where the next piece begins
  Hasher hasher_;
  std::map<uint64_t, std::vector<std::byte>> waiting_;  // by offset
};

}  // namespace moxie::hub
