// The header is built first, so that every offset is known before a byte is written.
#include "weights/safetensors_write.h"

#include <nlohmann/json.hpp>

#include "core/whole_file.h"

namespace moxie {
namespace {

uint64_t element_bytes(const std::string& dtype) {
  if (dtype == "F64" || dtype == "I64") return 8;
  if (dtype == "F32" || dtype == "I32") return 4;
  if (dtype == "F16" || dtype == "BF16") return 2;
  return 1;
}

}  // namespace

Status write_safetensors(const std::string& path, const std::vector<TensorToWrite>& tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  header["__metadata__"] = {{"format", "pt"}};
  std::vector<uint64_t> sizes;
  uint64_t at = 0;
  for (const TensorToWrite& tensor : tensors) {
    const uint64_t bytes =
        static_cast<uint64_t>(tensor.shape.num_elements()) * element_bytes(tensor.dtype);
    auto shape = nlohmann::ordered_json::array();
    for (int i = 0; i < tensor.shape.rank; ++i) shape.push_back(tensor.shape[i]);
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", shape}, {"data_offsets", {at, at + bytes}}};
    at += bytes;
    sizes.push_back(bytes);
  }
  std::string text = header.dump();
  text.resize(round_up<size_t>(text.size(), 8), ' ');  // tensors start aligned

  WholeFile file(path, "tensors");
  const auto write = [&](const void* bytes, uint64_t count) {
    file.out().write(static_cast<const char*>(bytes), static_cast<std::streamsize>(count));
  };
  const uint64_t length = text.size();
  write(&length, sizeof(length));
  write(text.data(), length);
  for (size_t i = 0; i < tensors.size(); ++i) write(tensors[i].data, sizes[i]);
  return file.close();
}

}  // namespace moxie
