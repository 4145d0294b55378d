// Grammars over harmony: which headers, which recipients, and what binds the contents.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "text/grammar.h"
#include "text/grammar_testing.h"
#include "text/harmony_parser.h"

namespace moxie {
namespace {

using grammar::AnswerConstraint;
using grammar::AnswerSpec;
using grammar::Source;
using grammar::ToolChoice;
using moxie::testing::tiny_compiler;
using moxie::testing::tiny_tokenizer;

constexpr const char* kCity =
    R"({"type":"object","properties":{"city":{"type":"string","maxLength":12}},"required":["city"],
        "additionalProperties":false})";
constexpr const char* kCount =
    R"({"type":"object","properties":{"n":{"type":"integer","minimum":0,"maximum":9}},
        "required":["n"],"additionalProperties":false})";

AnswerSpec with_tools(ToolChoice choice, std::string name = {}) {
  return {.tools = {{.name = "get_weather", .parameters = kCity},
                    {.name = "get_weather_at", .parameters = kCount},
                    {.name = "now"}},
          .tool_choice = choice,
          .tool_name = std::move(name)};
}
AnswerSpec with_schema(const char* schema) { return {.response = Source{.text = schema}}; }

std::unique_ptr<AnswerConstraint> constraint_of(const AnswerSpec& spec) {
  auto answer = AnswerConstraint::create(tiny_compiler(), spec, nullptr);
  EXPECT_TRUE(answer.has_value()) << answer.error().message();
  return std::move(*answer);
}

/// "" if all of it may be written, else the part behind which it may not go on.
std::string refused_after(const AnswerSpec& spec, const std::string& text) {
  const auto answer = constraint_of(spec);
  std::vector<uint32_t> mask(tiny_compiler().vocabulary()->text_mask().size());
  std::string written;
  for (const int32_t id : tiny_tokenizer().encode(text, SpecialMode::kAll)) {
    answer->fill_mask(mask);
    const bool allowed = mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1;
    const bool accepted = answer->accept(id).has_value();
    EXPECT_EQ(allowed, accepted) << "after \"" << written << "\": " << id;
    if (!accepted) return written.empty() ? "nothing" : written;
    written += tiny_tokenizer().token_bytes(id);
  }
  return "";
}
bool admits(const AnswerSpec& spec, const std::string& text) {
  return refused_after(spec, text).empty();
}

const std::string kFinal = "<|channel|>final<|message|>";
const std::string kThought =
    "<|channel|>analysis<|message|>Hmm, \"{}\" (well).<|end|><|start|>assistant";

TEST(GrammarAnswer, EveryFormOfACallMayBeWritten) {
  const AnswerSpec spec = with_tools(ToolChoice::kAuto);
  const std::string body = "<|message|>{\"city\": \"Bern\"}<|call|>";
  for (const std::string& header :
       std::vector<std::string>{"<|channel|>commentary to=functions.get_weather <|constrain|>json",
                                "<|channel|>commentary to=functions.get_weather<|constrain|>json",
                                "<|channel|>commentary to=functions.get_weather json",
                                "<|channel|>commentary to=functions.get_weather code",
                                "<|channel|>commentary to=functions.get_weather",
                                "<|channel|>analysis to=functions.get_weather <|constrain|>json",
                                " to=functions.get_weather<|channel|>commentary <|constrain|>json",
                                " to=functions.get_weather<|channel|>commentary<|constrain|>json",
                                " to=functions.get_weather<|channel|>commentary json",
                                " to=functions.get_weather<|channel|>commentary",
                                " to=functions.get_weather<|channel|>analysis code"}) {
    const std::string call = header + body;
    EXPECT_EQ(refused_after(spec, call), "") << header;
    EXPECT_EQ(refused_after(spec, kThought + call), "") << header;
  }
  EXPECT_TRUE(admits(spec, kFinal + "free text, {not json}<|return|>"));
  EXPECT_TRUE(admits(spec,
                     "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant"
                     "<|channel|>commentary to=functions.now<|message|>{}<|call|>"));
  EXPECT_TRUE(admits(spec, kThought + kThought + kFinal));
}

TEST(GrammarAnswer, NoOtherNameOrChannelCanBeWritten) {
  const AnswerSpec spec = with_tools(ToolChoice::kAuto);
  for (const std::string& text : std::vector<std::string>{
           "<|channel|>commentary to=functions.get_weathe<|message|>",
           "<|channel|>commentary to=functions.get_weather_<|message|>",
           "<|channel|>commentary to=functions.delete_all<|message|>",
           "<|channel|>commentary to=functions.<|message|>", "<|channel|>commentary to=python",
           "<|channel|>commentary to=get_weather", "<|channel|>final to=functions.get_weather",
           "<|channel|>comment<|message|>", "<|channel|><|message|>", "<|message|>", "final",
           "<|channel|>final<|constrain|>json<|message|>", "<|start|>", "<|return|>",
           " to=functions.get_weather <|channel|>", " to=functions.get_weather<|message|>"}) {
    EXPECT_FALSE(admits(spec, text)) << text;
  }
  // Nor may a message open another way out.
  for (const char* text : {"<|start|>", "<|channel|>", "<|call|>", "<|return|>", "<|endoftext|>"}) {
    EXPECT_FALSE(admits(spec, "<|channel|>analysis<|message|>so" + std::string(text))) << text;
  }
  EXPECT_FALSE(admits(spec, "<|channel|>analysis<|message|>so<|end|><|start|>user"));
  EXPECT_FALSE(admits(spec, "<|channel|>analysis<|message|>so<|end|> and"));
  EXPECT_FALSE(admits(spec, kFinal + "so<|end|>"));
}

TEST(GrammarAnswer, ArgumentsAreBoundToTheirOwnTool) {
  const AnswerSpec spec = with_tools(ToolChoice::kAuto);
  const std::string weather = "<|channel|>commentary to=functions.get_weather json<|message|>";
  const std::string at = "<|channel|>commentary to=functions.get_weather_at<|message|>";
  const std::string now = " to=functions.now<|channel|>commentary<|message|>";
  EXPECT_TRUE(admits(spec, weather + "{\"city\":\"Bern\"}<|call|>"));
  EXPECT_FALSE(admits(spec, weather + "{\"n\":1}"));
  EXPECT_FALSE(admits(spec, weather + "{\"city\":\"a name that is too long\"}"));
  EXPECT_FALSE(admits(spec, weather + "{\"city\":\"Bern\"<|call|>"));
  EXPECT_FALSE(admits(spec, weather + "{\"city\":\"Bern\"}<|end|>"));
  EXPECT_FALSE(admits(spec, weather + "{\"city\":\"Bern\"}<|return|>"));
  EXPECT_TRUE(admits(spec, at + "{\"n\": 7}<|call|>"));
  EXPECT_FALSE(admits(spec, at + "{\"city\""));
  EXPECT_TRUE(admits(spec, now + "{}<|call|>"));
  EXPECT_FALSE(admits(spec, now + "{\"a\""));
}

TEST(GrammarAnswer, ToolChoiceDecidesWhichHeadersThereAre) {
  const std::string call = "<|channel|>commentary to=functions.now<|message|>{}<|call|>";
  const std::string other = "<|channel|>commentary to=functions.get_weather<|message|>";
  EXPECT_FALSE(admits(with_tools(ToolChoice::kNone), call));
  EXPECT_FALSE(admits(with_tools(ToolChoice::kNone), " to=functions.now"));
  EXPECT_TRUE(admits(with_tools(ToolChoice::kNone), kThought + kFinal + "no tools<|return|>"));
  const AnswerSpec required = with_tools(ToolChoice::kRequired);
  EXPECT_TRUE(admits(required, kThought + call));
  EXPECT_TRUE(admits(required, call));
  EXPECT_FALSE(admits(required, kFinal));
  EXPECT_FALSE(admits(required, kThought + kFinal));
  EXPECT_FALSE(admits(required, kThought + kThought)) << "a second thought puts the call off";
  const AnswerSpec named = with_tools(ToolChoice::kNamed, "now");
  EXPECT_TRUE(admits(named, kThought + call));
  EXPECT_FALSE(admits(named, other));
  EXPECT_FALSE(admits(named, kFinal));
}

TEST(GrammarAnswer, ASchemaBindsTheFinalChannelAlone) {
  const AnswerSpec spec = with_schema(kCount);
  EXPECT_TRUE(admits(spec, kThought + kFinal + "{\"n\":3}<|return|>"));
  EXPECT_TRUE(admits(spec, "<|channel|>final <|constrain|>json<|message|>{\"n\":3}<|return|>"));
  EXPECT_FALSE(admits(spec, kFinal + "{\"n\":3}<|end|>")) << "a second answer could follow";
  EXPECT_FALSE(admits(spec, kFinal + "{\"n\":30}"));
  EXPECT_FALSE(admits(spec, kFinal + "Sure"));
  EXPECT_FALSE(admits(spec, kFinal + "{\"n\":3<|return|>"));
  EXPECT_FALSE(admits(spec, kFinal + "<|return|>"));
  EXPECT_FALSE(admits(spec, "<|channel|>commentary<|message|>"));
  EXPECT_FALSE(admits(spec, " to=functions.now"));
  AnswerSpec both = with_tools(ToolChoice::kAuto);
  both.response = Source{.text = kCount};
  EXPECT_TRUE(admits(both, kFinal + "{\"n\":3}<|return|>"));
  EXPECT_TRUE(
      admits(both, kThought + "<|channel|>commentary to=functions.now<|message|>{}<|call|>"));
  EXPECT_FALSE(admits(both, "<|channel|>commentary<|message|>"));
}

TEST(GrammarAnswer, RawCompletionsAreBoundFromTheFirstToken) {
  auto answer = AnswerConstraint::create_raw(
      tiny_compiler(), {.kind = Source::Kind::kChoice, .choices = {"red", "green"}});
  ASSERT_TRUE(answer.has_value());
  const auto walk = moxie::testing::random_answer(tiny_tokenizer(), *tiny_compiler().vocabulary(),
                                                  **answer, 3, 20);
  EXPECT_EQ(walk.fault, "");
  EXPECT_TRUE(walk.ended);
  EXPECT_TRUE(walk.text.rfind("red<|", 0) == 0 || walk.text.rfind("green<|", 0) == 0) << walk.text;
}

// At every place of many answers: a copy allows what the answer allows, may go another way, and
// changes nothing of it. Strings of a bounded length have readings of their own to copy.
TEST(GrammarAnswer, AForkGoesItsOwnWay) {
  AnswerSpec both = with_tools(ToolChoice::kAuto);
  both.response = Source{.text = R"({"type":"object","properties":{"s":{"type":"string",
      "minLength":2,"maxLength":5},"n":{"type":"integer"}},"required":["s","n"]})"};
  const grammar::Vocabulary& vocabulary = *tiny_compiler().vocabulary();
  std::vector<uint32_t> mask(vocabulary.text_mask().size()), other = mask;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const auto answer = constraint_of(both);
    uint64_t state = seed;
    for (int i = 0; i < 60 && !answer->is_done(); ++i) {
      answer->fill_mask(mask);
      const auto copy = answer->fork(), astray = answer->fork();
      moxie::testing::random_answer(tiny_tokenizer(), vocabulary, *astray, seed + 100, 6);
      copy->fill_mask(other);
      ASSERT_EQ(other, mask) << seed << " token " << i;
      answer->fill_mask(other);
      ASSERT_EQ(other, mask) << seed << " token " << i;
      const int32_t id = moxie::testing::random_token(vocabulary, mask, state);
      ASSERT_TRUE(copy->accept(id).has_value());
      ASSERT_TRUE(answer->accept(id).has_value());
      copy->fill_mask(other);
      answer->fill_mask(mask);
      ASSERT_EQ(other, mask) << seed << " behind token " << i;
    }
  }
}

TEST(GrammarAnswer, RefusesRequestsThatContradictThemselves) {
  const auto error_of = [](const AnswerSpec& spec) {
    const auto answer = AnswerConstraint::create(tiny_compiler(), spec, nullptr);
    return answer ? std::string() : answer.error().message();
  };
  EXPECT_NE(error_of(with_tools(ToolChoice::kNamed, "nobody")).find("nobody"), std::string::npos);
  EXPECT_NE(error_of({.response = Source{.text = "{}"}, .tool_choice = ToolChoice::kRequired}), "");
  EXPECT_NE(error_of({.tools = {{.name = "a b"}}}), "");
  EXPECT_NE(error_of({.tools = {{.name = "a<|call|>"}}}), "");
  EXPECT_NE(error_of({.tools = {{.name = ""}}}), "");
  EXPECT_NE(error_of({.tools = {{.name = "a"}, {.name = "a"}}}), "");
  const AnswerSpec strict = {
      .tools = {{.name = "f", .parameters = R"({"type":"array","uniqueItems":true})"}}};
  EXPECT_NE(error_of(strict).find("uniqueItems"), std::string::npos);
  AnswerSpec relaxed = strict;
  relaxed.tools[0].strict = false;
  std::vector<std::string> lines;
  EXPECT_TRUE(AnswerConstraint::create(tiny_compiler(), relaxed, &lines).has_value());
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("tools[0].function.parameters"), std::string::npos);
  EXPECT_NE(lines[0].find("uniqueItems"), std::string::npos);
  // A call that must come is bound, unless the tool says that it need not be.
  relaxed.tool_choice = ToolChoice::kRequired;
  EXPECT_EQ(error_of(relaxed), "");
  relaxed.tools[0].strict.reset();
  EXPECT_NE(error_of(relaxed).find("uniqueItems"), std::string::npos);
  relaxed.tool_choice = ToolChoice::kAuto;
  EXPECT_EQ(error_of(relaxed), "");
  // What is no schema is refused in any case.
  relaxed.tools[0].strict = false;
  relaxed.tools[0].parameters = R"({"uniqueItems":true,"properties":{"a":{"type":"strnig"}}})";
  EXPECT_NE(error_of(relaxed).find("strnig"), std::string::npos) << error_of(relaxed);
  EXPECT_EQ(error_of(relaxed).find("uniqueItems"), std::string::npos) << error_of(relaxed);
  const auto nothing = AnswerConstraint::create(tiny_compiler(), AnswerSpec{}, nullptr);
  ASSERT_TRUE(nothing.has_value());
  EXPECT_EQ(*nothing, nullptr);
}

TEST(GrammarAnswer, RandomAnswersReadBackAsWhatWasAskedFor) {
  const auto control = harmony::ControlTokens::find(tiny_tokenizer());
  ASSERT_TRUE(control.has_value());
  AnswerSpec both = with_tools(ToolChoice::kAuto);
  both.response = Source{.text = kCount};
  const std::vector<AnswerSpec> specs = {with_schema(kCount), both, with_tools(ToolChoice::kAuto),
                                         with_tools(ToolChoice::kRequired),
                                         with_tools(ToolChoice::kNamed, "get_weather_at")};
  int num_ended = 0;
  for (size_t s = 0; s < specs.size(); ++s) {
    for (uint64_t seed = 1; seed <= 40; ++seed) {
      const auto answer = constraint_of(specs[s]);
      const auto walk = moxie::testing::random_answer(
          tiny_tokenizer(), *tiny_compiler().vocabulary(), *answer, seed * 31 + s, 300);
      ASSERT_EQ(walk.fault, "") << s << " seed " << seed << ": " << walk.text;
      if (!walk.ended) continue;
      ++num_ended;
      harmony::Parser parser(tiny_tokenizer(), *control,
                             {.known_recipients = {"functions.get_weather", "functions.now",
                                                   "functions.get_weather_at"}});
      for (const int32_t id : walk.ids) parser.process(id);
      parser.finish();
      ASSERT_FALSE(parser.messages().empty()) << walk.text;
      for (size_t i = 0; i < parser.messages().size(); ++i) {
        const harmony::Message& message = parser.messages()[i].message;
        const bool is_last = i + 1 == parser.messages().size();
        EXPECT_EQ(message.channel == "final" || message.recipient.has_value(), is_last)
            << walk.text;
        if (!is_last) continue;
        const auto value = nlohmann::json::parse(message.text(), nullptr, false);
        if (message.recipient) {
          ASSERT_TRUE(value.is_object()) << walk.text;
          const std::string key = message.recipient == "functions.get_weather"      ? "city"
                                  : message.recipient == "functions.get_weather_at" ? "n"
                                                                                    : "";
          EXPECT_EQ(value.size(), key.empty() ? 0u : 1u) << walk.text;
          EXPECT_EQ(value.contains(key), !key.empty()) << walk.text;
        } else if (specs[s].response) {
          EXPECT_TRUE(value.is_object() && value["n"].is_number_integer()) << walk.text;
        }
        EXPECT_TRUE(s < 3 || message.recipient.has_value()) << walk.text;
        EXPECT_TRUE(s < 4 || message.recipient == "functions.get_weather_at") << walk.text;
      }
    }
  }
  EXPECT_GE(num_ended, 150);
}

}  // namespace
}  // namespace moxie
