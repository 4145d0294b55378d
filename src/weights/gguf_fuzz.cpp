// Any bytes as a GGUF file: no crash, every readable tensor is inside the file, and every value can
// be asked for as any kind.
#include <cstddef>
#include <cstdint>

#include "weights/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moxie;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  const GgufFile file = read_gguf(MappedFile::borrow("fuzz", {bytes, size}));
  for (const FileTensor& tensor : file.contents.tensors) {
    if (!tensor.is_readable) continue;
    CHECK(tensor.offset <= size && tensor.bytes <= size - tensor.offset, tensor.name);
    CHECK(tensor.shape.num_elements() >= 0);
  }
  size_t num_asked = 0;
  for (const auto& [key, value] : file.metadata) {
    if (++num_asked > 100) break;
    file.integer(key);
    file.real(key);
    file.text(key);
    CHECK(file.texts(key).size() <= size);
    CHECK(file.integers(key).size() <= size);
  }
  for (const Fault& fault : file.contents.faults.all()) CHECK(!fault.message().empty());
  CHECK(file.is_header_whole || !file.contents.faults.empty());
  return 0;
}
