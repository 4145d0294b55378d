// The file of self-tests: what is written is read, and nothing else is.
#include "engine/self_test_file.h"

#include <gtest/gtest.h>

#include <string>

namespace moxie {
namespace {

KeptSelfTest some_test(const std::string& binary) {
  return {.key = {.device = "d", .driver = "1.2", .features = "f", .binary = binary},
          .proven = {"01", "02"},
          .faults = {{.row = "qkv_x",
                      .beside = {"attend_y"},
                      .launch = "1 token of one sequence",
                      .what = "q [0, 1] is \"3\"",
                      .shapes = "ab"}}};
}

TEST(SelfTestFile, ReadsWhatItWrites) {
  const auto read = parse_self_tests(self_tests_text({some_test("b"), some_test("c")}), "f");
  ASSERT_TRUE(read.has_value()) << read.error().message();
  ASSERT_EQ(read->size(), 2u);
  EXPECT_EQ((*read)[1].key, some_test("c").key);
  EXPECT_EQ((*read)[0].proven, some_test("b").proven);
  EXPECT_EQ((*read)[0].faults, some_test("b").faults);
}

TEST(SelfTestFile, NamesWhatItRefuses) {
  const std::string sound = self_tests_text({some_test("b")});
  const auto refused = [&](const std::string& from, const std::string& to, const char* where) {
    std::string text = sound;
    text.replace(text.find(from), from.size(), to);
    const auto read = parse_self_tests(text, "f");
    ASSERT_FALSE(read.has_value()) << to;
    EXPECT_NE(read.error().what.find(where), std::string::npos) << read.error().message();
  };
  refused("self-test 1", "self-test 2", "/form");
  refused("\"driver\"", "\"diver\"", "/tests/0/key/driver");
  refused("\"01\"", "1", "/tests/0/proven/0/name");
  refused("\"qkv_x\"", "null", "/tests/0/faults/0/row");
  refused("\"shapes\"", "\"more\": 1, \"shapes\"", "more");
  refused("{", "[", "JSON");
}

TEST(SelfTestFile, KeepsOneOfAKeyAndDropsWhatIsTooMuch) {
  std::vector<KeptSelfTest> tests;
  for (int i = 0; i < 70; ++i) replace_self_test(&tests, some_test(std::to_string(i)));
  EXPECT_EQ(tests.size(), 64u);
  EXPECT_EQ(tests.front().key.binary, "69");
  KeptSelfTest again = some_test("40");
  for (int i = 0; i < 2000; ++i) again.proven.push_back(std::to_string(i));
  replace_self_test(&tests, again);
  EXPECT_EQ(tests.size(), 64u);
  EXPECT_EQ(tests.front().key.binary, "40");
  EXPECT_EQ(tests.front().proven.back(), "1999");
  EXPECT_TRUE(parse_self_tests(self_tests_text(tests), "f").has_value());
}

}  // namespace
}  // namespace moxie
