// The GGUF header, read front to back with a cursor that never passes the end.
#include "weights/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <unordered_set>

namespace moxie {
namespace {

struct TensorType {
  uint32_t id;
  const char* name;
  uint32_t block_elements, block_bytes;
  std::optional<DType> dtype;
};
// Sizes as ggml defines them. Types without a DType are listed so that inspect can name them.
constexpr TensorType kTensorTypes[] = {
    {0, "F32", 1, 4, DType::kF32},        {1, "F16", 1, 2, DType::kF16},
    {2, "Q4_0", 32, 18, std::nullopt},    {3, "Q4_1", 32, 20, std::nullopt},
    {6, "Q5_0", 32, 22, std::nullopt},    {7, "Q5_1", 32, 24, std::nullopt},
    {8, "Q8_0", 32, 34, DType::kQ8_0},    {9, "Q8_1", 32, 36, std::nullopt},
    {10, "Q2_K", 256, 84, std::nullopt},  {11, "Q3_K", 256, 110, std::nullopt},
    {12, "Q4_K", 256, 144, std::nullopt}, {13, "Q5_K", 256, 176, std::nullopt},
    {14, "Q6_K", 256, 210, std::nullopt}, {15, "Q8_K", 256, 292, std::nullopt},
    {24, "I8", 1, 1, DType::kI8},         {25, "I16", 1, 2, std::nullopt},
    {26, "I32", 1, 4, DType::kI32},       {27, "I64", 1, 8, DType::kI64},
    {28, "F64", 1, 8, DType::kF64},       {30, "BF16", 1, 2, DType::kBF16},
    {39, "MXFP4", 32, 17, DType::kMXFP4},
};
const TensorType* find_type(uint32_t id) {
  for (const TensorType& type : kTensorTypes)
    if (type.id == id) return &type;
  return nullptr;
}

constexpr uint64_t kMaxElements = uint64_t{1} << 60;

// Bytes of one value of a fixed-size type; 0 for strings and arrays.
uint64_t value_bytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
      return 8;
    default:
      return 0;
  }
}

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

GgufValue scalar(GgufType type, const std::byte* at) {
  switch (type) {
    case GgufType::kU8:
      return uint64_t{load<uint8_t>(at)};
    case GgufType::kI8:
      return int64_t{load<int8_t>(at)};
    case GgufType::kU16:
      return uint64_t{load<uint16_t>(at)};
    case GgufType::kI16:
      return int64_t{load<int16_t>(at)};
    case GgufType::kU32:
      return uint64_t{load<uint32_t>(at)};
    case GgufType::kI32:
      return int64_t{load<int32_t>(at)};
    case GgufType::kF32:
      return double{load<float>(at)};
    case GgufType::kBool:
      return load<uint8_t>(at) != 0;
    case GgufType::kU64:
      return load<uint64_t>(at);
    case GgufType::kI64:
      return load<int64_t>(at);
    default:
      return load<double>(at);
  }
}

std::string shown(std::string_view text) {
  std::string out(text.substr(0, 200));
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 32 || c == 127) c = '?';
  return out;
}

// Takes values off the front of the file. After the first that does not fit, it takes no more.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}
  uint64_t at() const { return at_; }
  bool is_good() const { return is_good_; }
  const std::byte* take(uint64_t num_bytes) {
    if (!is_good_ || num_bytes > bytes_.size() - at_) {
      is_good_ = false;
      return nullptr;
    }
    const std::byte* data = bytes_.data() + at_;
    at_ += num_bytes;
    return data;
  }
  template <typename T>
  T number() {
    const std::byte* data = take(sizeof(T));
    return data == nullptr ? T{} : load<T>(data);
  }
  std::string_view text() {
    const auto length = number<uint64_t>();
    const std::byte* data = take(length);
    if (data == nullptr) return {};
    return {reinterpret_cast<const char*>(data), length};
  }

 private:
  std::span<const std::byte> bytes_;
  uint64_t at_ = 0;
  bool is_good_ = true;
};

class GgufReader {
 public:
  explicit GgufReader(GgufFile* out)
      : out_(out), path_(out->contents.file->path()), cursor_(out->contents.file->bytes()) {}

  void read() {
    read_header_and_place();
    if (out_->is_header_whole) return;
    // Without the header's end the beginning of the data is unknown.
    for (FileTensor& tensor : out_->contents.tensors) {
      tensor.is_readable = false;
      tensor.offset = 0;
    }
  }

 private:
  void read_header_and_place() {
    if (!read_prologue()) return;
    for (uint64_t i = 0; i < num_pairs_; ++i) {
      if (!read_pair(i)) return;
    }
    read_alignment();
    const uint64_t num_bytes = out_->contents.file->bytes().size();
    for (uint64_t i = 0; i < num_tensors_; ++i) {
      if (!read_tensor(i)) return;
    }
    out_->is_header_whole = true;
    const uint64_t data_begin =
        std::min(num_bytes, round_up<uint64_t>(cursor_.at(), out_->alignment));
    place_tensors(data_begin, num_bytes - data_begin);
  }

  bool broken(std::string found, std::string expected) {
    out_->contents.faults.add({path_, "", std::move(found), std::move(expected)});
    return false;
  }
  bool cut_off(const std::string& what) {
    return broken(fmt::format("{} that does not end inside the file of {} bytes", what,
                              out_->contents.file->bytes().size()),
                  "a whole file");
  }

  bool read_prologue() {
    const std::byte* magic = cursor_.take(4);
    if (magic == nullptr || std::memcmp(magic, "GGUF", 4) != 0)
      return broken("another magic number", "\"GGUF\"");
    out_->version = cursor_.number<uint32_t>();
    num_tensors_ = cursor_.number<uint64_t>();
    num_pairs_ = cursor_.number<uint64_t>();
    if (!cursor_.is_good()) return cut_off("a header");
    if (out_->version != 2 && out_->version != 3) {
      const bool is_swapped = (out_->version & 0xFFFFu) == 0;
      return broken(
          fmt::format("version {}{}", out_->version, is_swapped ? " (a big-endian file)" : ""),
          "version 2 or 3, little-endian");
    }
    // The least sizes of a pair and of a tensor entry bound both counts.
    const uint64_t num_bytes = out_->contents.file->bytes().size();
    if (num_pairs_ > num_bytes / 13)
      return broken(fmt::format("{} metadata pairs", num_pairs_),
                    fmt::format("at most {} in {} bytes", num_bytes / 13, num_bytes));
    if (num_tensors_ > num_bytes / 24)
      return broken(fmt::format("{} tensors", num_tensors_),
                    fmt::format("at most {} in {} bytes", num_bytes / 24, num_bytes));
    return true;
  }

  bool read_pair(uint64_t i) {
    const std::string key(cursor_.text());
    const auto type = cursor_.number<uint32_t>();
    if (!cursor_.is_good()) return cut_off(fmt::format("metadata pair {}", i));
    GgufValue value;
    if (!read_value(shown(key), type, &value)) return false;
    if (!keys_.insert(key).second)
      out_->contents.faults.add({path_, shown(key), "the key twice", "once"});
    out_->metadata.emplace_back(key, value);
    return true;
  }

  bool read_value(const std::string& key, uint32_t type, GgufValue* value) {
    if (type > static_cast<uint32_t>(GgufType::kF64))
      return broken(fmt::format("the value type {} of {}", type, key), "a type of 0 to 12");
    const auto kind = static_cast<GgufType>(type);
    if (kind == GgufType::kString) {
      *value = cursor_.text();
    } else if (kind == GgufType::kArray) {
      GgufArray array;
      if (!read_array(key, 0, &array)) return false;
      *value = array;
    } else if (const std::byte* at = cursor_.take(value_bytes(kind))) {
      *value = scalar(kind, at);
    }
    return cursor_.is_good() || cut_off("the value of " + key);
  }

  // Arrays may hold arrays; nothing known nests deeper than a few levels.
  bool read_array(const std::string& key, int depth, GgufArray* array) {
    const auto type = cursor_.number<uint32_t>();
    array->count = cursor_.number<uint64_t>();
    if (!cursor_.is_good()) return cut_off("the array " + key);
    if (type > static_cast<uint32_t>(GgufType::kF64) || depth > 4)
      return broken(fmt::format("the element type {} of {}", type, key), "a type of 0 to 12");
    array->type = static_cast<GgufType>(type);
    const uint64_t begin = cursor_.at();
    if (const uint64_t width = value_bytes(array->type); width > 0) {
      uint64_t num_bytes = 0;
      if (!checked_mul(array->count, width, &num_bytes) || cursor_.take(num_bytes) == nullptr)
        return cut_off(fmt::format("the array {} of {} values", key, array->count));
    } else {
      for (uint64_t i = 0; i < array->count; ++i) {
        GgufArray inner;
        if (array->type == GgufType::kString)
          cursor_.text();
        else if (!read_array(key, depth + 1, &inner))
          return false;
        if (!cursor_.is_good())
          return cut_off(fmt::format("the array {} of {} values", key, array->count));
      }
    }
    array->bytes = out_->contents.file->bytes().subspan(begin, cursor_.at() - begin);
    return true;
  }

  void read_alignment() {
    if (out_->find("general.alignment") == nullptr) return;
    const int64_t alignment = out_->integer("general.alignment").value_or(0);
    if (alignment < 8 || alignment > (1 << 20) || (alignment & (alignment - 1)) != 0) {
      out_->contents.faults.add(
          {path_, "general.alignment", std::to_string(alignment), "a power of two of 8 to 2^20"});
    } else {
      out_->alignment = static_cast<uint64_t>(alignment);
    }
  }

  bool read_tensor(uint64_t i) {
    FileTensor tensor;
    tensor.name = std::string(cursor_.text());
    const auto rank = cursor_.number<uint32_t>();
    if (!cursor_.is_good()) return cut_off(fmt::format("tensor entry {}", i));
    if (rank < 1 || rank > 4)
      return broken(fmt::format("{} dimensions of {}", rank, shown(tensor.name)), "1 to 4");
    uint64_t dims[4] = {};
    for (uint32_t d = 0; d < rank; ++d) dims[d] = cursor_.number<uint64_t>();
    const auto type_id = cursor_.number<uint32_t>();
    tensor.offset = cursor_.number<uint64_t>();  // within the data; from the file's start later
    if (!cursor_.is_good()) return cut_off("the entry of tensor " + shown(tensor.name));
    tensor.dtype_text = gguf_type_name(type_id);
    tensor.is_readable = check_tensor(&tensor, std::span(dims, rank), find_type(type_id));
    out_->contents.tensors.push_back(std::move(tensor));
    return true;
  }

  bool check_tensor(FileTensor* tensor, std::span<const uint64_t> dims, const TensorType* type) {
    const std::string name = shown(tensor->name);
    bool is_right = true;
    const auto fault = [&](std::string found, std::string expected) {
      is_right = false;
      out_->contents.faults.add({path_, name, std::move(found), std::move(expected)});
    };
    if (!names_.insert(tensor->name).second) fault("the name twice", "once");
    uint64_t num_elements = 1;  // zeros count as ones, so that they hide no absurd dimension
    bool is_empty = false;
    for (size_t d = 0; d < dims.size(); ++d) {
      is_empty = is_empty || dims[d] == 0;
      if (dims[d] > kMaxElements ||
          !checked_mul(num_elements, std::max<uint64_t>(dims[d], 1), &num_elements) ||
          num_elements > kMaxElements) {
        fault("the dimensions " + fmt::format("{}", fmt::join(dims, " x ")),
              "at most 2^60 elements");
        return false;
      }
      // The file has dimensions innermost first.
      tensor->shape.dims[dims.size() - 1 - d] = static_cast<int64_t>(dims[d]);
    }
    tensor->shape.rank = static_cast<int>(dims.size());
    if (type == nullptr) {
      fault("the unknown " + tensor->dtype_text, "F32, F16, BF16, Q8_0 or MXFP4");
      return false;
    }
    tensor->dtype = type->dtype;
    if (dims[0] % type->block_elements != 0) {
      fault(fmt::format("{} columns of {}", dims[0], type->name),
            fmt::format("a multiple of {}", type->block_elements));
      return false;
    }
    if (is_empty) num_elements = 0;
    if (!checked_mul(num_elements / type->block_elements, type->block_bytes, &tensor->bytes))
      fault(fmt::format("{} elements", num_elements), "at most 2^60 bytes");
    if (tensor->offset % out_->alignment != 0)
      fault(fmt::format("the offset {}", tensor->offset),
            fmt::format("a multiple of {}", out_->alignment));
    return is_right;
  }

  void place_tensors(uint64_t data_begin, uint64_t data_bytes) {
    std::vector<ClaimedRange> ranges;
    bool is_complete = true;
    for (FileTensor& tensor : out_->contents.tensors) {
      is_complete = is_complete && tensor.is_readable;
      if (!tensor.is_readable) continue;
      uint64_t end = 0;
      if (!checked_add(tensor.offset, tensor.bytes, &end) || end > data_bytes) {
        tensor.is_readable = is_complete = false;
        out_->contents.faults.add(
            {path_, shown(tensor.name),
             fmt::format("{} bytes at offset {}", tensor.bytes, tensor.offset),
             fmt::format("an end of at most {}, the bytes that the file has after its header",
                         data_bytes)});
        continue;
      }
      ranges.push_back({tensor.offset, end, &tensor.name});
      tensor.offset += data_begin;
    }
    // Holes are certain only if every tensor's range is known.
    check_ranges(path_, std::move(ranges), 0, data_bytes,
                 is_complete ? out_->alignment : UINT64_MAX, &out_->contents.faults);
  }

  GgufFile* out_;
  const std::string& path_;
  Cursor cursor_;
  uint64_t num_tensors_ = 0, num_pairs_ = 0;
  std::unordered_set<std::string> keys_, names_;
};

}  // namespace

std::string gguf_type_name(uint32_t type) {
  const TensorType* known = find_type(type);
  return known != nullptr ? known->name : fmt::format("type {}", type);
}

const GgufValue* GgufFile::find(std::string_view key) const {
  for (const auto& [name, value] : metadata)
    if (name == key) return &value;
  return nullptr;
}

std::optional<double> GgufFile::real(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* number = std::get_if<double>(value)) return *number;
  if (const auto* number = std::get_if<uint64_t>(value)) return static_cast<double>(*number);
  if (const auto* number = std::get_if<int64_t>(value)) return static_cast<double>(*number);
  return std::nullopt;
}

std::optional<int64_t> GgufFile::integer(std::string_view key) const {
  if (const GgufValue* value = find(key); value != nullptr) {
    const auto* array = std::get_if<GgufArray>(value);
    if (array != nullptr && array->count > 0 && value_bytes(array->type) > 0) {
      const std::vector<int32_t> all = integers(key);
      return all.empty() ? std::nullopt : std::optional<int64_t>(all[0]);
    }
  }
  const std::optional<double> number = real(key);
  // Beyond 2^53 doubles skip whole numbers; no valid count is near.
  if (!number || !(std::fabs(*number) <= 9007199254740992.0) || *number != std::floor(*number))
    return std::nullopt;
  return static_cast<int64_t>(*number);
}

std::optional<std::string> GgufFile::text(std::string_view key) const {
  const GgufValue* value = find(key);
  const auto* text = value == nullptr ? nullptr : std::get_if<std::string_view>(value);
  if (text == nullptr) return std::nullopt;
  return std::string(*text);
}

std::vector<std::string> GgufFile::texts(std::string_view key) const {
  std::vector<std::string> out;
  const GgufValue* value = find(key);
  const auto* array = value == nullptr ? nullptr : std::get_if<GgufArray>(value);
  if (array == nullptr || array->type != GgufType::kString) return out;
  Cursor cursor(array->bytes);
  for (uint64_t i = 0; i < array->count; ++i) out.emplace_back(cursor.text());
  return out;
}

std::vector<int32_t> GgufFile::integers(std::string_view key) const {
  std::vector<int32_t> out;
  const GgufValue* value = find(key);
  const auto* array = value == nullptr ? nullptr : std::get_if<GgufArray>(value);
  if (array == nullptr) return out;
  const uint64_t width = value_bytes(array->type);
  for (uint64_t i = 0; width > 0 && i < array->count; ++i) {
    const GgufValue one = scalar(array->type, array->bytes.data() + i * width);
    if (const auto* number = std::get_if<uint64_t>(&one)) {
      out.push_back(static_cast<int32_t>(*number));
    } else if (const auto* signed_number = std::get_if<int64_t>(&one)) {
      out.push_back(static_cast<int32_t>(*signed_number));
    } else {
      return {};
    }
  }
  return out;
}

GgufFile read_gguf(std::shared_ptr<const MappedFile> file) {
  GgufFile out;
  out.contents.file = std::move(file);
  GgufReader(&out).read();
  return out;
}

}  // namespace moxie
