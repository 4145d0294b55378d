// The header is built first, so that every offset is known before a byte is written.
#include "weights/safetensors_write.h"

#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

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

  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return fail(std::strerror(errno), path, "check the path and permissions");
  const uint64_t length = text.size();
  bool good = std::fwrite(&length, 8, 1, file) == 1 &&
              std::fwrite(text.data(), 1, text.size(), file) == text.size();
  for (size_t i = 0; good && i < tensors.size(); ++i) {
    good = sizes[i] == 0 || std::fwrite(tensors[i].data, 1, sizes[i], file) == sizes[i];
  }
  good = std::fclose(file) == 0 && good;
  if (good) return {};
  std::remove(path.c_str());
  return fail("could not be written whole", path, "is the disk full?");
}

}  // namespace moxie
