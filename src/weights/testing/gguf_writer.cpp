// The GGUF layout, front to back.
#include "weights/testing/gguf_writer.h"

namespace moxie {

void GgufWriter::add(std::string_view key, const std::vector<std::string>& values) {
  std::string body = raw<uint32_t>(8) + raw<uint64_t>(values.size());
  for (const std::string& value : values) body += text(value);
  pair(key, 9, body);
}

void GgufWriter::add(std::string_view key, const std::vector<int32_t>& values) {
  std::string body = raw<uint32_t>(5) + raw<uint64_t>(values.size());
  for (const int32_t value : values) body += raw(value);
  pair(key, 9, body);
}

void GgufWriter::tensor_at(std::string_view name, uint32_t type, const std::vector<uint64_t>& dims,
                           uint64_t offset, const std::string& data) {
  entries_ += text(name) + raw(static_cast<uint32_t>(dims.size()));
  for (size_t i = dims.size(); i-- > 0;) entries_ += raw(dims[i]);
  entries_ += raw(type) + raw(offset);
  data_ += data;
  while (data_.size() % alignment != 0) data_ += '\0';
  ++num_tensors_;
}

std::string GgufWriter::bytes() const {
  GgufWriter extra;
  if (alignment != 32) extra.add("general.alignment", static_cast<uint32_t>(alignment));
  std::string out = "GGUF" + raw(version) + raw(num_tensors_) + raw(num_pairs_ + extra.num_pairs_) +
                    extra.pairs_ + pairs_ + entries_;
  while (out.size() % alignment != 0) out += '\0';
  return out + data_;
}

}  // namespace moxie
