// The splitter against PCRE2 with the regular expression itself, and the cases in which the
// expression backs up.
#include "text/splitter.h"

#include <gtest/gtest.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <rapidcheck.h>

#include <memory>
#include <string>
#include <vector>

#include "text/unicode.h"
#include "text/utf8.h"

namespace moxie {
namespace {

using Pieces = std::vector<std::string>;

const char kPattern[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// PCRE2's \s has U+180E, which lost White_Space in Unicode 6.3; nothing else differs.
constexpr char32_t kMongolianVowelSeparator = 0x180E;

class Regex {
 public:
  explicit Regex(const char* pattern) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
    EXPECT_NE(code_, nullptr) << "error " << error << " at " << offset;
    pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE);
    match_ = pcre2_match_data_create_from_pattern(code_, nullptr);
  }
  ~Regex() {
    pcre2_match_data_free(match_);
    pcre2_code_free(code_);
  }
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  bool find(const std::string& text, size_t start, size_t* begin, size_t* end) const {
    const int rc = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), start,
                               0, match_, nullptr);
    if (rc < 0) {
      EXPECT_EQ(rc, PCRE2_ERROR_NOMATCH);
      return false;
    }
    *begin = pcre2_get_ovector_pointer(match_)[0];
    *end = pcre2_get_ovector_pointer(match_)[1];
    return true;
  }

 private:
  pcre2_code* code_;
  pcre2_match_data* match_;
};

Pieces split_by_pcre2(const Regex& regex, const std::string& text) {
  Pieces pieces;
  size_t begin = 0;
  for (size_t start = 0, end = 0; regex.find(text, start, &begin, &end); start = end) {
    EXPECT_EQ(begin, start);
    pieces.push_back(text.substr(begin, end - begin));
  }
  return pieces;
}

Pieces split(std::string_view text) {
  Pieces pieces;
  for (size_t start = 0; start < text.size();) {
    const size_t end = piece_end(text, start);
    EXPECT_GT(end, start);
    EXPECT_LE(end, text.size());
    pieces.emplace_back(text.substr(start, end - start));
    start = end;
  }
  return pieces;
}

std::string utf8_of(char32_t code_point) {
  std::string text;
  append_utf8(code_point, &text);
  return text;
}

TEST(Splitter, CutsAsTheExpressionDoes) {
  const struct {
    std::string text;
    Pieces pieces;
  } cases[] = {
      {"", {}},
      {"Hello world", {"Hello", " world"}},
      {"CamelCaseHTTPServer", {"Camel", "Case", "HTTPServer"}},
      {"12345 6", {"123", "45", " ", "6"}},
      {"a  b", {"a", " ", " b"}},
      {"a   1", {"a", "  ", " ", "1"}},
      {"end  ", {"end", "  "}},
      {" \n \n x", {" \n \n", " x"}},
      {"a\r\n\r\nb", {"a", "\r\n\r\n", "b"}},
      {"x //\n/y", {"x", " //\n/", "y"}},
      {"it's IT'S it'\xC5\xBF it'x", {"it's", " IT'S", " it'\xC5\xBF", " it", "'x"}},
      {"we'RE we'r we'vE", {"we'RE", " we", "'r", " we'vE"}},
      {"I'll'd", {"I'll", "'d"}},
      {"\tdef", {"\tdef"}},
      {"\n\tdef", {"\n", "\tdef"}},
      {"\xC2\xA0x", {"\xC2\xA0x"}},
      {"$5 $x", {"$", "5", " $", "x"}},
      // Alternative 1 gives upper-case letters back to end in a letter without case.
      {"\xE4\xB8\xAD\xE6\x96\x87"
       "ABC",
       {"\xE4\xB8\xAD\xE6\x96\x87", "ABC"}},
      {"A\xE4\xB8\xAD"
       "B",
       {"A\xE4\xB8\xAD", "B"}},
      {"\xE4\xB8\xAD"
       "ABc",
       {"\xE4\xB8\xAD"
        "ABc"}},
      // A mark before capitals: alternative 1 without prefix comes before 2 with it.
      {"\xCC\x81"
       "ABC",
       {"\xCC\x81", "ABC"}},
      {"\xCC\x81"
       "abc",
       {"\xCC\x81"
        "abc"}},
      {"!\xCC\x81"
       "ABC",
       {"!\xCC\x81", "ABC"}},
      {"!!\xCC\x81"
       "a",
       {"!!\xCC\x81", "a"}},
      {" \xCC\x81", {" \xCC\x81"}},
      {"1\xCC\x81", {"1", "\xCC\x81"}},
      // Title case and modifier letters.
      {"\xC7\x85"
       "a",
       {"\xC7\x85"
        "a"}},
      {"A\xCA\xB0"
       "B",
       {"A\xCA\xB0", "B"}},
  };
  const Regex regex(kPattern);
  for (const auto& c : cases) {
    EXPECT_EQ(split(c.text), c.pieces) << c.text;
    EXPECT_EQ(split_by_pcre2(regex, c.text), c.pieces) << "the case is wrong: " << c.text;
  }
}

TEST(Splitter, BrokenBytesAreSymbolsOneByOne) {
  EXPECT_EQ(split("\xE4\xBD"
                  "a"),
            (Pieces{"\xE4\xBD", "a"}));  // two, so no prefix
  EXPECT_EQ(split("\xE4"
                  "a"),
            (Pieces{"\xE4"
                    "a"}));
  EXPECT_EQ(split("a\xFF\xFE\n"), (Pieces{"a", "\xFF\xFE\n"}));
  EXPECT_EQ(split(" \xED\xA0\x80 b"), (Pieces{" \xED\xA0\x80", " b"}));
}

// All that PCRE2 knows about a code point, in the splitter's terms.
class Pcre2Classes {
 public:
  CharClass of(char32_t cp) const {
    const std::string text = utf8_of(cp);
    size_t begin = 0;
    size_t end = 0;
    if (cp == '\n' || cp == '\r') return CharClass::kNewline;
    for (const auto& [regex, char_class] : regexes_) {
      if (regex->find(text, 0, &begin, &end)) return char_class;
    }
    return CharClass::kOther;
  }
  bool assigned(char32_t cp) const {
    size_t begin = 0;
    size_t end = 0;
    return !unassigned_.find(utf8_of(cp), 0, &begin, &end);
  }

 private:
  static std::unique_ptr<Regex> make(const char* p) { return std::make_unique<Regex>(p); }
  const std::pair<std::unique_ptr<Regex>, CharClass> regexes_[6] = {
      {make(R"([\p{Lu}\p{Lt}])"), CharClass::kUpper},  {make(R"(\p{Ll})"), CharClass::kLower},
      {make(R"([\p{Lm}\p{Lo}])"), CharClass::kLetter}, {make(R"(\p{M})"), CharClass::kMark},
      {make(R"(\p{N})"), CharClass::kNumber},          {make(R"(\s)"), CharClass::kSpace}};
  const Regex unassigned_{R"(\p{Cn})"};
};

// Code points by class, all on which PCRE2 and the table agree (its Unicode may be older).
const std::vector<std::vector<char32_t>>& agreed_code_points() {
  static const std::vector<std::vector<char32_t>> by_class = [] {
    const Pcre2Classes oracle;
    std::vector<std::vector<char32_t>> found(8);
    for (char32_t cp = 0; cp < 0x110000; ++cp) {
      if (cp >= 0xD800 && cp < 0xE000) continue;
      const CharClass c = char_class(cp);
      if (cp != kMongolianVowelSeparator && oracle.of(cp) == c) {
        found[static_cast<size_t>(c)].push_back(cp);
      }
    }
    return found;
  }();
  return by_class;
}

TEST(UnicodeTable, AgreesWithPcre2OnAllThatItKnows) {
  const Pcre2Classes oracle;
  size_t num_compared = 0;
  for (char32_t cp = 0; cp < 0x110000; ++cp) {
    if ((cp >= 0xD800 && cp < 0xE000) || cp == kMongolianVowelSeparator) continue;
    if (!oracle.assigned(cp)) continue;
    ++num_compared;
    ASSERT_EQ(char_class(cp), oracle.of(cp)) << std::hex << static_cast<uint32_t>(cp);
  }
  EXPECT_GT(num_compared, 280000u);  // private use included
  EXPECT_EQ(char_class(kMongolianVowelSeparator), CharClass::kOther);
}

// Letters that came with Unicode 15 and 16: an older table would call them symbols.
TEST(UnicodeTable, IsOfUnicode16) {
  EXPECT_EQ(char_class(0x1C89), CharClass::kUpper);
  EXPECT_EQ(char_class(0x1C8A), CharClass::kLower);
  EXPECT_EQ(char_class(0x10D4A), CharClass::kLetter);
  EXPECT_EQ(char_class(0x323AF), CharClass::kLetter);
  EXPECT_EQ(char_class(0x0897), CharClass::kMark);
  EXPECT_EQ(char_class(0x10D40), CharClass::kNumber);
  EXPECT_EQ(char_class(0x088F), CharClass::kOther);  // a letter from Unicode 17 on
}

rc::Gen<std::string> gen_part() {
  std::vector<std::string> parts = {
      "'s",   "'S", "'\xC5\xBF", "'t",   "'re", "'Re", "'ve",      "'M",           "'ll",
      "'lL",  "'d", "'",         "'r",   "'l",  " ",   "  ",       "\n",           "\r",
      "\r\n", "\t", "/",         "//",   "!",   "a",   "A",        "aB",           "z",
      "Z",    "1",  "12",        "1234", "_",   "-",   "\xC2\xA0", "\xE3\x80\x80", "\xCC\x81"};
  const auto in_class = [](size_t c) {
    return rc::gen::map(rc::gen::elementOf(agreed_code_points()[c]), utf8_of);
  };
  return rc::gen::weightedOneOf<std::string>({{12, rc::gen::elementOf(parts)},
                                              {2, in_class(0)},
                                              {2, in_class(1)},
                                              {2, in_class(2)},
                                              {2, in_class(3)},
                                              {2, in_class(4)},
                                              {2, in_class(5)},
                                              {1, in_class(6)}});
}

TEST(Splitter, EqualsPcre2OnRandomText) {
  const Regex regex(kPattern);
  const bool held = rc::check("piece_end equals PCRE2 with the expression", [&] {
    const auto parts =
        *rc::gen::resize(600, rc::gen::container<std::vector<std::string>>(gen_part()));
    std::string text;
    for (const std::string& part : parts) text += part;
    RC_ASSERT(split(text) == split_by_pcre2(regex, text));
  });
  EXPECT_TRUE(held);
}

TEST(Splitter, TilesAnyBytes) {
  EXPECT_TRUE(rc::check("the pieces put together are the text", [] {
    const auto text = *rc::gen::resize(600, rc::gen::string<std::string>());
    std::string joined;
    for (const std::string& piece : split(text)) joined += piece;
    RC_ASSERT(joined == text);
  }));
}

}  // namespace
}  // namespace moxie
