// Reads safetensors: an 8-byte little-endian header length, a JSON header
// {name: {dtype, shape, data_offsets}}, then the data, which the tensors must cover without holes.
//
// Nothing is trusted: lengths, counts, products and offsets are checked, and all faults of a file
// are reported at once. The bytes may be a mapped file or lie in memory.
#pragma once

#include <string>
#include <vector>

#include "weights/tensor_file.h"

namespace moxie {

/// The greatest header that is read: a hostile length must not cost memory.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

TensorFile read_safetensors(std::shared_ptr<const MappedFile> file);

/// A sound safetensors file whose tensors are looked up by name.
class SafetensorsFile {
 public:
  /// Fails with the file's faults, if it has any.
  static Result<SafetensorsFile> open(const std::string& path);
  static Result<SafetensorsFile> read(std::shared_ptr<const MappedFile> file);
  /// Null if no tensor has this name.
  const FileTensor* find(const std::string& name) const;
  const std::vector<FileTensor>& tensors() const { return contents_.tensors; }
  const TensorFile& contents() const { return contents_; }
  const std::byte* data(const FileTensor& tensor) const { return contents_.data(tensor); }

 private:
  explicit SafetensorsFile(TensorFile contents) : contents_(std::move(contents)) {}
  TensorFile contents_;
};

}  // namespace moxie
