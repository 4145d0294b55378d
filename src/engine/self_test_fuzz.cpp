// Files of self-tests from anywhere: read or refused, and what is read is written and read the
// same.
#include <string_view>

#include "engine/self_test_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moxie;
  const auto read = parse_self_tests({reinterpret_cast<const char*>(data), size}, "file");
  if (!read) {
    CHECK(!read.error().what.empty());
    return 0;
  }
  const std::string text = self_tests_text(*read);
  const auto again = parse_self_tests(text, "file");
  CHECK(again.has_value(), again ? "" : again.error().message());
  CHECK(self_tests_text(*again) == text);
  return 0;
}
