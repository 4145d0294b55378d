// Any bytes as a safetensors file: no crash, and every readable tensor is inside the file.
#include <cstddef>
#include <cstdint>

#include "weights/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moxie;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  const TensorFile file = read_safetensors(MappedFile::borrow("fuzz", {bytes, size}));
  for (const FileTensor& tensor : file.tensors) {
    if (!tensor.is_readable) continue;
    CHECK(tensor.offset <= size && tensor.bytes <= size - tensor.offset, tensor.name);
    CHECK(tensor.shape.num_elements() >= 0);
  }
  for (const Fault& fault : file.faults.all()) CHECK(!fault.message().empty());
  return 0;
}
