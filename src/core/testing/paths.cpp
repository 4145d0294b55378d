#include "core/testing/paths.h"

namespace moxie {

std::string source_dir() { return MOXIE_SOURCE_DIR; }
std::string test_data() { return MOXIE_SOURCE_DIR "/tests/data"; }

}  // namespace moxie
