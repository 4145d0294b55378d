// Where the tree lies that the tests were built from. The paths are in one source file alone, so
// that a compiler cache serves the tests of every clone.
#pragma once

#include <string>

namespace moxie {

/// Absolute; the folder above `src`.
std::string source_dir();
/// The test vectors: `tests/data` in it; where the tests run on another machine, in the folder that
/// they run in.
std::string test_data();

}  // namespace moxie
