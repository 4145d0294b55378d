// The embedded model's bytes lie in the program; those of other checkpoints are read from their
// files.
#include "lab/weights_origin.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>
#include <system_error>
#include <vector>

#include "model/embedded.h"
#include "weights/mapped_file.h"

namespace moxie {
namespace {

constexpr uint64_t kPieceBytes = 64 << 10;
constexpr uint64_t kMostPieces = 64;

class Hash {
 public:
  Hash() { XXH3_128bits_reset(&state_); }
  void add(const void* bytes, size_t size) { XXH3_128bits_update(&state_, bytes, size); }
  void add(const std::string& text) { add(text.c_str(), text.size() + 1); }
  void add(uint64_t value) { add(&value, sizeof value); }
  std::string text() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(&state_);
    char digits[33];
    std::snprintf(digits, sizeof digits, "%016llx%016llx",
                  static_cast<unsigned long long>(hash.high64),
                  static_cast<unsigned long long>(hash.low64));
    return digits;
  }

 private:
  XXH3_state_t state_;
};

Status add_samples(const MappedFile& file, Hash* hash) {
  const uint64_t size = file.bytes().size();
  hash->add(size);
  const uint64_t num_pieces = std::min(kMostPieces, (size + kPieceBytes - 1) / kPieceBytes);
  std::vector<std::byte> piece(kPieceBytes);
  for (uint64_t i = 0; i < num_pieces; ++i) {
    const uint64_t last = size > kPieceBytes ? size - kPieceBytes : 0;
    const uint64_t at = num_pieces > 1 ? last / (num_pieces - 1) * i : 0;
    const uint64_t count = std::min(kPieceBytes, size - at);
    if (auto status = file.read(at, count, piece.data()); !status) return status;
    hash->add(piece.data(), count);
  }
  return {};
}

std::string hash_of(const Checkpoint& checkpoint, const std::vector<StoredTensor>& tensors) {
  if (checkpoint.kind() == CheckpointKind::kSynthetic) return "";
  Hash hash;
  std::set<std::string> files;
  for (const StoredTensor& tensor : tensors) {
    files.insert(tensor.file);
    hash.add(tensor.name);
    hash.add(tensor.dtype);
    for (int i = 0; i < tensor.shape.rank; ++i) hash.add(static_cast<uint64_t>(tensor.shape[i]));
  }
  if (checkpoint.path() == "embedded") {
    hash.add(embedded_model().weights.data(), embedded_model().weights.size());
    return hash.text();
  }
  for (const std::string& path : files) {
    auto file = MappedFile::open(path);
    if (!file || !add_samples(**file, &hash)) return "";
  }
  return hash.text();
}

}  // namespace

WeightsOrigin weights_origin(const Checkpoint& checkpoint, uint64_t packed_bytes) {
  WeightsOrigin origin{.model = checkpoint.path(), .bytes = packed_bytes};
  std::error_code error;
  if (std::filesystem::exists(origin.model, error)) {
    origin.model = std::filesystem::absolute(origin.model, error).lexically_normal().string();
  }
  const auto tensors = checkpoint.tensors();
  origin.hash = hash_of(checkpoint, tensors);
  std::set<std::string> formats;
  for (const StoredTensor& tensor : tensors) formats.insert(tensor.dtype);
  origin.formats.assign(formats.begin(), formats.end());
  return origin;
}

}  // namespace moxie
