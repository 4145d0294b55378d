// Any bytes as a vector of torch: no crash, and no more values than were allowed.
#include <cstddef>
#include <cstdint>

#include "weights/torch_vector.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moxie;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  const auto vector = read_torch_vector(*MappedFile::borrow("fuzz", {bytes, size}), 64);
  if (vector)
    CHECK(vector->values.size() <= 64);
  else
    CHECK(!vector.error().message().empty());
  return 0;
}
