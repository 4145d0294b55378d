// Decoding follows the table of well-formed byte sequences: the first byte fixes the length and the
// range of the second; all others are 80..BF.
#include "text/utf8.h"

namespace moxie {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

struct Lead {
  uint32_t size_bytes;  // 0: no character starts with this byte
  uint8_t second_min, second_max;
};

constexpr Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};  // below: overlong
  if (byte == 0xED) return {3, 0x80, 0x9F};  // above: surrogates
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};  // below: overlong
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};  // above: past U+10FFFF
  return {0, 0, 0};
}

}  // namespace

Utf8Char decode_utf8(std::string_view text, size_t pos) {
  const uint8_t first = static_cast<uint8_t>(text[pos]);
  if (first < 0x80) return {first, 1, true, false};
  const Lead lead = lead_of(first);
  if (lead.size_bytes == 0) return {kReplacement, 1, false, false};
  char32_t code_point = first & (0xFF >> (lead.size_bytes + 1));
  uint8_t min = lead.second_min;
  uint8_t max = lead.second_max;
  for (uint32_t i = 1; i < lead.size_bytes; ++i) {
    if (pos + i >= text.size()) return {kReplacement, i, false, true};
    const uint8_t byte = static_cast<uint8_t>(text[pos + i]);
    if (byte < min || byte > max) return {kReplacement, i, false, false};
    code_point = code_point << 6 | (byte & 0x3F);
    min = 0x80;
    max = 0xBF;
  }
  return {code_point, lead.size_bytes, true, false};
}

void append_utf8(char32_t code_point, std::string* out) {
  const auto put = [out](char32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) return put(code_point);
  if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
  } else {
    if (code_point < 0x10000) {
      put(0xE0 | code_point >> 12);
    } else {
      put(0xF0 | code_point >> 18);
      put(0x80 | (code_point >> 12 & 0x3F));
    }
    put(0x80 | (code_point >> 6 & 0x3F));
  }
  put(0x80 | (code_point & 0x3F));
}

size_t incomplete_utf8_tail_bytes(std::string_view text) {
  // A truncated character begins in the last three bytes; bytes 80..BF begin no character.
  for (size_t tail = 1; tail <= 3 && tail <= text.size(); ++tail) {
    const uint8_t byte = static_cast<uint8_t>(text[text.size() - tail]);
    if ((byte & 0xC0) == 0x80) continue;
    const Utf8Char c = decode_utf8(text, text.size() - tail);
    return c.truncated ? tail : 0;
  }
  return 0;
}

bool is_valid_utf8(std::string_view text) {
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = decode_utf8(text, pos);
    if (!c.valid) return false;
    pos += c.size_bytes;
  }
  return true;
}

void append_repaired_utf8(std::string_view bytes, std::string* out) {
  size_t good_start = 0;
  for (size_t pos = 0; pos < bytes.size();) {
    const Utf8Char c = decode_utf8(bytes, pos);
    if (!c.valid) {
      out->append(bytes, good_start, pos - good_start);
      append_utf8(kReplacement, out);
      good_start = pos + c.size_bytes;
    }
    pos += c.size_bytes;
  }
  out->append(bytes, good_start);
}

std::string repaired_utf8(std::string_view bytes) {
  std::string out;
  append_repaired_utf8(bytes, &out);
  return out;
}

}  // namespace moxie
