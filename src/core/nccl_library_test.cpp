// Files that are no NCCL, and the text of an id.
#include "core/nccl_library.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace moxie {
namespace {

std::string error_of(const char* path) {
  const auto nccl = load_nccl(path);
  return nccl ? std::string() : nccl.error().message();
}

TEST(NcclLibrary, AMissingLibraryIsNamedWithWhatToInstall) {
  const std::string error = error_of("/no/such/libnccl.so.2");
  for (const char* part :
       {"MOXIE_NCCL_LIBRARY", "/no/such/libnccl.so.2", "libnccl2", "pip install nvidia-nccl-cu13"})
    EXPECT_NE(error.find(part), std::string::npos) << part << " is not in: " << error;
}

TEST(NcclLibrary, AnotherLibraryIsRefused) {
  const std::string error = error_of("libc.so.6");
  EXPECT_NE(error.find("it lacks nccl"), std::string::npos) << error;
}

TEST(NcclLibrary, AnIdIsTheSameBehindItsText) {
  NcclId id;
  for (size_t i = 0; i < sizeof(id.bytes); ++i) id.bytes[i] = static_cast<char>(37 * i + 200);
  const std::string text = to_text(id);
  const auto read = nccl_id(text);
  ASSERT_TRUE(read.has_value());
  EXPECT_TRUE(std::ranges::equal(read->bytes, id.bytes));
  EXPECT_FALSE(nccl_id(text.substr(2)).has_value());
  EXPECT_FALSE(nccl_id(text + "00").has_value());
  EXPECT_FALSE(nccl_id("g" + text.substr(1)).has_value());
}

}  // namespace
}  // namespace moxie
