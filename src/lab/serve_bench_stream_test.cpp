#include "lab/serve_bench_stream.h"

#include <gtest/gtest.h>

namespace moxie {
namespace {

using Payloads = std::vector<std::string>;

// The payloads of a stream that comes in pieces of `size` bytes.
Payloads read_in_pieces(std::string_view stream, size_t size) {
  SseReader reader;
  Payloads payloads;
  for (size_t at = 0; at < stream.size(); at += size)
    EXPECT_TRUE(reader.read(stream.substr(at, size), &payloads));
  reader.finish(&payloads);
  return payloads;
}

TEST(SseReader, ReadsEventsHoweverTheyAreCut) {
  const std::string stream =
      "\xEF\xBB\xBF: ping\n\ndata: {\"a\":\"\xE2\x82\xAC\"}\n\nevent: x\r\ndata:one\r\ndata:  "
      "two\r\n"
      "id: 7\r\n\r\ndata: cr\r\rdata\n\nretry: 5\n\n\ndata: [DONE]\n\n";
  const Payloads expected = {"{\"a\":\"\xE2\x82\xAC\"}", "one\n two", "cr", "", "[DONE]"};
  for (size_t size = 1; size <= stream.size(); ++size)
    EXPECT_EQ(read_in_pieces(stream, size), expected) << "in pieces of " << size;
}

TEST(SseReader, CountsComments) {
  SseReader reader;
  Payloads payloads;
  ASSERT_TRUE(reader.read(": a\n:b\r\n\ndata: x\n\n", &payloads));
  EXPECT_EQ(reader.num_comments(), 2);
}

TEST(SseReader, TheEndOfTheStreamEndsAnEvent) {
  EXPECT_EQ(read_in_pieces("data: [DONE]", 3), Payloads{"[DONE]"});
  EXPECT_EQ(read_in_pieces("data: [DONE]\n", 3), Payloads{"[DONE]"});
  EXPECT_EQ(read_in_pieces("da", 1), Payloads{});
}

TEST(SseReader, RefusesALineAndAnEventWithoutEnd) {
  const std::string piece(1 << 20, 'x');
  for (const bool has_lines : {false, true}) {
    SseReader reader;
    Payloads payloads;
    Status status = reader.read("data: ", &payloads);
    int num_pieces = 0;
    for (; status && num_pieces < 1000; ++num_pieces) {
      status = reader.read(piece, &payloads);
      if (status && has_lines) status = reader.read("\ndata: ", &payloads);
    }
    ASSERT_FALSE(status);
    EXPECT_LE(num_pieces, 5);
    EXPECT_NE(status.error().message().find("longer than"), std::string::npos);
  }
}

TEST(StreamChunk, ARoleAloneIsAResponseWithoutContent) {
  const auto chunk = read_stream_chunk(
      R"({"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]})");
  ASSERT_TRUE(chunk);
  EXPECT_TRUE(chunk->has_choice);
  EXPECT_FALSE(chunk->has_content);
  EXPECT_EQ(chunk->num_token_ids, -1);
}

TEST(StreamChunk, KnowsContentInEachPlace) {
  for (const char* payload :
       {R"({"choices":[{"delta":{"content":"a"}}]})",
        R"({"choices":[{"delta":{"reasoning":"a"}}]})",
        R"({"choices":[{"delta":{"reasoning_content":"a"}}]})", R"({"choices":[{"text":"a"}]})",
        R"({"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"{"}}]}}]})"}) {
    const auto chunk = read_stream_chunk(payload);
    ASSERT_TRUE(chunk) << payload;
    EXPECT_TRUE(chunk->has_content) << payload;
  }
}

TEST(StreamChunk, ReadsTokensReasonAndUsage) {
  const auto chunk =
      read_stream_chunk(R"({"choices":[{"text":"ab","token_ids":[5,6],"finish_reason":"length"}],)"
                        R"("usage":{"prompt_tokens":9,"completion_tokens":4,)"
                        R"("prompt_tokens_details":{"cached_tokens":3}}})");
  ASSERT_TRUE(chunk);
  EXPECT_EQ(chunk->num_token_ids, 2);
  EXPECT_EQ(chunk->finish_reason, "length");
  ASSERT_TRUE(chunk->usage);
  EXPECT_EQ(chunk->usage->num_prompt, 9);
  EXPECT_EQ(chunk->usage->num_completion, 4);
  EXPECT_EQ(chunk->usage->num_cached, 3);
}

TEST(StreamChunk, AChunkOfUsageAloneHasNoChoice) {
  const auto chunk =
      read_stream_chunk(R"({"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}})");
  ASSERT_TRUE(chunk);
  EXPECT_FALSE(chunk->has_choice);
  EXPECT_EQ(chunk->usage->num_cached, -1);
}

TEST(StreamChunk, KnowsTheEndAndErrors) {
  EXPECT_TRUE(read_stream_chunk(" [DONE] ")->is_done);
  EXPECT_EQ(read_stream_chunk(R"({"error":{"message":"out of memory"}})")->error, "out of memory");
  EXPECT_EQ(read_stream_chunk(R"({"error":"gone"})")->error, "gone");
}

TEST(StreamChunk, RefusesWhatIsNoChunk) {
  for (const char* payload :
       {"", "garbage", "[1,2]", "{\"choices\":[", "{\"choices\":5}", "{\"choices\":[7]}",
        R"({"usage":5})", R"({"usage":{"prompt_tokens":-1}})",
        R"({"usage":{"completion_tokens":"many"}})", R"({"usage":{"completion_tokens":1e300}})",
        "{\"choices\":[{\"text\":\"\xE2\x82\"}]}"}) {
    EXPECT_FALSE(read_stream_chunk(payload)) << payload;
  }
}

TEST(ErrorText, FindsTheMessageAndIsPrintable) {
  EXPECT_EQ(error_text(R"({"error":{"message":"no"}})"), "no");
  EXPECT_EQ(error_text(R"({"detail":"not found"})"), "not found");
  EXPECT_EQ(error_text("<html>\x1b[31m"), "<html>?[31m");
  EXPECT_LE(error_text(std::string(100000, 'x')).size(), 203U);
}

TEST(AnswerUsage, IsReadOrMissed) {
  EXPECT_EQ(read_answer_usage(R"({"usage":{"prompt_tokens":7}})")->num_prompt, 7);
  EXPECT_FALSE(read_answer_usage("{}"));
  EXPECT_FALSE(read_answer_usage("7"));
}

}  // namespace
}  // namespace moxie
