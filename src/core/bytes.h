// Sizes for people.
#pragma once

#include <cstdint>
#include <string>

namespace moxie {

/// "17.2 GiB".
std::string format_bytes(uint64_t bytes);

}  // namespace moxie
