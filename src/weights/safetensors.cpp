// Reads the safetensors header as a stream of JSON events, without a document: so a hostile header
// costs no more memory than its length, and duplicate names are found.
#include "weights/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>

namespace moxie {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

struct TypeName {
  const char* text;
  int bits;
  std::optional<DType> dtype;
};
constexpr TypeName kTypes[] = {
    {"F32", 32, DType::kF32},     {"F16", 16, DType::kF16},     {"BF16", 16, DType::kBF16},
    {"U8", 8, DType::kU8},        {"I8", 8, DType::kI8},        {"I32", 32, DType::kI32},
    {"I64", 64, DType::kI64},     {"F64", 64, DType::kF64},     {"F8_E4M3", 8, DType::kF8E4M3},
    {"F8_E5M2", 8, std::nullopt}, {"F8_E8M0", 8, std::nullopt}, {"BOOL", 8, std::nullopt},
    {"I16", 16, std::nullopt},    {"U16", 16, std::nullopt},    {"U32", 32, std::nullopt},
    {"U64", 64, std::nullopt},    {"F4", 4, std::nullopt},      {"F6_E2M3", 6, std::nullopt},
    {"F6_E3M2", 6, std::nullopt}, {"C64", 64, std::nullopt},
};
const TypeName* find_type(const std::string& text) {
  for (const TypeName& type : kTypes)
    if (text == type.text) return &type;
  return nullptr;
}

constexpr uint64_t kMaxElements = uint64_t{1} << 60;

std::string shape_text(const std::vector<uint64_t>& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size() && i < 8; ++i)
    text += (i > 0 ? ", " : "") + std::to_string(dims[i]);
  if (dims.size() > 8) text += ", ...";
  return text + "]";
}

// Makes names from the file fit for a terminal: no control characters, no absurd lengths.
std::string shown(const std::string& text) {
  std::string out = text.size() <= 200 ? text : text.substr(0, 200) + "...";
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 32 || c == 127) c = '?';
  return out;
}

// Receives the header's JSON events. Events that break the header's form end the parse; a wrong
// value inside one tensor's entry is recorded and the parse goes on.
class HeaderReader {
 public:
  using Json = nlohmann::json;
  HeaderReader(const std::string& path, uint64_t data_begin, uint64_t data_bytes, TensorFile* out)
      : path_(path), data_begin_(data_begin), data_bytes_(data_bytes), out_(out) {}

  bool null() { return other_value("null"); }
  bool boolean(bool) { return other_value("true or false"); }
  bool number_integer(Json::number_integer_t value) {
    return other_value("the number " + std::to_string(value));
  }
  bool number_float(Json::number_float_t, const std::string& text) {
    return other_value("the number " + shown(text));
  }
  bool binary(Json::binary_t&) { return false; }
  bool number_unsigned(Json::number_unsigned_t value) {
    if (!in_array_) return other_value("the number " + std::to_string(value));
    std::vector<uint64_t>& list = field_ == "shape" ? shape_ : offsets_;
    if (list.size() < 64) list.push_back(value);
    return true;
  }
  bool string(std::string& text) {
    if (is_metadata_) return true;
    if (depth_ == 2 && !in_array_ && field_ == "dtype") {
      dtype_ = text;
      return true;
    }
    return other_value("the text \"" + shown(text) + "\"");
  }
  bool key(std::string& text) {
    if (depth_ == 2) {
      field_ = text;
      if (!is_metadata_ && field_ != "dtype" && field_ != "shape" && field_ != "data_offsets")
        fault("the field \"" + shown(text) + "\"", "dtype, shape and data_offsets only");
      return true;
    }
    is_metadata_ = text == "__metadata__";
    name_ = text;
    dtype_.reset();
    shape_.clear();
    offsets_.clear();
    has_shape_ = has_offsets_ = is_broken_ = false;
    field_.clear();
    if (!names_.insert(text).second) fault("the name twice", "once");
    return true;
  }
  bool start_object(size_t) {
    if (depth_ == 2 || in_array_) return other_value("an object") && false;
    ++depth_;
    return true;
  }
  bool end_object() {
    --depth_;
    if (depth_ == 1 && !is_metadata_) finish_tensor();
    return true;
  }
  bool start_array(size_t) {
    if (depth_ != 2 || in_array_ || is_metadata_ ||
        (field_ != "shape" && field_ != "data_offsets")) {
      return other_value("a list") && false;
    }
    in_array_ = true;
    (field_ == "shape" ? has_shape_ : has_offsets_) = true;
    return true;
  }
  bool end_array() {
    in_array_ = false;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) {
    out_->faults.add({path_, "", fmt::format("a header that is not JSON at byte {}", 8 + position),
                      "a JSON object"});
    return false;
  }
  // Called once, after the last event.
  void finish() {
    if (data_end_ > data_bytes_) {
      out_->faults.add({path_, "",
                        fmt::format("{} bytes of data after the header: the file is cut off, or "
                                    "its header is wrong",
                                    data_bytes_),
                        fmt::format("{} bytes", data_end_)});
    }
    // Holes are certain only if every tensor's range is known.
    const bool is_whole = std::all_of(out_->tensors.begin(), out_->tensors.end(),
                                      [](const FileTensor& tensor) { return tensor.is_readable; });
    check_ranges(path_, std::move(ranges_), 0, data_bytes_, is_whole ? 1 : UINT64_MAX,
                 &out_->faults);
  }

 private:
  void fault(std::string found, std::string expected) {
    is_broken_ = true;
    out_->faults.add({path_, shown(name_), std::move(found), std::move(expected)});
  }
  // Handles a value of the wrong kind; true: goes on reading.
  bool other_value(const std::string& found) {
    if (depth_ == 0) {
      out_->faults.add({path_, "", "a header that is " + found, "a JSON object"});
      return false;
    }
    if (is_metadata_) {
      fault(found + " in the metadata", "text");
    } else if (depth_ == 1) {
      fault(found, "an object of dtype, shape and data_offsets");
    } else {
      fault(found + " in " + shown(field_), field_ == "dtype" ? "a type's name" : "whole numbers");
    }
    return true;
  }

  // The tensor is listed even when broken, so that it does not count as missing too.
  void finish_tensor() {
    FileTensor tensor{.name = name_, .dtype_text = dtype_.value_or("?")};
    check_tensor(&tensor);
    tensor.is_readable = !is_broken_;
    out_->tensors.push_back(std::move(tensor));
  }

  void check_tensor(FileTensor* tensor) {
    if (!dtype_) fault("no dtype", "one");
    if (!has_shape_) fault("no shape", "one");
    if (!has_offsets_) fault("no data_offsets", "two");
    if (is_broken_) return;
    const TypeName* type = find_type(*dtype_);
    if (type == nullptr) return fault("the dtype \"" + shown(*dtype_) + "\"", "a known dtype");
    if (offsets_.size() != 2 || offsets_[0] > offsets_[1])
      return fault("data_offsets " + shape_text(offsets_), "two, rising");
    tensor->dtype = type->dtype;
    // Zeros count as ones, so that they hide no absurd dimension.
    uint64_t num_elements = 1, bits = 0;
    bool fits = shape_.size() <= Shape::kMaxRank, is_empty = false;
    for (size_t i = 0; fits && i < shape_.size(); ++i) {
      is_empty = is_empty || shape_[i] == 0;
      fits = shape_[i] <= kMaxElements &&
             checked_mul(num_elements, std::max<uint64_t>(shape_[i], 1), &num_elements) &&
             num_elements <= kMaxElements;
      tensor->shape.dims[i] = static_cast<int64_t>(shape_[i]);
    }
    if (!fits || !checked_mul(num_elements, static_cast<uint64_t>(type->bits), &bits)) {
      return fault("the shape " + shape_text(shape_),
                   fmt::format("at most {} dimensions and 2^60 elements", int{Shape::kMaxRank}));
    }
    tensor->shape.rank = static_cast<int>(shape_.size());
    tensor->bytes = is_empty ? 0 : bits / 8;
    const uint64_t begin = offsets_[0], end = offsets_[1];
    data_end_ = std::max(data_end_, end);
    if (end - begin != tensor->bytes) {
      fault(fmt::format("{} bytes (data_offsets {}..{})", end - begin, begin, end),
            fmt::format("{} bytes for {} {}", tensor->bytes, *dtype_, shape_text(shape_)));
    }
    if (end > data_bytes_) {
      return fault(fmt::format("data_offsets {}..{}", begin, end),
                   fmt::format("an end of at most {}, the bytes that the file has after its header",
                               data_bytes_));
    }
    tensor->offset = data_begin_ + begin;
    ranges_.push_back({begin, end, &*names_.find(name_)});
  }

  const std::string& path_;
  uint64_t data_begin_, data_bytes_, data_end_ = 0;
  TensorFile* out_;
  int depth_ = 0;
  bool in_array_ = false, is_metadata_ = false;
  std::string name_, field_;
  std::optional<std::string> dtype_;
  std::vector<uint64_t> shape_, offsets_;
  bool has_shape_ = false, has_offsets_ = false, is_broken_ = false;
  std::unordered_set<std::string> names_;
  std::vector<ClaimedRange> ranges_;
};

}  // namespace

TensorFile read_safetensors(std::shared_ptr<const MappedFile> file) {
  TensorFile out;
  out.file = std::move(file);
  const std::string& path = out.file->path();
  const std::span<const std::byte> bytes = out.file->bytes();
  if (bytes.size() < 8) {
    out.faults.add({path, "", fmt::format("a file of {} bytes", bytes.size()),
                    "8 bytes of header length and a header"});
    return out;
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), 8);
  const uint64_t left = bytes.size() - 8;
  if (header_bytes > left || header_bytes > kMaxSafetensorsHeaderBytes || header_bytes < 2) {
    out.faults.add({path, "", fmt::format("a header length of {}", header_bytes),
                    fmt::format("2 to {} (the file has {} bytes)",
                                std::min(left, kMaxSafetensorsHeaderBytes), bytes.size())});
    return out;
  }
  const auto* text = reinterpret_cast<const char*>(bytes.data() + 8);
  HeaderReader reader(path, 8 + header_bytes, left - header_bytes, &out);
  const bool is_whole = nlohmann::json::sax_parse(text, text + header_bytes, &reader);
  if (!is_whole && out.faults.empty())
    out.faults.add({path, "", "a header of another form", "{name: {dtype, shape, data_offsets}}"});
  if (is_whole) reader.finish();
  return out;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  Result<std::shared_ptr<const MappedFile>> file = MappedFile::open(path);
  if (!file) return fail(file.error());
  return read(std::move(*file));
}

Result<SafetensorsFile> SafetensorsFile::read(std::shared_ptr<const MappedFile> file) {
  TensorFile contents = read_safetensors(std::move(file));
  if (!contents.faults.empty()) {
    std::string what;
    for (const Fault& fault : contents.faults.all())
      what += (what.empty() ? "" : "; ") + fault.message();
    return fail(what);
  }
  return SafetensorsFile(std::move(contents));
}

const FileTensor* SafetensorsFile::find(const std::string& name) const {
  for (const FileTensor& tensor : contents_.tensors)
    if (tensor.name == name) return &tensor;
  return nullptr;
}

}  // namespace moxie
