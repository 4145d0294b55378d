// UTF-8 as it comes from the world: decoding that never fails and never reads past the end, and
// repair of broken text. Well-formed means table 3-7 of the Unicode standard: no overlong forms, no
// surrogates, nothing above U+10FFFF. Broken bytes are counted in maximal subparts (section 3.9),
// each of which becomes one U+FFFD, as in Python and in browsers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace moxie {

struct Utf8Char {
  char32_t code_point;  ///< U+FFFD where not valid
  uint32_t size_bytes;  ///< 1..4; where not valid, the bytes of the maximal subpart (1..3)
  bool valid;
  bool truncated;  ///< not valid only because the text ends: more bytes could complete it
};

/// The character at text[pos]; pos < text.size().
Utf8Char decode_utf8(std::string_view text, size_t pos);

/// Appends a code point (below 0x110000, no surrogate) as UTF-8.
void append_utf8(char32_t code_point, std::string* out);

/// Bytes at the end of `text` (0..3) that begin a character which the next bytes could complete.
size_t incomplete_utf8_tail_bytes(std::string_view text);

bool is_valid_utf8(std::string_view text);

/// Appends `bytes` to `out`, each maximal invalid subpart as one U+FFFD.
void append_repaired_utf8(std::string_view bytes, std::string* out);
std::string repaired_utf8(std::string_view bytes);

}  // namespace moxie
