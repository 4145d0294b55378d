// Decoding over all code points, and repair by the examples of the Unicode standard.
#include "text/utf8.h"

#include <gtest/gtest.h>

namespace moxie {
namespace {

const std::string kFffd = "\xEF\xBF\xBD";

TEST(Utf8, EveryCodePointComesBack) {
  for (char32_t cp = 0; cp < 0x110000; ++cp) {
    if (cp >= 0xD800 && cp < 0xE000) continue;
    std::string text;
    append_utf8(cp, &text);
    const Utf8Char c = decode_utf8(text, 0);
    ASSERT_TRUE(c.valid) << std::hex << static_cast<uint32_t>(cp);
    ASSERT_EQ(c.code_point, cp);
    ASSERT_EQ(c.size_bytes, text.size());
    for (size_t cut = 1; cut < text.size(); ++cut) {
      ASSERT_EQ(incomplete_utf8_tail_bytes(text.substr(0, cut)), cut);
      ASSERT_TRUE(decode_utf8(std::string_view(text).substr(0, cut), 0).truncated);
    }
  }
}

TEST(Utf8, OverlongSurrogateAndTooLargeAreInvalid) {
  for (const std::string_view bad :
       {"\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xED\xBF\xBF", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\x80"}) {
    EXPECT_FALSE(is_valid_utf8(bad));
    // No first byte of these can be completed, so each byte is a subpart of its own.
    std::string expected;
    for (size_t i = 0; i < bad.size(); ++i) expected += kFffd;
    EXPECT_EQ(repaired_utf8(bad), expected);
    EXPECT_EQ(incomplete_utf8_tail_bytes(bad), 0u);
  }
}

// Tables 3-8 and 3-11 of the Unicode standard.
TEST(Utf8, EachMaximalSubpartBecomesOneReplacement) {
  const std::string& r = kFffd;
  EXPECT_EQ(repaired_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(repaired_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
  EXPECT_EQ(repaired_utf8("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
            "a" + r + r + r + "b" + r + "c" + r + r + "d");
  EXPECT_EQ(repaired_utf8("z\xE4\xBD"), "z" + r);
  EXPECT_EQ(repaired_utf8("\xE4\xBD\xA0\xE5\xA5\xBD"), "\xE4\xBD\xA0\xE5\xA5\xBD");
}

TEST(Utf8, OnlyACompletableTailIsHeld) {
  EXPECT_EQ(incomplete_utf8_tail_bytes(""), 0u);
  EXPECT_EQ(incomplete_utf8_tail_bytes("a"), 0u);
  EXPECT_EQ(incomplete_utf8_tail_bytes("\xF0\x9F\x91"), 3u);
  EXPECT_EQ(incomplete_utf8_tail_bytes("\xF0\x9F\x91\x8D"), 0u);
  EXPECT_EQ(incomplete_utf8_tail_bytes("\x80\x80\x80"), 0u);
  EXPECT_EQ(incomplete_utf8_tail_bytes("\xE0\x80"), 0u);
  EXPECT_EQ(incomplete_utf8_tail_bytes("\xC3\xC3"), 1u);
}

}  // namespace
}  // namespace moxie
