// The generated two-stage table behind char_class(); only unicode.h and its tests read it.
#pragma once

#include <cstdint>

namespace moxie::unicode_table {

inline constexpr uint32_t kBlockChars = 128;
extern const uint8_t kBlockOfChars[0x110000 / kBlockChars];
extern const uint8_t kBlocks[][kBlockChars / 2];

}  // namespace moxie::unicode_table
