// Writes small GGUF files in memory for tests: metadata, tensors, and nothing checked, so that
// faulty files can be made too.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moxie {

class GgufWriter {
 public:
  uint32_t version = 3;
  uint64_t alignment = 32;  ///< of the data; written as a key when it is not 32

  template <typename T>
  static std::string raw(T value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);
  }
  static std::string text(std::string_view value) {
    return raw<uint64_t>(value.size()) + std::string(value);
  }

  /// A pair with its value type's number and its bytes as given.
  void pair(std::string_view key, uint32_t type, const std::string& value_bytes) {
    pairs_ += text(key) + raw(type) + value_bytes;
    ++num_pairs_;
  }
  void add(std::string_view key, std::string_view value) { pair(key, 8, text(value)); }
  void add(std::string_view key, uint32_t value) { pair(key, 4, raw(value)); }
  void add(std::string_view key, float value) { pair(key, 6, raw(value)); }
  void add(std::string_view key, const std::vector<std::string>& values);
  void add(std::string_view key, const std::vector<int32_t>& values);

  /// `dims` outermost first, `type` as ggml numbers it.
  void tensor(std::string_view name, uint32_t type, const std::vector<uint64_t>& dims,
              const std::string& data) {
    tensor_at(name, type, dims, data_.size(), data);
  }
  /// The same, claiming to lie at `offset`.
  void tensor_at(std::string_view name, uint32_t type, const std::vector<uint64_t>& dims,
                 uint64_t offset, const std::string& data);

  std::string bytes() const;

 private:
  std::string pairs_, entries_, data_;
  uint64_t num_pairs_ = 0, num_tensors_ = 0;
};

}  // namespace moxie
