// Header length, header, data.
#include "weights/testing/safetensors_bytes.h"

#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

namespace moxie {

std::string safetensors_bytes(std::span<const TensorBytes> tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::string data;
  for (const TensorBytes& tensor : tensors) {
    const std::vector<int64_t> dims(tensor.shape.dims, tensor.shape.dims + tensor.shape.rank);
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", dims},
                           {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  }
  std::string text = header.dump();
  text.resize(round_up<size_t>(text.size(), 8), ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + text + data;
}

}  // namespace moxie
