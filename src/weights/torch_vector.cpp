// The archive, the pickle, and the values, each checked against the bytes that are there.
#include "weights/torch_vector.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "core/formats.h"

namespace moxie {
namespace {

using Bytes = std::span<const std::byte>;

constexpr const char* kHint =
    "save it again: torch.save(embedding.detach().cpu().clone(), \"mask_embedding.pt\")";

template <typename T>
T load(Bytes bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

// A name of the file, in messages.
std::string shown(std::string text) {
  for (char& letter : text)
    if (letter < ' ' || letter > '~') letter = '?';
  return text;
}

// The stored entries of a zip archive by name. Returns the fault, or nothing.
std::string read_zip(Bytes file, std::map<std::string, Bytes>* entries) {
  constexpr size_t kEndBytes = 22, kMaxComment = 65535, kEntryBytes = 46, kLocalBytes = 30;
  if (file.size() < kEndBytes || std::memcmp(file.data(), "PK\3\4", 4) != 0)
    return "is no zip archive";
  size_t end = file.size() - kEndBytes;
  const size_t first = end > kMaxComment ? end - kMaxComment : 0;
  while (end > first && load<uint32_t>(file, end) != 0x06054B50) --end;
  if (load<uint32_t>(file, end) != 0x06054B50) return "is a zip archive without its end";
  const auto count = load<uint16_t>(file, end + 10);
  const auto begin = load<uint32_t>(file, end + 16);
  if (count == 0xFFFF || begin == 0xFFFFFFFF) return "is a zip archive of more than 4 GiB";
  size_t at = begin;
  for (uint32_t i = 0; i < count; ++i) {
    if (at > end || end - at < kEntryBytes || load<uint32_t>(file, at) != 0x02014B50)
      return "is a zip archive with a damaged directory";
    const auto flags = load<uint16_t>(file, at + 8), method = load<uint16_t>(file, at + 10);
    const auto packed = load<uint32_t>(file, at + 20), size = load<uint32_t>(file, at + 24);
    const size_t name_bytes = load<uint16_t>(file, at + 28);
    const size_t more = name_bytes + load<uint16_t>(file, at + 30) + load<uint16_t>(file, at + 32);
    const size_t local = load<uint32_t>(file, at + 42);
    if (end - at - kEntryBytes < more) return "is a zip archive with a damaged directory";
    const std::string name(reinterpret_cast<const char*>(file.data()) + at + kEntryBytes,
                           name_bytes);
    if ((flags & 1) != 0 || method != 0 || packed != size)
      return "has an entry that is compressed or encrypted: " + shown(name);
    if (local > begin || begin - local < kLocalBytes || load<uint32_t>(file, local) != 0x04034B50)
      return "is a zip archive with a damaged entry: " + shown(name);
    const size_t data =
        local + kLocalBytes + load<uint16_t>(file, local + 26) + load<uint16_t>(file, local + 28);
    if (data > begin || begin - data < size)
      return "is a zip archive with a damaged entry: " + shown(name);
    if (!entries->emplace(name, file.subspan(data, size)).second)
      return "is a zip archive with an entry twice: " + shown(name);
    at += kEntryBytes + more;
  }
  return "";
}

// What a pickle of protocol 2 says of a vector. The opcodes are compared with those that torch.save
// writes for a tensor; memo entries that nothing recalls are skipped.
class PickleReader {
 public:
  PickleReader(Bytes bytes, TorchVector* out) : bytes_(bytes), out_(out) {}

  std::string storage_class, entry;
  int64_t num_stored = 0, offset = 0, count = 1, step = 1;

  /// Returns the fault, or nothing.
  std::string read() {
    expect({0x80, 2});
    if (next() != '}') {
      tensor();
    } else {
      take();
      dict();
    }
    expect({'.'});
    if (fault_.empty() && num_tensors_ != 1)
      fault_ = fmt::format("holds {} tensors, not one", num_tensors_);
    return fault_;
  }

 private:
  static constexpr int kEnd = -1;

  void refuse(std::string text) {
    if (fault_.empty()) fault_ = std::move(text);
  }
  // The next opcode, which stays; kEnd behind a fault, too.
  int next() {
    while (fault_.empty() && at_ < bytes_.size()) {
      const int opcode = std::to_integer<int>(bytes_[at_]);
      if (opcode != 'q' && opcode != 'r') return opcode;
      at_ += opcode == 'q' ? 2 : 5;
    }
    return kEnd;
  }
  void take() { ++at_; }
  void expect(std::initializer_list<int> opcodes) {
    for (const int opcode : opcodes) {
      const int found = next();
      if (found != opcode)
        return refuse(found == kEnd ? "has a pickle that does not end"
                                    : fmt::format("has the pickle opcode {:#x} where a tensor has "
                                                  "{:#x}",
                                                  found, opcode));
      take();
    }
  }
  const std::byte* take(size_t num_bytes) {
    if (!fault_.empty() || at_ > bytes_.size() || num_bytes > bytes_.size() - at_) {
      refuse("has a pickle that does not end");
      return nullptr;
    }
    at_ += num_bytes;
    return bytes_.data() + at_ - num_bytes;
  }
  int64_t little_endian(size_t num_bytes) {
    int64_t value = 0;
    if (const std::byte* from = take(num_bytes)) std::memcpy(&value, from, num_bytes);
    return value;
  }
  bool is_number() {
    const int opcode = next();
    return opcode == 'K' || opcode == 'M' || opcode == 'J';
  }
  int64_t number() {
    const int opcode = next();
    if (!is_number()) refuse("has another kind of value where a tensor has a number");
    take();
    return little_endian(opcode == 'K' ? 1 : opcode == 'M' ? 2 : 4);
  }
  std::string text() {
    expect({'X'});
    const auto size = static_cast<size_t>(little_endian(4));
    const std::byte* from = take(size);
    return from == nullptr ? "" : std::string(reinterpret_cast<const char*>(from), size);
  }
  // "module.name" of something that Python would import.
  std::string name() {
    expect({'c'});
    std::string text;
    for (int lines = 0; lines < 2;) {
      const std::byte* from = take(1);
      if (from == nullptr) return "";
      const char letter = static_cast<char>(*from);
      if (letter != '\n') text += letter;
      if (letter == '\n' && ++lines == 1) text += '.';
    }
    return text;
  }
  void name(const char* wanted) {
    if (const std::string found = name(); fault_.empty() && found != wanted)
      refuse("names " + shown(found) + ", which the tensor of a vector does not need");
  }
  std::vector<int64_t> tuple() {
    std::vector<int64_t> numbers;
    while (fault_.empty() && numbers.size() < 2 && is_number()) numbers.push_back(number());
    expect({numbers.size() == 2 ? 0x86 : 0x85});
    return numbers;
  }
  void tensor() {
    ++num_tensors_;
    name("torch._utils._rebuild_tensor_v2");
    expect({'(', '('});
    if (text() != "storage") refuse("has a storage of another form");
    storage_class = name();
    entry = text();
    text();  // the device
    num_stored = number();
    expect({'t', 'Q'});
    offset = number();
    const std::vector<int64_t> sizes = tuple(), steps = tuple();
    expect({0x89});
    name("collections.OrderedDict");
    expect({')', 'R', 't', 'R'});
    if (sizes.size() != steps.size()) refuse("has a damaged pickle");
    for (size_t i = 0; i < sizes.size() && fault_.empty(); ++i) {
      if (sizes[i] == 1) continue;
      if (count != 1 || sizes[i] < 1) return refuse("holds no vector");
      count = sizes[i];
      step = steps[i];
    }
  }
  // One entry is set at once, several behind a mark.
  void dict() {
    const bool has_several = next() == '(';
    if (has_several) take();
    while (next() == 'X') {
      const std::string key = text();
      if (is_number())
        out_->numbers[key] = number();
      else
        tensor();
      if (!has_several) break;
    }
    expect({has_several ? 'u' : 's'});
  }

  Bytes bytes_;
  TorchVector* out_;
  size_t at_ = 0;
  int num_tensors_ = 0;
  std::string fault_;
};

float value_at(Bytes bytes, size_t index, size_t width, bool is_bf16) {
  if (width == 4) return load<float>(bytes, 4 * index);
  const auto bits = load<uint16_t>(bytes, 2 * index);
  return is_bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

}  // namespace

Result<TorchVector> read_torch_vector(const MappedFile& file, int64_t max_values) {
  const auto refuse = [&](const std::string& what) { return fail(what, file.path(), kHint); };
  std::map<std::string, Bytes> entries;
  if (std::string fault = read_zip(file.bytes(), &entries); !fault.empty()) return refuse(fault);
  const auto pickle = std::find_if(entries.begin(), entries.end(), [](const auto& entry) {
    return entry.first.ends_with("/data.pkl");
  });
  if (pickle == entries.end()) return refuse("has no data.pkl");
  const std::string folder = pickle->first.substr(0, pickle->first.size() - 8);
  const auto order = entries.find(folder + "byteorder");
  if (order != entries.end() &&
      (order->second.size() != 6 || std::memcmp(order->second.data(), "little", 6) != 0))
    return refuse("is not little-endian");
  TorchVector out;
  PickleReader tensor(pickle->second, &out);
  if (std::string fault = tensor.read(); !fault.empty()) return refuse(fault);
  if (tensor.count > max_values)
    return refuse(fmt::format("holds {} values, more than {}", tensor.count, max_values));
  const std::string& type = tensor.storage_class;
  const bool is_bf16 = type == "torch.BFloat16Storage";
  const size_t width = is_bf16 || type == "torch.HalfStorage" ? 2
                       : type == "torch.FloatStorage"         ? 4
                                                              : 0;
  if (width == 0) return refuse("is a " + shown(type) + ", not of BF16, F16 or F32");
  const auto data = entries.find(folder + "data/" + tensor.entry);
  // All numbers are below 2^32, so that the last place does not overflow.
  const int64_t last = tensor.offset + (tensor.count - 1) * tensor.step;
  if (data == entries.end() || last >= tensor.num_stored ||
      static_cast<uint64_t>(tensor.num_stored) > data->second.size() / width)
    return refuse("lacks the values of its tensor");
  for (int64_t i = 0; i < tensor.count; ++i)
    out.values.push_back(value_at(
        data->second, static_cast<size_t>(tensor.offset + i * tensor.step), width, is_bf16));
  return out;
}

}  // namespace moxie
