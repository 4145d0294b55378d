// Fuzzes the readers of tokenizer files, and encode and decode with whatever they read. The first
// byte chooses the reader and a text of the remaining bytes is encoded in both modes:
//   even: a tokenizer.json; odd: lines of a .tiktoken file.
// Since few inputs define all 256 bytes, bit 1 puts them in front of a .tiktoken file.
#include <cstdint>
#include <string>

#include "core/base.h"
#include "text/bpe.h"
#include "text/bpe_detokenizer.h"
#include "text/utf8.h"

namespace {

using moxie::SpecialMode;
using moxie::Tokenizer;

// "AA== 0" and so on: ranks 0..255 for the bytes 0..255.
const std::string& byte_ranks() {
  static const std::string text = [] {
    constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string lines;
    for (int byte = 0; byte < 256; ++byte) {
      lines += kDigits[byte >> 2];
      lines += kDigits[(byte & 3) << 4];
      lines += "== " + std::to_string(byte) + "\n";
    }
    return lines;
  }();
  return text;
}

void check_roundtrip(const Tokenizer& tokenizer, const std::string& text) {
  const auto ids = tokenizer.encode(text);
  const auto decoded = tokenizer.decode(ids);
  CHECK(decoded.has_value() && *decoded == text);
  moxie::IncrementalDetokenizer detokenizer(tokenizer);
  std::string streamed;
  for (const int32_t id : ids) streamed += detokenizer.push(id);
  streamed += detokenizer.flush();
  CHECK(streamed == moxie::repaired_utf8(text));
  // A token with two names decodes to the first, so here only the ids must hold.
  CHECK(tokenizer.decode(tokenizer.encode(text, SpecialMode::kAll)).has_value());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  moxie::set_log_level(moxie::LogLevel::kOff);
  if (size == 0) return 0;
  const uint8_t choice = data[0];
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  auto tokenizer = (choice & 1) == 0 ? Tokenizer::from_tokenizer_json(text)
                   : (choice & 2)    ? Tokenizer::from_tiktoken(byte_ranks() + text)
                                     : Tokenizer::from_tiktoken(text);
  if (!tokenizer) {
    CHECK(!tokenizer.error().what.empty());
    return 0;
  }
  check_roundtrip(*tokenizer, text);
  return 0;
}
