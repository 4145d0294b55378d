// Grammars of texts: schemas, patterns, numbers, counted strings, and what is refused.
#include "text/grammar.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <thread>

#include "core/testing/paths.h"
#include "text/bpe_testing.h"
#include "text/grammar_engine.h"
#include "text/grammar_regex.h"
#include "text/grammar_schema_node.h"
#include "text/grammar_testing.h"
#include "text/harmony_testing.h"

namespace moxie {
namespace {

using grammar::GrammarPtr;
using grammar::Source;
using moxie::testing::accepts;
using moxie::testing::byte_compiler;
using moxie::testing::byte_tokenizer;
using moxie::testing::tiny_compiler;
using moxie::testing::tiny_tokenizer;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::filesystem::path> schema_files() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(test_data() + "/schemas")) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

GrammarPtr compiled(grammar::Compiler& compiler, const Source& source) {
  auto grammar = compiler.compile(source, "test");
  CHECK(grammar.has_value(), grammar.error().message());
  return *grammar;
}

/// The grammar of a schema over bytes, and whether it admits a text.
class Bytes {
 public:
  explicit Bytes(const std::string& schema)
      : grammar_(compiled(byte_compiler(), {.text = schema})) {}
  explicit Bytes(const Source& source) : grammar_(compiled(byte_compiler(), source)) {}
  bool admits(std::string_view text) const { return accepts(byte_tokenizer(), grammar_, text); }

 private:
  GrammarPtr grammar_;
};

TEST(Grammar, RandomTextsHoldAgainstTheirSchemas) {
  const auto files = schema_files();
  ASSERT_GE(files.size(), 60u);
  int num_ended = 0;
  for (const auto& file : files) {
    const std::string text = read_file(file);
    const auto schema = nlohmann::ordered_json::parse(text);
    const GrammarPtr grammar = compiled(tiny_compiler(), {.text = text});
    grammar::SchemaReader reader(schema, "");
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      const auto walk =
          moxie::testing::random_text(*tiny_compiler().vocabulary(), grammar, seed, 400);
      ASSERT_EQ(walk.fault, "") << file << " seed " << seed << ": " << walk.text;
      if (!walk.ended) continue;
      ++num_ended;
      const auto value = nlohmann::ordered_json::parse(walk.text, nullptr, false);
      ASSERT_FALSE(value.is_discarded()) << file << ": " << walk.text;
      EXPECT_TRUE(reader.holds(value, grammar::Conjunction{&schema})) << file << ": " << walk.text;
      EXPECT_FALSE(reader.has_faults());
    }
  }
  EXPECT_GE(num_ended, static_cast<int>(files.size() * 6 * 9 / 10));
}

TEST(Grammar, MasksAreExactlyTheTokensThatAreAccepted) {
  const grammar::Vocabulary& vocabulary = *byte_compiler().vocabulary();
  for (const char* name : {"any_of_overlapping", "string_unicode", "object_key_prefixes",
                           "any_of_objects", "number_negative", "string_escapes", "nullable"}) {
    const std::string text = read_file(test_data() + "/schemas/" + name + ".json");
    const GrammarPtr grammar = compiled(byte_compiler(), {.text = text});
    const auto walk = moxie::testing::random_text(vocabulary, grammar, 11, 40);
    ASSERT_EQ(walk.fault, "") << name;
    for (size_t size = 0; size <= walk.ids.size(); ++size) {
      grammar::Matcher matcher(grammar);
      for (size_t i = 0; i < size; ++i) ASSERT_TRUE(matcher.accept(walk.ids[i]));
      std::vector<uint32_t> mask(vocabulary.text_mask().size());
      matcher.fill_mask(mask);
      for (int32_t id = 0; id < vocabulary.size(); ++id) {
        grammar::Matcher again(grammar);
        for (size_t i = 0; i < size; ++i) ASSERT_TRUE(again.accept(walk.ids[i]));
        EXPECT_EQ(again.accept(id), (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0)
            << name << " after \"" << walk.text.substr(0, size) << "\": " << id;
      }
    }
  }
}

// A class beyond ASCII behind a rule: the low bytes of its ranges are no characters.
TEST(Grammar, MasksKnowClassesBeyondAscii) {
  const grammar::Vocabulary& vocabulary = *tiny_compiler().vocabulary();
  for (const char* pattern : {"[가-힣]", "[一-鿿]a", "^(?:ab)*[가-힣]$", "[😀-😎]", "^x*[^가]!$"}) {
    const std::string schema = fmt::format(R"({{"type": "string", "pattern": "{}"}})", pattern);
    const GrammarPtr grammar = compiled(tiny_compiler(), {.text = schema});
    for (uint64_t seed = 1; seed <= 25; ++seed) {
      EXPECT_EQ(moxie::testing::random_text(vocabulary, grammar, seed * 7919, 300).fault, "")
          << pattern;
    }
  }
}

TEST(Grammar, RefusesWhatCannotBeEnforcedAndSaysWhy) {
  const auto cases =
      nlohmann::ordered_json::parse(read_file(test_data() + "/schemas_refused.json"));
  ASSERT_GE(cases.size(), 40u);
  for (const auto& entry : cases) {
    const auto grammar = tiny_compiler().compile({.text = entry["schema"].dump()}, "field");
    ASSERT_FALSE(grammar.has_value()) << entry["schema"].dump().substr(0, 200);
    EXPECT_EQ(grammar.error().where, "field");
    for (const auto& word : entry["words"]) {
      EXPECT_NE(grammar.error().message().find(word.get<std::string>()), std::string::npos)
          << entry["schema"].dump().substr(0, 200) << ": " << grammar.error().message();
    }
  }
}

std::string repeated(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

TEST(Grammar, RefusesMonstersAtOnce) {
  const auto refused_quickly = [](const std::string& schema) {
    const auto begin = std::chrono::steady_clock::now();
    const auto grammar = tiny_compiler().compile({.text = schema}, "field");
    EXPECT_FALSE(grammar.has_value()) << schema.substr(0, 100);
    const auto took = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(std::chrono::duration<double>(took).count(), 3.0) << schema.substr(0, 100);
  };
  refused_quickly(repeated(R"({"properties":{"a":)", 20'000) + "{}" + repeated("}}", 20'000));
  refused_quickly(repeated(R"({"items":)", 20'000) + "{}" + repeated("}", 20'000));
  refused_quickly(repeated("[", 200'000) + repeated("]", 200'000));
  refused_quickly(repeated(R"({"anyOf":[)", 5'000) + "{}" + repeated("]}", 5'000));
  refused_quickly(R"({"type":"string","pattern":")" + repeated("(", 20'000) + R"("})");
  refused_quickly(R"-({"type":"string","pattern":"((((x{9999}){9999}){9999}){9999})"})-");
  refused_quickly(R"({"type":"integer","multipleOf":997,"minimum":1,"maximum":1e17})");
  refused_quickly(R"({"type":"object","minProperties":19999,"maxProperties":20000})");
  refused_quickly(R"({"enum":[")" + std::string(600'000, 'a') + R"("]})");
  refused_quickly("{");
  refused_quickly("");
  refused_quickly("{\"type\":\"\xff\"}");
  std::string patterns;
  for (int i = 0; i < 40; ++i) {
    patterns += (i > 0 ? ",\"p" : "\"p") + std::to_string(i) + R"(":{"type":"string","pattern":")" +
                std::string(static_cast<size_t>(i), 'x') + R"(.{50}y"})";
  }
  refused_quickly("{\"properties\":{" + patterns + "}}");
  // Combinations multiply: twelve of ten are 10^12 alternatives.
  std::string choices;
  for (int i = 0; i < 10; ++i)
    choices += (i > 0 ? "," : "") + ("{\"minLength\":" + std::to_string(i) + "}");
  std::string groups;
  for (int i = 0; i < 12; ++i)
    groups += (i > 0 ? ",{\"anyOf\":[" : "{\"anyOf\":[") + choices + "]}";
  refused_quickly(R"({"type":"string","allOf":[)" + groups + "]}");
  // A chain of references, and one that doubles at each link.
  std::string chain, doubling;
  for (int i = 0; i < 5'000; ++i) {
    chain += fmt::format(R"("d{}":{{"$ref":"#/$defs/d{}"}},)", i, i + 1);
  }
  for (int i = 0; i < 60; ++i) {
    const std::string next = fmt::format(R"({{"$ref":"#/$defs/d{}"}})", i + 1);
    doubling += fmt::format(R"("d{}":{{"anyOf":[{},{}]}},)", i, next, next);
  }
  // Schemas that each look at all the others.
  std::string parts;
  for (int i = 0; i < 2'000; ++i) {
    parts += (i > 0 ? "," : "") +
             fmt::format(R"({{"$ref":"#/$defs/u","properties":{{"p{}":{{}}}}}})", i);
  }
  refused_quickly(R"({"allOf":[)" + parts + R"(],"$defs":{"u":{"unevaluatedProperties":false,
                  "allOf":[)" +
                  parts + "]}}}");
  refused_quickly("{\"$ref\":\"#/$defs/d0\",\"$defs\":{" + chain + "\"d5000\":{}}}");
  refused_quickly("{\"$ref\":\"#/$defs/d0\",\"$defs\":{" + doubling + "\"d60\":{}}}");
}

TEST(Grammar, WritesJsonAsPeopleDo) {
  const Bytes schema(
      R"({"type":"object","properties":{"a":{"type":"array","items":{"type":"integer"}},
                         "b":{"type":"string"}},"required":["a"],"additionalProperties":false})");
  EXPECT_TRUE(schema.admits(R"({"a":[1,2],"b":"x"})"));
  EXPECT_TRUE(schema.admits(R"({"a": [1, 2], "b": "x"})"));
  EXPECT_TRUE(schema.admits(R"({ "a": [ -3 ] })"));
  EXPECT_TRUE(schema.admits("{\n  \"a\": [\n    0\n  ],\n  \"b\": \"\"\n}"));
  EXPECT_TRUE(schema.admits("{\n\t\"a\": []\n}"));
  EXPECT_FALSE(schema.admits(R"({"b":"x","a":[]})"));
  EXPECT_FALSE(schema.admits(R"({"a":[],"c":1})"));
  EXPECT_FALSE(schema.admits(R"({"a":[1.5]})"));
  EXPECT_FALSE(schema.admits(R"({"a":[01]})"));
  EXPECT_FALSE(schema.admits(R"({"a":[1,]})"));
  EXPECT_FALSE(schema.admits(R"({"a":[]}})"));
  EXPECT_FALSE(schema.admits(R"({"a":[])"));
}

TEST(Grammar, CompactJsonHasNoWhiteSpace) {
  const std::string schema =
      R"({"type":"object","properties":{"a":{"type":"array","items":{"type":"integer"}},
                         "b":{"enum":["x y",{"c":1}]},"d":{}},"required":["a"]})";
  const Bytes spaced(schema), compact(Source{.text = schema, .compact = true});
  const Bytes object(Source{.kind = Source::Kind::kJsonObject, .compact = true});
  for (const char* text : {R"({"a":[1,2],"b":"x y","d":{"e":[null,"f g"]}})", R"({"a":[]})",
                           R"({"a":[0],"b":{"c":1}})"}) {
    EXPECT_TRUE(compact.admits(text)) << text;
    EXPECT_TRUE(object.admits(text)) << text;
  }
  for (const char* text : {R"({"a": [1,2]})", R"({ "a":[1,2]})", R"({"a":[1, 2]})", "{\"a\":[\n1]}",
                           R"({"a":[],"d":{"e": 1}})", R"({"a":[],"d":[ ]})", R"({"a":[]} )"}) {
    EXPECT_FALSE(compact.admits(text)) << text;
    EXPECT_FALSE(object.admits(text)) << text;
  }
  EXPECT_TRUE(spaced.admits(R"({"a": [1, 2]})"));  // the same schema, kept apart
}

TEST(Grammar, UnevaluatedMembersAreThoseThatNothingInTheSamePlaceDeclares) {
  const Bytes inside(R"({"properties":{"a":{}},"allOf":[{"properties":{"b":{}}}],
                         "anyOf":[{"properties":{"c":{}}},{"properties":{"d":{}}}],
                         "$ref":"#/$defs/e","$defs":{"e":{"properties":{"e":{}}}},
                         "unevaluatedProperties":false})");
  EXPECT_TRUE(inside.admits(R"({"a":1,"e":2,"b":3,"c":4})"));
  EXPECT_TRUE(inside.admits(R"({"d":1})"));
  EXPECT_FALSE(inside.admits(R"({"c":1,"d":2})")) << "two branches of anyOf";
  EXPECT_FALSE(inside.admits(R"({"f":1})"));
  const Bytes beside(R"({"properties":{"a":{}},"allOf":[{"unevaluatedProperties":false}]})");
  EXPECT_TRUE(beside.admits("{}"));
  EXPECT_FALSE(beside.admits(R"({"a":1})"));
  const Bytes referred(R"({"properties":{"a":{}},"$ref":"#/$defs/b",
                           "$defs":{"b":{"properties":{"b":{}},"unevaluatedProperties":false}}})");
  EXPECT_TRUE(referred.admits(R"({"b":1})"));
  EXPECT_FALSE(referred.admits(R"({"a":1})"));
  const Bytes alone(R"({"unevaluatedProperties":false})");
  EXPECT_TRUE(alone.admits("{}"));
  EXPECT_FALSE(alone.admits(R"({"a":1})"));
  const Bytes nested(R"({"allOf":[{"unevaluatedProperties":{"type":"null"}}],
                         "unevaluatedProperties":false})");
  EXPECT_TRUE(nested.admits(R"({"a":null})"));
  EXPECT_FALSE(nested.admits(R"({"a":1})"));
  const Bytes items(R"({"allOf":[{"prefixItems":[{"type":"string"}]}],
                        "unevaluatedItems":{"type":"integer"}})");
  EXPECT_TRUE(items.admits(R"(["x",1,2])"));
  EXPECT_FALSE(items.admits(R"(["x","y"])"));
  const Bytes items_beside(R"({"prefixItems":[{}],"allOf":[{"unevaluatedItems":false}]})");
  EXPECT_TRUE(items_beside.admits("[]"));
  EXPECT_FALSE(items_beside.admits("[1]"));
}

TEST(Grammar, StringsAreValidJsonWhateverTheyHold) {
  const Bytes free(R"({"type":"string"})");
  const Bytes counted(R"({"type":"string","minLength":1,"maxLength":4})");
  for (const Bytes* schema : {&free, &counted}) {
    EXPECT_TRUE(schema->admits(R"("a\"\\\n")"));
    EXPECT_TRUE(schema->admits(R"("é日\u00e9")"));
    EXPECT_TRUE(schema->admits("\"\U0001F600\\ud83d\\uDE00\""));
    EXPECT_FALSE(schema->admits(R"("\ud83d")")) << "half a character";
    EXPECT_FALSE(schema->admits(R"("\ude00")"));
    EXPECT_FALSE(schema->admits(R"("\ud83d\n")"));
    EXPECT_FALSE(schema->admits(R"("\x")"));
    EXPECT_FALSE(schema->admits("\"a\nb\""));
    EXPECT_FALSE(schema->admits("\"\t\""));
    EXPECT_FALSE(schema->admits("\"\xff\""));
    EXPECT_FALSE(schema->admits("\"\xc0\xaf\""));
    EXPECT_FALSE(schema->admits("\"\xed\xa0\x80\""));
    EXPECT_FALSE(schema->admits("\"a"));
  }
  EXPECT_TRUE(free.admits("\"\""));
  EXPECT_FALSE(counted.admits("\"\""));
  EXPECT_TRUE(counted.admits(R"("\n\n\n\n")"));
  EXPECT_FALSE(counted.admits(R"("\n\n\n\n\n")"));
  EXPECT_TRUE(counted.admits("\"日本語字\""));
  EXPECT_FALSE(counted.admits("\"日本語字x\""));
  EXPECT_FALSE(counted.admits("\"\U000F0000\"")) << "the mark that stands for the string";
}

TEST(Grammar, LongBoundsAreCountedExactly) {
  const GrammarPtr grammar = compiled(
      tiny_compiler(), {.text = R"({"type":"array","items":{"type":"string","minLength":700,
        "maxLength":702},"minItems":2,"maxItems":2})"});
  const auto list = [](size_t a, size_t b) {
    return "[\"" + std::string(a, 'x') + "\", \"" + std::string(b, 'y') + "\"]";
  };
  EXPECT_TRUE(accepts(tiny_tokenizer(), grammar, list(700, 702)));
  EXPECT_FALSE(accepts(tiny_tokenizer(), grammar, list(699, 702)));
  EXPECT_FALSE(accepts(tiny_tokenizer(), grammar, list(701, 703)));
}

TEST(Grammar, NumbersHoldTheirBounds) {
  EXPECT_TRUE(rc::check("every whole number inside and none outside", [] {
    const int low = *rc::gen::inRange(-1500, 1500);
    const int high = low + *rc::gen::inRange(0, 1500);
    const int multiple = *rc::gen::element(1, 1, 2, 3, 7, 10, 25);
    nlohmann::json schema = {{"type", "integer"}, {"minimum", low}, {"maximum", high}};
    if (multiple > 1) schema["multipleOf"] = multiple;
    const auto compiled = byte_compiler().compile({.text = schema.dump()}, "test");
    bool any = false;
    for (int n = low; n <= high; ++n) any = any || n % multiple == 0;
    RC_ASSERT(compiled.has_value() == any);
    if (!any) return;
    for (int i = 0; i < 60; ++i) {
      const int n = i < 4 ? std::vector<int>{low, high, low - 1, high + 1}[static_cast<size_t>(i)]
                          : *rc::gen::inRange(-3000, 3000);
      RC_ASSERT(accepts(byte_tokenizer(), *compiled, std::to_string(n)) ==
                (n >= low && n <= high && n % multiple == 0));
    }
  }));
  EXPECT_TRUE(rc::check("decimal fractions between bounds", [] {
    const auto decimal = [] {
      return static_cast<double>(*rc::gen::inRange(-40000, 40000)) /
             *rc::gen::element(1.0, 10.0, 100.0, 1000.0);
    };
    double low = decimal(), high = decimal();
    if (high < low) std::swap(low, high);
    const bool open_low = *rc::gen::arbitrary<bool>(), open_high = *rc::gen::arbitrary<bool>();
    nlohmann::json schema = {{"type", "number"}};
    schema[open_low ? "exclusiveMinimum" : "minimum"] = low;
    schema[open_high ? "exclusiveMaximum" : "maximum"] = high;
    const auto compiled = byte_compiler().compile({.text = schema.dump()}, "test");
    if (!compiled) {
      RC_ASSERT(low == high && (open_low || open_high));
      return;
    }
    const auto& vocabulary = *byte_compiler().vocabulary();
    for (uint64_t seed = 0; seed < 10; ++seed) {
      const auto walk = moxie::testing::random_text(vocabulary, *compiled, seed, 60);
      RC_ASSERT(walk.fault.empty() && walk.ended);
      const double n = std::stod(walk.text);
      RC_ASSERT((open_low ? n > low : n >= low));
      RC_ASSERT((open_high ? n < high : n <= high));
    }
    for (int i = 0; i < 30; ++i) {
      const double n = decimal();
      const bool inside = (open_low ? n > low : n >= low) && (open_high ? n < high : n <= high);
      RC_ASSERT(accepts(byte_tokenizer(), *compiled, nlohmann::json(n).dump()) == inside);
    }
  }));
}

TEST(Grammar, PatternsAgreeWithTheStandardLibrarys) {
  const std::vector<std::string> patterns = {"a",
                                             "^a",
                                             "a$",
                                             "^a$",
                                             "^(a|b)*c$",
                                             "^a|b$",
                                             "(ab)+",
                                             "^[^a]$",
                                             "a{2,3}",
                                             "^a{2}b{0,1}$",
                                             "^(?:a|bb)(c|)$",
                                             "[a-b]c",
                                             "^.{2}$",
                                             "^\\w\\d?$",
                                             "\\\\",
                                             "^(^a|b$)$",
                                             "",
                                             "^$",
                                             "a.c",
                                             "^a+?b*?$",
                                             "^[\\]a]+$",
                                             "^[a\\-c]$",
                                             "^[-a]$",
                                             "\\x61\\u0062",
                                             "^(a(b(c)?)?)?$",
                                             "^(?:a*)*c$",
                                             "^(?:a+)*$",
                                             "^(?:a+)+c$",
                                             "^(?:b?){2,}c$",
                                             "^(?:a{0,2})+$",
                                             "^(?:a{2})*$"};
  const std::string alphabet = "abc1]\\-";
  EXPECT_TRUE(rc::check("the same texts match", [&] {
    const std::string pattern = *rc::gen::elementOf(patterns);
    std::string text;
    const int size = *rc::gen::inRange(0, 7);
    for (int i = 0; i < size; ++i) text += *rc::gen::elementOf(alphabet);
    auto regex = grammar::parse_regex(pattern, "pattern");
    RC_ASSERT(regex.has_value());
    regex = grammar::resolve_anchors(*regex, grammar::RegexMode::kSearch, "pattern");
    RC_ASSERT(regex.has_value());
    const bool expected = std::regex_search(text, std::regex(pattern));
    RC_ASSERT(grammar::matches(*regex, text) == expected);
    const Bytes bound(nlohmann::json({{"type", "string"}, {"pattern", pattern}}).dump());
    RC_ASSERT(bound.admits(nlohmann::json(text).dump()) == expected);
  }));
}

TEST(Grammar, RepeatsOfRepeatsAreOneRepeat) {
  const auto is_one = [](const char* pattern, int32_t min) {
    const auto regex = grammar::parse_regex(pattern, "pattern");
    return regex && (*regex)->kind == grammar::RegexNode::Kind::kRepeat && (*regex)->min == min &&
           (*regex)->max == grammar::kUnbounded &&
           (*regex)->parts[0]->kind == grammar::RegexNode::Kind::kOneOf;
  };
  for (const char* pattern : {"(?:a*)*", "(?:a+)*", "(?:a?)+", "(?:(?:a{0,3})+)*", "(?:a*){4,}"}) {
    EXPECT_TRUE(is_one(pattern, 0)) << pattern;
  }
  EXPECT_TRUE(is_one("(?:a+)+", 1));
  EXPECT_TRUE(is_one("(?:a+){3,}", 3));
  for (const char* other : {"(?:a{2})*", "(?:a*){2}", "(?:a{0})*"}) {
    EXPECT_FALSE(is_one(other, 0)) << other;
  }
}

TEST(Grammar, LengthsBindPatternsToo) {
  const auto schema = [](const char* pattern, int min, int max) {
    return nlohmann::json(
               {{"type", "string"}, {"pattern", pattern}, {"minLength", min}, {"maxLength", max}})
        .dump();
  };
  const Bytes tail(schema("^a", 2, 3));
  EXPECT_TRUE(tail.admits("\"ab\""));
  EXPECT_TRUE(tail.admits("\"a\\\"b\""));
  EXPECT_FALSE(tail.admits("\"a\""));
  EXPECT_FALSE(tail.admits("\"abcd\""));
  const Bytes exact(schema("^a[bc]*d$", 2, 2));
  EXPECT_TRUE(exact.admits("\"ad\""));
  EXPECT_FALSE(exact.admits("\"abd\""));
  for (const char* pattern : {"^a", "^ab?c$", "^a[bc]*d$"}) {
    EXPECT_FALSE(byte_compiler().compile({.text = schema(pattern, 0, 0)}, "f")) << pattern;
  }
}

TEST(Grammar, AnchorsCountNothingOfWhatPatternsMayRepeat) {
  const auto compiles = [](const std::string& pattern) {
    const nlohmann::json schema = {{"type", "string"}, {"pattern", pattern}};
    return byte_compiler().compile({.text = schema.dump()}, "f").has_value();
  };
  EXPECT_TRUE(compiles("^[^a]{1,20000}$"));
  EXPECT_TRUE(compiles("^[a-z]{20000}$"));
  EXPECT_FALSE(compiles("^[^a]{1,20001}$"));
  EXPECT_FALSE(compiles("^[a-z]{20000}x$"));
  EXPECT_FALSE(compiles("((((^{9999}){9999}){9999}){9999})a"));
}

TEST(Grammar, RegexChoiceAndEbnfBindTheWholeText) {
  const Bytes regex(Source{.kind = Source::Kind::kRegex, .text = "[0-9]{3}(-[a-z]+)?"});
  EXPECT_TRUE(regex.admits("123-ab"));
  EXPECT_FALSE(regex.admits("1234"));
  EXPECT_FALSE(regex.admits("x123"));
  const Bytes choice(
      Source{.kind = Source::Kind::kChoice, .choices = {"yes", "no \"quoted\"", "ja\n"}});
  EXPECT_TRUE(choice.admits("no \"quoted\""));
  EXPECT_TRUE(choice.admits("ja\n"));
  EXPECT_FALSE(choice.admits("ye"));
  const Bytes ebnf(
      Source{.kind = Source::Kind::kEbnf, .text = "root ::= \"(\" root \")\" | [0-9]+ # nested\n"});
  EXPECT_TRUE(ebnf.admits("((12))"));
  EXPECT_FALSE(ebnf.admits("((12)"));
  const Bytes object(Source{.kind = Source::Kind::kJsonObject});
  EXPECT_TRUE(object.admits(R"({"a": [1, {"b": null}], "c": -1.5e3})"));
  EXPECT_TRUE(object.admits("{}"));
  EXPECT_FALSE(object.admits("[]"));
}

TEST(Grammar, RefusesGrammarsThatReachBeyondText) {
  for (const char* text :
       {"root ::= Token(3)", "root ::= TagDispatch((\"a\", b))\nb ::= \"x\"",
        "root ::=", "a ::= \"x\"", "root[max_tokens=3] ::= \"x\"", "root ::= \"x\"{5000}",
        "root ::= \"x", "root ::= [a", "root ::= \"a\"{1000000000000000000000}", "root ::= b",
        "nonsense", "root ::= Regex(\"a\")"}) {
    const auto grammar = byte_compiler().compile({.kind = Source::Kind::kEbnf, .text = text}, "f");
    EXPECT_FALSE(grammar.has_value()) << text;
  }
  const std::string deep = "root ::= " + repeated("(", 3'000) + "\"x\"" + repeated(")", 3'000);
  EXPECT_FALSE(byte_compiler().compile({.kind = Source::Kind::kEbnf, .text = deep}, "f"));
  const std::string costly = "root ::= [^a]{1,120} [^b]{1,120}";
  EXPECT_FALSE(byte_compiler().compile({.kind = Source::Kind::kEbnf, .text = costly}, "f"));
  EXPECT_FALSE(byte_compiler().compile({.kind = Source::Kind::kChoice}, "f"));
  EXPECT_FALSE(byte_compiler().compile({.kind = Source::Kind::kChoice, .choices = {""}}, "f"));
  EXPECT_FALSE(byte_compiler().compile({.kind = Source::Kind::kRegex, .text = "(?=a)"}, "f"));
}

TEST(Grammar, CompiledGrammarsAreKeptWithinLimits) {
  auto compiler =
      grammar::Compiler::create(byte_tokenizer(), byte_tokenizer().vocab_size(), {.max_cached = 3});
  ASSERT_TRUE(compiler.has_value());
  const auto schema = [](int n) { return Source{.text = "{\"const\":" + std::to_string(n) + "}"}; };
  const GrammarPtr first = compiled(**compiler, schema(0));
  EXPECT_EQ(compiled(**compiler, schema(0)), first);
  for (int n = 1; n < 9; ++n) compiled(**compiler, schema(n));
  EXPECT_EQ((*compiler)->cache_stats().num_grammars, 3u);
  EXPECT_EQ((*compiler)->cache_stats().num_hits, 1u);
  EXPECT_NE(compiled(**compiler, schema(0)), first);
}

TEST(Grammar, ThreadsShareACompilerAndItsGrammars) {
  const GrammarPtr shared = compiled(tiny_compiler(), {.text = R"({"type":"array","items":
      {"type":"string","maxLength":9},"maxItems":3})"});
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const auto& vocabulary = *tiny_compiler().vocabulary();
      for (uint64_t i = 0; i < 6; ++i) {
        const auto own = compiled(tiny_compiler(),
                                  {.text = "{\"type\":\"object\",\"properties\":{\"k" +
                                           std::to_string(i % 3) + "\":{\"type\":\"boolean\"}}}"});
        EXPECT_EQ(moxie::testing::random_text(vocabulary, own, t * 100 + i, 60).fault, "");
        EXPECT_EQ(moxie::testing::random_text(vocabulary, shared, t * 100 + i, 60).fault, "");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Grammar, TheFullVocabularyIsBoundToo) {
  auto compiler = grammar::Compiler::create(moxie::testing::o200k(), 201'088);
  ASSERT_TRUE(compiler.has_value());
  for (const char* name :
       {"object_nested", "ref_recursive_tree", "any_of_objects", "string_unicode"}) {
    const std::string text = read_file(test_data() + "/schemas/" + name + ".json");
    const auto schema = nlohmann::ordered_json::parse(text);
    const GrammarPtr grammar = compiled(**compiler, {.text = text});
    grammar::SchemaReader reader(schema, "");
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      const auto walk = moxie::testing::random_text(*(*compiler)->vocabulary(), grammar, seed, 300);
      ASSERT_EQ(walk.fault, "") << name << ": " << walk.text;
      if (!walk.ended) continue;
      const auto value = nlohmann::ordered_json::parse(walk.text, nullptr, false);
      EXPECT_TRUE(reader.holds(value, grammar::Conjunction{&schema})) << name << ": " << walk.text;
    }
  }
}

}  // namespace
}  // namespace moxie
