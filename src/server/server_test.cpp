// Parts of the server without a socket: requests, stop strings, replies, routes.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>

#include "server/anthropic.h"
#include "server/bad_words.h"
#include "server/reply_reader.h"
#include "server/response_store.h"
#include "server/responses.h"
#include "server/routes.h"
#include "server/workers.h"
#include "text/harmony_testing.h"

namespace moxie {
namespace {

Api<ChatRequest> chat(const std::string& fields) {
  auto document = parse_body("{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]" +
                             (fields.empty() ? "" : ", " + fields) + "}");
  if (!document) return tl::unexpected(document.error());
  return read_chat_request(*document);
}

TEST(RequestTest, FieldsArriveWhereTheyBelong) {
  const auto request = chat(
      R"("temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "n": 3, "seed": -1,
         "stop": ["a", "bc"], "max_completion_tokens": 9, "min_tokens": 2, "ignore_eos": true,
         "stop_token_ids": [4, 5], "logit_bias": {"12": -3.5}, "presence_penalty": 0.25,
         "frequency_penalty": -0.25, "repetition_penalty": 1.5, "priority": -2, "cache_salt": "s",
         "stream": true, "stream_options": {"include_usage": true}, "logprobs": true,
         "top_logprobs": 4, "reasoning": {"effort": "high"}, "parallel_tool_calls": false)");
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_FLOAT_EQ(*request->temperature, 0.5f);
  EXPECT_FLOAT_EQ(*request->top_p, 0.9f);
  EXPECT_EQ(request->sampling.top_k, 7);
  EXPECT_FLOAT_EQ(request->sampling.min_p, 0.1f);
  EXPECT_EQ(request->n, 3);
  EXPECT_EQ(*request->sampling.seed, UINT64_MAX);
  EXPECT_EQ(request->stop, (std::vector<std::string>{"a", "bc"}));
  EXPECT_EQ(*request->max_tokens, 9);
  EXPECT_EQ(request->sampling.min_tokens, 2);
  EXPECT_TRUE(request->sampling.ignore_eos);
  EXPECT_EQ(request->sampling.stop_ids, (std::vector<int32_t>{4, 5}));
  ASSERT_EQ(request->sampling.logit_bias.size(), 1u);
  EXPECT_EQ(request->sampling.logit_bias[0], (std::pair<int32_t, float>{12, -3.5f}));
  EXPECT_FLOAT_EQ(request->sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(request->priority, -2);
  EXPECT_EQ(request->cache_salt, "s");
  EXPECT_TRUE(request->stream && request->include_usage && request->logprobs);
  EXPECT_EQ(request->sampling.num_logprobs, 4);
  EXPECT_EQ(request->effort, harmony::ReasoningEffort::kHigh);
  EXPECT_FALSE(request->parallel_tool_calls);
}

TEST(RequestTest, MessagesSayWhatIsWrongAndWhere) {
  const auto message = [](const std::string& fields) {
    const auto request = chat(fields);
    return request ? "" : request.error().message;
  };
  EXPECT_EQ(message(R"("temperature": 2.5)"),
            "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got "
            "2.5 instead.");
  EXPECT_EQ(message(R"("n": "two")"),
            "Invalid type for 'n': expected an integer, but got a string instead.");
  EXPECT_EQ(message(R"("temprature": 1)"),
            "Unrecognized request argument supplied: \"temprature\". The nearest name is "
            "'temperature'.");
  EXPECT_EQ(message(R"("foo": 1)"), "Unrecognized request argument supplied: \"foo\".");
  EXPECT_EQ(message(R"("n": 18446744073709551616)"),
            "Invalid type for 'n': expected an integer, but got a number beyond 64 bits instead.");
  EXPECT_EQ(message(R"("best_of": 2)"), "'best_of' is not supported: use n");
  EXPECT_EQ(message(R"("temperature": 1)"), "");
}

TEST(RequestTest, FormatsWithASchemaBindAndTheirMembersAreKnown) {
  using Kind = StructuredOutput::Kind;
  const auto format = [](const std::string& text) { return chat("\"response_format\": " + text); };
  // The three places where clients put a schema.
  for (const char* text : {R"({"type": "json_schema", "json_schema": {"schema": {"a": 1}}})",
                           R"({"type": "json_schema", "schema": {"a": 1}})",
                           R"({"type": "json_object", "schema": {"a": 1}})"}) {
    const auto request = format(text);
    ASSERT_TRUE(request) << text << " " << request.error().message;
    EXPECT_EQ(request->structured.kind, Kind::kJsonSchema) << text;
    EXPECT_EQ(request->structured.text, R"({"a":1})") << text;
  }
  EXPECT_EQ(format(R"({"type": "json_object"})")->structured.kind, Kind::kJsonObject);
  const auto param = [&](const std::string& fields) {
    const auto request = chat(fields);
    return request ? "" : request.error().param;
  };
  EXPECT_EQ(param(R"("response_format": {"type": "text", "schema": {}})"),
            "response_format.schema");
  EXPECT_EQ(param(R"("response_format": {"type": "json_object", "pattern": "a"})"),
            "response_format.pattern");
  EXPECT_EQ(param(R"("response_format": {"type": "json_schema", "schema": {}, "json_schema": {}})"),
            "response_format.schema");
  EXPECT_EQ(param(R"("response_format": {"type": "json_schema", "json_schema": {"regex": "a"}})"),
            "response_format.json_schema.regex");
  EXPECT_EQ(param(R"("tools": [{"type": "function", "strict": true, "function": {"name": "f"}}])"),
            "tools[0].strict");
  EXPECT_EQ(param(R"("structured_outputs": {"structural_tag": "{}"})"),
            "structured_outputs.structural_tag");
  EXPECT_TRUE(chat(R"("structured_outputs": {"json": {}, "disable_any_whitespace": true})")
                  ->structured.compact);
}

TEST(RequestTest, OfTwoLengthsTheNewerCounts) {
  for (const char* fields : {R"("max_tokens": 3, "max_completion_tokens": 5)",
                             R"("max_completion_tokens": 5, "max_tokens": 3)"}) {
    EXPECT_EQ(chat(fields)->max_tokens, 5) << fields;
  }
}

TEST(RequestTest, ValuesThatRoutersAddAskForNothing) {
  const std::string both =
      R"("no_stop_trim": false, "return_hidden_states": false, "skip_special_tokens": true)";
  const auto request = chat(both + R"(, "separate_reasoning": true, "stream_reasoning": true)");
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_FALSE(request->keeps_stop());
  EXPECT_TRUE(request->separate_reasoning && request->stream_reasoning);
  EXPECT_TRUE(read_completion_request(*parse_body("{\"prompt\": \"x\", " + both + "}")));
  EXPECT_EQ(chat(R"("return_hidden_states": true)").error().param, "return_hidden_states");
  EXPECT_TRUE(chat(R"("documents": [], "vllm_xargs": {}, "kv_transfer_params": {})"));
  EXPECT_TRUE(
      chat(R"("ec_transfer_params": {}, "media_io_kwargs": {}, "mm_processor_kwargs": {})"));
  EXPECT_EQ(chat(R"("vllm_xargs": {"a": 1})").error().param, "vllm_xargs");
  EXPECT_EQ(chat(R"("documents": [{}])").error().param, "documents");
  // Either name of one wish counts, whatever the other says.
  EXPECT_TRUE(chat(R"("no_stop_trim": true, "include_stop_str_in_output": false)")->keeps_stop());
  EXPECT_TRUE(chat(R"("include_stop_str_in_output": true, "no_stop_trim": false)")->keeps_stop());
}

TEST(RequestTest, AnEffortOfTheTemplateGivesWay) {
  using Effort = harmony::ReasoningEffort;
  for (const std::string field : {"chat_template_kwargs", "chat_template_args"}) {
    const auto with = [&](const std::string& variables, const std::string& more = {}) {
      return chat("\"" + field + "\": {" + variables + "}" + more);
    };
    EXPECT_EQ(with(R"("reasoning_effort": "low")")->effort, Effort::kLow);
    EXPECT_EQ(with(R"("reasoning_effort": "low")", R"(, "reasoning_effort": "high")")->effort,
              Effort::kHigh);
    EXPECT_EQ(with(R"("reasoning_effort": "low")", R"(, "reasoning": {"effort": "high"})")->effort,
              Effort::kHigh);
    EXPECT_EQ(with(R"("enable_thinking": true, "builtin_tools": [], "x": null)")->effort,
              Effort::kMedium);
    EXPECT_EQ(with(R"("enable_thinking": false)").error().message,
              "'" + field +
                  ".enable_thinking' may only be true: the model always reasons; use "
                  "reasoning_effort.");
    EXPECT_EQ(with(R"("x": 1)").error().param, field + ".x");
  }
}

TEST(RequestTest, NullIsAbsentInsideObjectsToo) {
  EXPECT_TRUE(chat(R"("stream": true, "stream_options": {"include_usage": null})"));
  EXPECT_TRUE(chat(R"("chat_template_kwargs": {"reasoning_effort": null})"));
  EXPECT_TRUE(chat(R"("structured_outputs": {"json": null, "regex": "a"})"));
  EXPECT_TRUE(read_tokenize_request(
      *parse_body(R"({"prompt": "x", "model": null, "return_token_strs": null})")));
  EXPECT_FALSE(read_tokenize_request(*parse_body(R"({"prompt": null})")));
}

TEST(RequestTest, NumbersBeyondTheRangeAreNamedAsTheyAre) {
  EXPECT_EQ(chat(R"("seed": 9223372036854775808)").error().message,
            "Invalid 'seed': integer above maximum value. Expected a value <= 9223372036854775807, "
            "but got 9223372036854775808 instead.");
  EXPECT_TRUE(chat(R"("seed": 9223372036854775807)"));
  EXPECT_FALSE(chat(R"("prompt_logprobs": -1)"));  // elsewhere: of the whole vocabulary
}

TEST(RequestTest, AnthropicTurnsEndWithTheUser) {
  const auto message = [](const std::string& messages, const std::string& more, bool counts_only) {
    const auto request = read_messages_request(
        *parse_body("{\"model\": \"m\", \"max_tokens\": 5, \"messages\": " + messages + more + "}"),
        counts_only);
    return request ? std::string() : request.error().message;
  };
  const std::string ask = R"([{"role": "user", "content": "q"}])";
  const std::string begun =
      R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "A"}])";
  EXPECT_EQ(message(ask, "", false), "");
  EXPECT_NE(message(begun, "", false).find("end with a user message"), std::string::npos);
  EXPECT_EQ(message(begun, "", true), "");
  EXPECT_NE(message(R"([{"role": "user", "content": []}])", "", true), "");
  EXPECT_NE(message(ask, R"(, "thinking": {"type": "adaptive", "display": "none"})", false), "");
  EXPECT_NE(message(ask, R"(, "thinking": {"type": "adaptive", "budget": 3})", false), "");
  const auto shown = [&](const std::string& display) {
    return read_messages_request(
               *parse_body("{\"model\": \"m\", \"max_tokens\": 5, \"messages\": " + ask +
                           ", \"thinking\": {\"type\": \"adaptive\"" + display + "}}"),
               false)
        ->show_thinking;
  };
  EXPECT_TRUE(shown(""));
  EXPECT_TRUE(shown(R"(, "display": "summarized")"));
  EXPECT_FALSE(shown(R"(, "display": "omitted")"));
}

TEST(RequestTest, DeepOrBrokenBodiesAreRefusedAtOnce) {
  const std::string deep(200'000, '[');
  EXPECT_EQ(parse_body(deep).error().status, 400);
  EXPECT_FALSE(parse_body("{\"a\": \"\\ud800\"}"));
  EXPECT_FALSE(parse_body("{\"a\": \"\xff\"}"));
  const auto nul = parse_body("{\"a\": [{\"b\": \"x\\u0000\"}]}");
  ASSERT_FALSE(nul);
  EXPECT_EQ(nul.error().param, "a[0].b");
}

TEST(RequestTest, EveryTableDescribesEachFieldOnce) {
  for (const Route& route : routes()) {
    if (route.fields == nullptr) continue;
    std::set<std::string> names;
    for (const FieldInfo& field : route.fields()) {
      EXPECT_TRUE(names.insert(field.name).second) << route.pattern << " " << field.name;
      EXPECT_FALSE(field.about.empty()) << route.pattern << " " << field.name;
    }
  }
}

TEST(RequestTest, ToolResultsFindTheirFunction) {
  const auto document = parse_body(R"({"model": "m", "max_tokens": 5, "messages": [
      {"role": "user", "content": "q"},
      {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": ""},
          {"type": "text", "text": "p"},
          {"type": "tool_use", "id": "u", "name": "f", "input": {"a": 1}}]},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "u", "content": "r"}]}]})");
  ASSERT_TRUE(document);
  const auto request = read_messages_request(*document, false);
  ASSERT_TRUE(request) << request.error().message;
  const auto& messages = request->conversation.messages;
  ASSERT_EQ(messages.size(), 5u);
  EXPECT_EQ(messages[1], harmony::assistant_message("t", "analysis"));
  EXPECT_EQ(messages[2], harmony::assistant_message("p", "commentary"));
  EXPECT_EQ(messages[3], harmony::function_call("f", "{\"a\":1}"));
  EXPECT_EQ(messages[4], harmony::function_result("f", "r"));
}

// The plain meaning of stop strings: the text byte by byte until its end is one of them.
std::string stopped_naively(const std::string& text, const std::vector<std::string>& stops,
                            bool keep, bool* stopped) {
  for (size_t end = 1; end <= text.size(); ++end) {
    const std::string* longest = nullptr;
    for (const std::string& stop : stops) {
      if (!std::string_view(text).substr(0, end).ends_with(stop)) continue;
      if (longest == nullptr || stop.size() > longest->size()) longest = &stop;
    }
    if (longest == nullptr) continue;
    *stopped = true;
    return text.substr(0, keep ? end : end - longest->size());
  }
  *stopped = false;
  return text;
}

RC_GTEST_PROP(StopStringsTest, PiecesStopWhereTheWholeTextWould, ()) {
  const auto letters = rc::gen::element('a', 'b');
  const auto word = [&](int most) {
    return rc::gen::resize(most, rc::gen::nonEmpty(rc::gen::container<std::string>(letters)));
  };
  const auto stops = *rc::gen::resize(3, rc::gen::container<std::vector<std::string>>(word(4)));
  const auto pieces = *rc::gen::container<std::vector<std::string>>(
      rc::gen::resize(4, rc::gen::container<std::string>(letters)));
  const bool keep = *rc::gen::arbitrary<bool>();
  std::string text, out;
  for (const std::string& piece : pieces) text += piece;
  bool expected_stop = false;
  const std::string expected = stopped_naively(text, stops, keep, &expected_stop);
  StopStrings reader(stops, keep);
  bool stopped = false;
  for (const std::string& piece : pieces) {
    if (stopped) break;
    stopped = reader.push(piece, &out);
    RC_ASSERT(expected.starts_with(out));  // nothing is said that would have to be taken back
  }
  if (!stopped) reader.flush(&out);
  RC_ASSERT(stopped == expected_stop);
  RC_ASSERT(out == expected);
}

TEST(RoutesTest, MethodsAndPaths) {
  std::string allow;
  EXPECT_NE(find_route("GET", "/v1/responses/resp_1", &allow), nullptr);
  EXPECT_NE(find_route("POST", "/v1/responses/resp_1/cancel", &allow), nullptr);
  EXPECT_NE(find_route("GET", "/v1/models/openai/gpt-oss-20b", &allow), nullptr);
  allow.clear();
  EXPECT_EQ(find_route("PUT", "/v1/responses/resp_1", &allow), nullptr);
  EXPECT_EQ(allow, "GET, DELETE");
  EXPECT_NE(find_route("GET", "/", &allow), nullptr);
  for (const char* path : {"", "//", "/v1", "/v1/responses/", "/v1/responses/a/b", "/health/",
                           "//health", "/v1/models/"}) {
    allow.clear();
    EXPECT_EQ(find_route("GET", path, &allow), nullptr) << path;
    EXPECT_TRUE(allow.empty()) << path;
  }
}

TEST(RoutesTest, WhatRoutersAskIsInfoAndOnlyGeneratingIsWork) {
  std::string allow;
  const auto use = [&](const char* method, const char* path) {
    const Route* route = find_route(method, path, &allow);
    CHECK(route != nullptr, path);
    return route->use;
  };
  for (const char* path : {"/metrics", "/version"}) EXPECT_EQ(use("GET", path), Route::kMonitor);
  for (const char* path : {"/is_sleeping", "/kv_event_sources"}) {
    EXPECT_EQ(use("GET", path), Route::kInfo);
  }
  for (const char* path : {"/load", "/get_load", "/v1/loads", "/server_info", "/get_server_info",
                           "/model_info", "/get_model_info"}) {
    EXPECT_EQ(use("GET", path), Route::kModel);
  }
  EXPECT_EQ(use("GET", "/health_generate"), Route::kWork);
  EXPECT_EQ(use("POST", "/v1/responses/render"), Route::kWork);
  EXPECT_EQ(find_route("POST", "/v1/messages/render", &allow)->form, ErrorForm::kAnthropic);
}

TEST(RoutesTest, KeysCompareWhole) {
  EXPECT_TRUE(equal_in_constant_time("secret", "secret"));
  for (const char* given : {"", "secre", "secrets", "secretsecret", "Secret"}) {
    EXPECT_FALSE(equal_in_constant_time(given, "secret")) << given;
  }
  EXPECT_FALSE(equal_in_constant_time("", ""));
}

TEST(HttpTextTest, Traceparent) {
  const std::string good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  EXPECT_EQ(trace_id_of(good), "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(trace_id_of("01" + good.substr(2) + "-more"), "4bf92f3577b34da6a3ce929d0e0e4736");
  const std::vector<std::string> faulty = {
      std::string(),
      good.substr(1),
      good + "-more",
      "ff" + good.substr(2),
      "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
      "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"};
  for (const std::string& bad : faulty) {
    EXPECT_EQ(trace_id_of(bad), "") << bad;
  }
}

TEST(HttpTextTest, PercentDecoding) {
  std::string out;
  EXPECT_TRUE(percent_decode("/a%20b%2F", &out));
  EXPECT_EQ(out, "/a b/");
  for (const char* bad : {"%", "%1", "%zz", "a%00b"})
    EXPECT_FALSE(percent_decode(bad, &out)) << bad;
}

TEST(HttpTextTest, ProbesSeeRequestsAndFaults) {
  const HttpLimits limits{.header_bytes = 1024, .body_bytes = 8};
  const auto whole =
      probe_http("POST /x?q=1 HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}", limits);
  ASSERT_TRUE(whole.complete);
  EXPECT_EQ(whole.request.path, "/x");
  EXPECT_EQ(whole.request.query, "q=1");
  EXPECT_EQ(whole.request.body, "{}");
  EXPECT_EQ(probe_http("POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n", limits).status, 413);
  EXPECT_EQ(probe_http("GET / HTTP/1.1\r\nA: " + std::string(2000, 'a'), limits).status, 431);
  EXPECT_EQ(probe_http("nonsense\r\n\r\n", limits).status, 400);
  EXPECT_FALSE(probe_http("GET / HTTP/1.1\r\n", limits).complete);
  EXPECT_EQ(probe_http("GET / HTTP/1.1\r\n\r\n", limits).status, 400);
  EXPECT_EQ(probe_http("GET / HTTP/3.0\r\nHost: h\r\n\r\n", limits).status, 400);
  const auto named = probe_http("\r\nGET https://h?q=/ HTTP/1.1\r\nHost: h\r\n\r\n", limits);
  ASSERT_TRUE(named.complete);
  EXPECT_EQ(named.request.path, "/");
  EXPECT_EQ(named.request.query, "q=/");
}

TEST(HttpTextTest, OnlyChunkedIsATransferCoding) {
  const auto status = [](const std::string& coding) {
    return probe_http(
               "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: " + coding + "\r\n\r\n0\r\n\r\n",
               {})
        .status;
  };
  EXPECT_EQ(status("Chunked"), 0);
  for (const char* coding : {"", "gzip", "gzip, chunked", "chunked, chunked", "chunked;q=1"})
    EXPECT_EQ(status(coding), 400) << coding;
}

TEST(ResponseStoreTest, TheOldestGoFirstAndRunningOnesStay) {
  ResponseStore store({.count = 3, .bytes = 100});
  const auto response = [](uint64_t bytes, bool running = false) {
    auto stored = std::make_shared<StoredResponse>();
    stored->bytes = bytes;
    if (running) stored->cancel = [] {};
    return stored;
  };
  store.put("run", response(1, true));
  store.put("a", response(1));
  store.put("b", response(1));
  EXPECT_NE(store.find("a"), nullptr);  // used: younger than b now
  store.put("c", response(1));
  EXPECT_EQ(store.find("b"), nullptr);
  EXPECT_NE(store.find("a"), nullptr);
  EXPECT_NE(store.find("run"), nullptr);
  store.put("large", response(99));
  EXPECT_EQ(store.find("a"), nullptr);
  EXPECT_EQ(store.find("c"), nullptr);
  EXPECT_EQ(store.bytes(), 100u);
  EXPECT_TRUE(store.erase("run"));
  EXPECT_FALSE(store.erase("run"));
}

// Takes what is streamed to it.
class Listener final : public Exchange {
 public:
  const HttpRequest& request() const override { return request_; }
  std::string take_body() override { return {}; }
  void respond(HttpResponse) override {}
  void begin_stream(std::vector<HttpHeader>) override { begun = true; }
  void send(std::string_view bytes) override { text += bytes; }
  void end_stream() override { ended = true; }
  bool done() const override { return ended || gone; }
  void on_abort(std::function<void()>) override {}

  // The numbers of the events that came.
  std::vector<int> numbers() const {
    std::vector<int> list;
    const std::string mark = "\"sequence_number\":";
    for (size_t at = text.find(mark); at != text.npos; at = text.find(mark, at + 1)) {
      list.push_back(std::stoi(text.substr(at + mark.size())));
    }
    return list;
  }
  bool begun = false, ended = false, gone = false;
  std::string text;

 private:
  HttpRequest request_;
};

TEST(ResponseEventsTest, LateListenersHearWhatTheyMissed) {
  ResponseEvents events(/*keep=*/true);
  const auto first = std::make_shared<Listener>(), late = std::make_shared<Listener>(),
             over = std::make_shared<Listener>(), ahead = std::make_shared<Listener>();
  events.listen(first, 0);
  for (int i = 0; i < 3; ++i) events.add("response.some", {{"i", i}});
  events.flush();
  events.listen(late, 1);
  events.listen(ahead, 4);
  first->gone = true;
  events.add("response.some", Json::object());
  events.flush();
  events.add("response.completed", Json::object());
  events.end();
  events.listen(over, 2);
  EXPECT_EQ(first->numbers(), (std::vector{0, 1, 2, 3}));  // dropped when it was seen to be gone
  EXPECT_EQ(late->numbers(), (std::vector{1, 2, 3, 4}));
  EXPECT_EQ(ahead->numbers(), (std::vector{4}));
  EXPECT_EQ(over->numbers(), (std::vector{2, 3, 4}));
  EXPECT_TRUE(late->begun && late->ended && ahead->ended && over->ended && !first->ended);
}

TEST(ResponseEventsTest, WhatIsKeptIsBounded) {
  for (const bool keep : {false, true}) {
    ResponseEvents events(keep);
    const auto listener = std::make_shared<Listener>();
    events.listen(listener, 0);
    uint64_t most = 0;
    for (int i = 0; i < 100; ++i) {
      events.add("response.some", {{"text", std::string(100'000, 'x')}});
      events.flush();
      most = std::max(most, events.bytes());
    }
    EXPECT_FALSE(events.has_all());
    EXPECT_LE(most, keep ? uint64_t{5} << 20 : 0);
    EXPECT_EQ(listener->numbers().size(), 100u);
    EXPECT_EQ(listener->numbers().back(), 99);
  }
}

// Allows the ids that it was made with, and everything on every third token.
class Some final : public TokenConstraint {
 public:
  explicit Some(std::set<int32_t> ids) : ids_(std::move(ids)) {}
  bool fill_mask(std::span<uint32_t> mask) override {
    if (num_accepted_ % 3 == 2) return false;
    std::fill(mask.begin(), mask.end(), 0u);
    for (const int32_t id : ids_) mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
    return true;
  }
  Status accept(int32_t) override {
    ++num_accepted_;
    return {};
  }
  std::unique_ptr<TokenConstraint> fork() const override { return std::make_unique<Some>(*this); }
  bool allows(int32_t id) const { return num_accepted_ % 3 == 2 || ids_.contains(id); }

 private:
  std::set<int32_t> ids_;
  int num_accepted_ = 0;
};

RC_GTEST_PROP(BadWordsTest, BarsTheEndOfEachWordAndNothingElse, (bool bound)) {
  const auto id = rc::gen::inRange<int32_t>(0, 4);
  const auto ids = [&](int most) {
    return rc::gen::resize(most, rc::gen::nonEmpty(rc::gen::container<std::vector<int32_t>>(id)));
  };
  const auto words =
      std::make_shared<BannedWords>(*rc::gen::resize(3, rc::gen::container<BannedWords>(ids(3))));
  const auto allowed = *ids(4);
  const auto inner = std::make_shared<Some>(std::set<int32_t>(allowed.begin(), allowed.end()));
  BadWords bad(words, nullptr, bound ? inner : nullptr);
  std::vector<int32_t> text;
  std::vector<uint32_t> mask(3);
  for (const int32_t next : *ids(12)) {
    const bool masked = bad.fill_mask(mask);
    bool any_left = false;
    std::vector<bool> expected;
    for (int32_t candidate = 0; candidate < 96; ++candidate) {
      auto longer = text;
      longer.push_back(candidate);
      bool ends_word = false;
      for (const auto& word : *words) {
        ends_word = ends_word || (longer.size() >= word.size() &&
                                  std::equal(word.rbegin(), word.rend(), longer.rbegin()));
      }
      expected.push_back((!bound || inner->allows(candidate)) && !ends_word);
      any_left = any_left || expected.back();
    }
    for (int32_t candidate = 0; candidate < 96; ++candidate) {
      const bool is_allowed =
          !masked || (mask[static_cast<size_t>(candidate) / 32] >> (candidate % 32) & 1) != 0;
      const bool wanted =
          any_left ? expected[static_cast<size_t>(candidate)] : inner->allows(candidate);
      RC_ASSERT(is_allowed == wanted);
    }
    // What a copy takes is not seen here.
    const auto copy = bad.fork();
    RC_ASSERT(copy->accept(0).has_value());
    RC_ASSERT(copy->accept(1).has_value());
    std::vector<uint32_t> again(3);
    RC_ASSERT(bad.fill_mask(again) == masked);
    RC_ASSERT(!masked || again == mask);
    text.push_back(next);
    RC_ASSERT(bad.accept(next).has_value());
  }
}

TEST(BadWordsTest, HeadersStayFree) {
  const Tokenizer& tokenizer = testing::byte_tokenizer();
  const auto control = *harmony::ControlTokens::find(tokenizer);
  const auto words = std::make_shared<BannedWords>(banned_words(tokenizer, {"al"}));
  EXPECT_EQ(words->size(), 2u);  // with a space before it and without
  BadWords bad(words, &control, nullptr);
  std::vector<uint32_t> mask((static_cast<size_t>(tokenizer.vocab_size()) + 31) / 32);
  std::vector<size_t> barred_at;
  const auto ids = tokenizer.encode(
      "<|channel|>final<|message|>a l al<|end|><|start|>al<|message|>a", SpecialMode::kAll);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (bad.fill_mask(mask)) barred_at.push_back(i);
    ASSERT_TRUE(bad.accept(ids[i]));
  }
  EXPECT_EQ(bad.fill_mask(mask), true);
  const size_t content = tokenizer.encode("<|channel|>final<|message|>", SpecialMode::kAll).size();
  EXPECT_EQ(barred_at, (std::vector<size_t>{content + 1, content + 5}));
}

TEST(QueryTest, ValuesAreFoundByName) {
  EXPECT_EQ(query_value("a=1&b=x%20y&ab=3", "b"), "x y");
  EXPECT_EQ(query_value("a=1&b=x%20y&ab=3", "ab"), "3");
  EXPECT_EQ(query_value("a=", "a"), "");
  for (const char* query : {"", "a", "b=1", "a=%", "&&", "aa=1"}) {
    EXPECT_EQ(query_value(query, "a"), std::nullopt) << query;
  }
}

TEST(WorkersTest, BytesInTheQueueAreBounded) {
  std::mutex gate;
  gate.lock();
  Workers workers(1, 100);
  std::atomic<int> done{0};
  EXPECT_TRUE(workers.run(60, [&] {
    const std::lock_guard wait(gate);
    ++done;
  }));
  EXPECT_TRUE(workers.run(40, [&] { ++done; }));
  EXPECT_FALSE(workers.run(1, [&] { ++done; }));
  gate.unlock();
  while (done < 2) std::this_thread::yield();
}

TEST(JsonTest, StringsAreEscapedAsTheLibraryDoes) {
  for (const std::string& text : {std::string("plain"), std::string("\"\\\n\r\t\x01\x1f\x7f"),
                                  std::string("Grüße 日本 🙂")}) {
    std::string out;
    append_json_string(text, &out);
    EXPECT_EQ(nlohmann::json::parse(out).get<std::string>(), text);
  }
}

}  // namespace
}  // namespace moxie
