// Any bytes as a record: no crash; what is read can be written and is read again as the same.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "lab/record_read.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moxie;
  const auto record = parse_record({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!record) {
    CHECK(!record.error().what.empty() && record.error().where == "fuzz");
    return 0;
  }
  const std::string text = to_json(*record).dump();
  const auto again = parse_record(text, "written");
  CHECK(again.has_value(), again ? "" : again.error().message());
  CHECK(to_json(*again).dump() == text);
  return 0;
}
