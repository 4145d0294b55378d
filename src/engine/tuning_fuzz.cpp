// Files of tunings from anywhere: read or refused, and what is read is written and read the same.
#include <string_view>

#include "engine/tuning_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moxie;
  const auto read = parse_tunings({reinterpret_cast<const char*>(data), size}, "file");
  if (!read) {
    CHECK(!read.error().what.empty());
    return 0;
  }
  const std::string text = tunings_text(*read);
  const auto again = parse_tunings(text, "file");
  CHECK(again.has_value(), again ? "" : again.error().message());
  CHECK(tunings_text(*again) == text);
  return 0;
}
