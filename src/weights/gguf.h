// Reads GGUF versions 2 and 3, little-endian: magic, version, counts, metadata (typed key-value
// pairs), tensor entries, then aligned data.
//
// Nothing is trusted: every count is bounded by the bytes that are left, products and offsets are
// checked, and all faults of a file are reported at once. Arrays are not copied: they stay spans of
// the file until someone asks for them. Source of the format: the GGUF specification (ggml, docs).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "weights/tensor_file.h"

namespace moxie {

/// Value types by their numbers in the file.
enum class GgufType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

/// An array as it lies in the file: packed numbers, or strings of 8-byte length and bytes.
struct GgufArray {
  GgufType type = GgufType::kU8;
  uint64_t count = 0;
  std::span<const std::byte> bytes;
};

/// One value; whole numbers of any width as uint64_t or int64_t.
using GgufValue = std::variant<uint64_t, int64_t, double, bool, std::string_view, GgufArray>;

struct GgufFile {
  TensorFile contents;
  uint32_t version = 0;
  uint64_t alignment = 32;
  std::vector<std::pair<std::string, GgufValue>> metadata;
  /// Whether metadata and tensor entries could be read to their end.
  bool is_header_whole = false;

  const GgufValue* find(std::string_view key) const;
  /// Empty where the key is absent or of another kind. Whole numbers of either sign and whole
  /// floating-point values count as integers; an array of integers gives its first.
  std::optional<int64_t> integer(std::string_view key) const;
  std::optional<double> real(std::string_view key) const;
  std::optional<std::string> text(std::string_view key) const;
  std::vector<std::string> texts(std::string_view key) const;
  std::vector<int32_t> integers(std::string_view key) const;
};

GgufFile read_gguf(std::shared_ptr<const MappedFile> file);

/// "MXFP4" for 39, ...; "type 77" for an unknown type.
std::string gguf_type_name(uint32_t type);

}  // namespace moxie
