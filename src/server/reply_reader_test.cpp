// From tokens to parts of replies.
#include "server/reply_reader.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "text/harmony_testing.h"
#include "text/utf8.h"

namespace moxie {
namespace {

using testing::byte_tokenizer;

const harmony::ControlTokens& control() {
  static const harmony::ControlTokens tokens = *harmony::ControlTokens::find(byte_tokenizer());
  return tokens;
}

struct Read {
  std::string reasoning, content;
  std::vector<ToolCall> calls;
  std::vector<ReplyToken> tokens;
  bool stopped = false;
};

// Reads ids; what the deltas say has to be what the reply says.
Read read(const std::vector<int32_t>& ids, ReplyOptions options) {
  ReplyReader reader(byte_tokenizer(), control(), std::move(options));
  std::vector<Delta> deltas;
  for (const int32_t id : ids) {
    if (!reader.take({.id = id, .logprob = -static_cast<float>(id), .top = {}}, &deltas)) break;
  }
  reader.finish(&deltas);
  Read result{.stopped = reader.stopped()};
  for (const Delta& delta : deltas) {
    EXPECT_TRUE(is_valid_utf8(delta.text));
    result.tokens.insert(result.tokens.end(), delta.tokens.begin(), delta.tokens.end());
    switch (delta.part) {
      case ReplyPart::kReasoning:
        result.reasoning += delta.text;
        break;
      case ReplyPart::kContent:
        result.content += delta.text;
        break;
      case ReplyPart::kToolName:
        EXPECT_EQ(delta.call_idx, result.calls.size());
        result.calls.push_back({delta.text, ""});
        break;
      case ReplyPart::kToolArguments:
        result.calls.at(delta.call_idx).arguments += delta.text;
    }
  }
  EXPECT_EQ(result.reasoning, reader.reply().reasoning);
  EXPECT_EQ(result.content, reader.reply().content);
  EXPECT_EQ(result.calls.size(), reader.reply().tool_calls.size());
  for (size_t i = 0; i < result.calls.size(); ++i) {
    EXPECT_EQ(result.calls[i].name, reader.reply().tool_calls[i].name);
    EXPECT_EQ(result.calls[i].arguments, reader.reply().tool_calls[i].arguments);
  }
  return result;
}

std::vector<int32_t> ids_of(const std::string& text) {
  return byte_tokenizer().encode(text, SpecialMode::kAll);
}

TEST(ReplyReaderTest, ChannelsBecomeParts) {
  const Read got = read(
      ids_of("<|channel|>analysis<|message|>think<|end|><|start|>assistant<|channel|>commentary"
             "<|message|>first<|end|><|start|>assistant<|channel|>final<|message|>then<|return|>"),
      {});
  EXPECT_EQ(got.reasoning, "think");
  EXPECT_EQ(got.content, "first\nthen");
  EXPECT_TRUE(got.calls.empty());
}

TEST(ReplyReaderTest, CallsCountOnAnyChannelAndEmptyArgumentsAreAnObject) {
  const Read got =
      read(ids_of("<|channel|>analysis to=functions.web-browsing <|constrain|>json<|message|>"
                  "{\"a\":1}<|call|><|start|>assistant to=functions.g<|channel|>commentary"
                  "<|message|><|call|>"),
           {.known_functions = {"web-browsing", "g"}});
  ASSERT_EQ(got.calls.size(), 2u);
  EXPECT_EQ(got.calls[0].name, "web-browsing");
  EXPECT_EQ(got.calls[0].arguments, "{\"a\":1}");
  EXPECT_EQ(got.calls[1].name, "g");
  EXPECT_EQ(got.calls[1].arguments, "{}");
  EXPECT_EQ(got.content, "");
}

TEST(ReplyReaderTest, StopStringsBindContentAlone) {
  const Read got = read(ids_of("<|channel|>analysis<|message|>a stop b<|end|><|start|>assistant"
                               "<|channel|>final<|message|>say stop now<|return|>"),
                        {.stop = {"stop"}});
  EXPECT_EQ(got.reasoning, "a stop b");
  EXPECT_EQ(got.content, "say ");
  EXPECT_TRUE(got.stopped);
}

TEST(ReplyReaderTest, HeldBackTextComesAtTheEnd) {
  const Read got =
      read(ids_of("<|channel|>final<|message|>almost sto<|return|>"), {.stop = {"stop"}});
  EXPECT_EQ(got.content, "almost sto");
  EXPECT_FALSE(got.stopped);
}

TEST(ReplyReaderTest, LogprobsGoWithTheTokensOfContent) {
  const Read got =
      read(ids_of("<|channel|>analysis<|message|>ab<|end|><|start|>assistant<|channel|>"
                  "final<|message|>é!<|return|>"),
           {.logprobs = true});
  ASSERT_EQ(got.tokens.size(), 3u);
  EXPECT_EQ(got.tokens[0].id, 0xc3);
  EXPECT_EQ(got.tokens[1].id, 0xa9);
  EXPECT_EQ(got.tokens[2].id, '!');
}

TEST(ReplyReaderTest, PlainTextHasNoControlTokens) {
  const Read got = read(ids_of("a<|end|>b<|call|>"), {.harmony = false, .logprobs = true});
  EXPECT_EQ(got.content, "ab");
  EXPECT_EQ(got.tokens.size(), 4u);  // every token that was drawn has its probability
  EXPECT_EQ(read(ids_of("a<|end|>"), {.harmony = false, .skip_special = false}).content,
            "a<|end|>");
}

// A token a byte: "ab" ends with the second and the fifth. A stop string may begin before.
TEST(ReplyReaderTest, StopStringsCountBehindTheLeastNumberOfTokens) {
  const char* const expected[] = {"", "", "abc", "abc", "abc", "abcab", "abcab"};
  for (int32_t min_tokens = 0; min_tokens < 7; ++min_tokens) {
    for (const std::vector<std::string>& stop :
         {std::vector<std::string>{"ab"}, std::vector<std::string>{"ab", "abx"}}) {
      const Read found =
          read(ids_of("abcab"), {.harmony = false, .stop = stop, .min_tokens = min_tokens});
      EXPECT_EQ(found.content, expected[min_tokens]) << min_tokens;
      EXPECT_EQ(found.stopped, min_tokens < 5) << min_tokens;
    }
  }
}

TEST(ReplyReaderTest, PlainTextsLastTokensKeepTheirLogprobsBesideStopStrings) {
  const Read got = read(ids_of("ab<|end|>"), {.harmony = false, .stop = {"bcd"}, .logprobs = true});
  EXPECT_EQ(got.content, "ab");
  EXPECT_EQ(got.tokens.size(), 3u);
  const Read none = read(ids_of("<|end|>"), {.harmony = false, .stop = {"b"}, .logprobs = true});
  EXPECT_EQ(none.content, "");
  EXPECT_EQ(none.tokens.size(), 1u);
}

TEST(ReplyReaderTest, TheTokenThatEndsPlainTextHasALogprobToo) {
  for (const bool harmony : {false, true}) {
    ReplyReader reader(byte_tokenizer(), control(), {.harmony = harmony, .logprobs = true});
    std::vector<Delta> deltas;
    reader.take_end({.id = 'z', .top = {}});
    reader.finish(&deltas);
    ASSERT_EQ(deltas.size(), harmony ? 0u : 1u);
    EXPECT_EQ(reader.reply().content, "");
    if (!harmony) {
      EXPECT_EQ(deltas[0].tokens.at(0).id, 'z');
    }
  }
}

RC_GTEST_PROP(ReplyReaderTest, AnyTokensMakeAReply, (bool is_harmony, bool logprobs)) {
  const auto id =
      rc::gen::weightedOneOf<int32_t>({{3, rc::gen::inRange(0, 256)},
                                       {3, rc::gen::inRange(256, 256 + testing::kNumControlIds)},
                                       {1, rc::gen::element(-1, 100'000)}});
  const auto ids = *rc::gen::container<std::vector<int32_t>>(id);
  read(ids, {.harmony = is_harmony, .stop = {"a", "<|"}, .logprobs = logprobs});
}

TEST(ReplyReaderTest, StrayControlTokensAreNoText) {
  const Read got =
      read(ids_of("<|channel|>analysis<|message|>a<|message|>b<|channel|>c<|end|>"
                  "<|start|>assistant<|channel|>final<|message|>d<|constrain|>e<|start|>"
                  "f<|return|>"),
           {});
  EXPECT_EQ(got.reasoning, "abc");
  EXPECT_EQ(got.content, "def");
  EXPECT_EQ(read(ids_of("hello <|channel|><|return|>"), {}).content, "hello ");
}

// No "<" among the plain bytes: whatever looks like a control token was one.
RC_GTEST_PROP(ReplyReaderTest, NoControlTokenIsSpelled, ()) {
  const auto words = rc::gen::elementOf(std::vector<std::string>{
      "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>",
      "<|call|>", "<|reserved_1|>", "assistant", "user", "analysis", "final", "commentary",
      " to=functions.f", " json", " ", "{}", "text", "é"});
  std::vector<int32_t> ids;
  for (const std::string& word : *rc::gen::container<std::vector<std::string>>(words)) {
    const auto more = ids_of(word);
    ids.insert(ids.end(), more.begin(), more.end());
  }
  const Read got = read(ids, {.known_functions = {"f"}});
  std::string shown = got.reasoning + got.content;
  for (const ToolCall& call : got.calls) shown += call.name + call.arguments;
  RC_ASSERT(shown.find("<|") == std::string::npos);
}

}  // namespace
}  // namespace moxie
