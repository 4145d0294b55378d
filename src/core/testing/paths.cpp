#include "core/testing/paths.h"

#include <filesystem>

namespace moxie {

std::string source_dir() { return MOXIE_SOURCE_DIR; }
std::string test_data() {
  const std::string built = MOXIE_SOURCE_DIR "/tests/data";
  return std::filesystem::exists(built) ? built : "tests/data";
}

}  // namespace moxie
