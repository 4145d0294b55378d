// Harmony against the vectors of openai-harmony 0.0.8, its repairs case by case, and properties on
// random token strings.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "core/testing/paths.h"
#include "text/bpe_testing.h"
#include "text/harmony_json.h"
#include "text/harmony_testing.h"

namespace moxie::harmony {
namespace {

using Json = nlohmann::ordered_json;
using testing::byte_tokenizer;
using testing::o200k;
using testing::parse_checked;

const Json& cases_of(const std::string& file) {
  static std::map<std::string, Json> files;
  Json& document = files[file];
  if (document.is_null()) {
    std::ifstream stream(test_data() + "/harmony/" + file);
    document = Json::parse(stream);
  }
  return document.at("cases");
}

std::string group_of(const Json& item) {
  const std::string name = item.at("name");
  return name.substr(0, name.find('/'));
}

std::vector<Json> cases_in(const std::string& file, const std::string& group) {
  std::vector<Json> found;
  for (const Json& item : cases_of(file)) {
    if (group_of(item) == group) found.push_back(item);
  }
  return found;
}

// The members of a case that make up a command's document.
std::string line_of(const Json& item, std::initializer_list<const char*> keys) {
  Json line;
  for (const char* key : keys) {
    if (item.contains(key)) line[key] = item[key];
  }
  return line.dump();
}

std::string name_of(const ::testing::TestParamInfo<const char*>& info) { return info.param; }

// ---- rendering

class HarmonyRender : public ::testing::TestWithParam<const char*> {};

TEST_P(HarmonyRender, EqualsThePackage) {
  const auto cases = cases_in("render_cases.json", GetParam());
  ASSERT_FALSE(cases.empty());
  for (const Json& item : cases) {
    SCOPED_TRACE(item.at("name").get<std::string>());
    const Json answer =
        Json::parse(render_line(line_of(item, {"conversation", "mode", "config"}), o200k()));
    if (item.contains("error")) {
      EXPECT_TRUE(answer.contains("error"));
      continue;
    }
    ASSERT_FALSE(answer.contains("error")) << answer;
    EXPECT_EQ(answer.at("text"), item.at("text"));
    EXPECT_EQ(answer.at("ids"), item.at("ids"));
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, HarmonyRender,
                         ::testing::Values("system", "developer", "schema", "tools", "drop", "chat",
                                           "training", "call", "header", "error", "text", "random"),
                         name_of);

TEST(HarmonyRender, EveryGroupOfTheVectorsIsTested) {
  std::set<std::string> groups;
  for (const Json& item : cases_of("render_cases.json")) groups.insert(group_of(item));
  for (const Json& item : cases_of("parse_cases.json")) groups.insert(group_of(item));
  EXPECT_EQ(groups, (std::set<std::string>{"system", "developer", "schema", "tools", "drop", "chat",
                                           "training", "call", "header", "error", "text", "random",
                                           "well", "role", "bad", "utf8", "badid", "truncated"}));
}

std::string default_of(const std::string& json) {
  ToolNamespace space{"n", std::nullopt, {}};
  space.tools.push_back(
      {"f", "", R"({"type":"object","properties":{"p":{"default":)" + json + "}}}"});
  const std::string text = *render_tools({{"n", space}});
  const size_t begin = text.find("default: ") + 9;
  return text.substr(begin, text.find('\n', begin) - begin);
}

TEST(HarmonyRender, NumbersAreInRyusForm) {
  const std::pair<const char*, const char*> forms[] = {
      {"1.0", "1.0"},
      {"1e15", "1000000000000000.0"},
      {"1e16", "1e16"},
      {"1.5e17", "1.5e17"},
      {"1e-5", "0.00001"},
      {"1e-6", "1e-6"},
      {"1.5e-7", "1.5e-7"},
      {"-0.0", "-0.0"},
      {"5e-324", "5e-324"},
      {"123456.789", "123456.789"},
      {"0.1", "0.1"},
      {"18446744073709551615", "18446744073709551615"},
      {"1e22", "1e22"},
      {"18446744073709551616", "1.8446744073709552e19"},
      {"-7.25", "-7.25"},
      {"-9223372036854775809", "-9.223372036854776e18"},
      {"12345678901234567.0", "1.2345678901234568e16"}};
  for (const auto& [json, text] : forms) EXPECT_EQ(default_of(json), text) << json;
}

TEST(HarmonyRender, StringsInJsonEscapeOnlyWhatMustBe) {
  EXPECT_EQ(default_of(R"(["\"\\\/\b\f\r\t\u0001\u007fé"])"),
            "[\"\\\"\\\\/\\b\\f\\r\\t\\u0001\x7fé\"]");
}

TEST(HarmonyRender, FaultySchemasAreErrors) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  for (const std::string& schema : {std::string("{"), deep, std::string("{\"a\":\"\xff\"}")}) {
    Conversation conversation;
    conversation.messages.push_back(*developer_message(std::nullopt, {{"f", "", schema}}));
    EXPECT_FALSE(render(conversation, RenderMode::kCompletion, {}, byte_tokenizer()).has_value());
  }
}

// ---- JSON

TEST(HarmonyJson, ConversationsComeOutAsTheyCameIn) {
  for (const Json& item : cases_of("render_cases.json")) {
    const auto conversation = conversation_from_json(item.at("conversation"));
    ASSERT_TRUE(conversation.has_value()) << item.at("name");
    // Compared without the order of keys: namespaces come out sorted.
    EXPECT_EQ(nlohmann::json::parse(conversation_to_json(*conversation)),
              nlohmann::json::parse(item.at("conversation").dump()))
        << item.at("name");
  }
}

TEST(HarmonyJson, BadDocumentsAreErrors) {
  const std::string deep_list = std::string(200'000, '[');
  std::string deep_object;
  for (int i = 0; i < 100'000; ++i) deep_object += "{\"messages\":";
  std::string wide_object = "{\"messages\":[]";
  for (int i = 0; i < 50'000; ++i) wide_object += ",\"" + std::to_string(i) + "\":0";
  wide_object += "}";
  const std::string documents[] = {
      "",
      "null",
      "[]",
      "{}",
      "{\"messages\":null}",
      "{\"messages\":[]} x",
      R"({"messages":[{"role":"user"}]})",
      R"({"messages":[{"role":"User","content":"x"}]})",
      R"({"messages":[{"content":"x"}]})",
      R"({"messages":[{"role":"user","content":["x"]}]})",
      R"({"messages":[{"role":"user","content":[{"type":"image"}]}]})",
      R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})",
      R"({"messages":[{"role":"user","content":"x","channel":5}]})",
      R"({"messages":[{"role":"user","content":"\ud800"}]})",
      "{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}",
      R"({"messages":[{"role":"system","content":[{"type":"system_content","reasoning_effort":"low"}]}]})",
      R"({"messages":[{"role":"system","content":[{"type":"system_content","channel_config":{}}]}]})",
      R"({"messages":[{"role":"developer","content":[{"type":"developer_content","tools":[]}]}]})",
      R"({"messages":[{"role":"developer","content":[{"type":"developer_content","tools":{"a":{"name":"a"}}}]}]})",
      R"({"messages":[{"role":"developer","content":[{"type":"developer_content","tools":{"a":{"name":"a","tools":[{"name":"f"}]}}}]}]})",
      deep_list,
      deep_object,
      wide_object};
  for (const std::string& document : documents) {
    const auto conversation = read_conversation(document);
    ASSERT_FALSE(conversation.has_value()) << document.substr(0, 200);
    EXPECT_FALSE(conversation.error().what.empty());
    EXPECT_TRUE(Json::parse(render_line(document, byte_tokenizer())).contains("error"));
    EXPECT_TRUE(Json::parse(parse_line(document, byte_tokenizer())).contains("error"));
  }
}

TEST(HarmonyJson, FaultsNameTheirPlace) {
  const auto conversation = read_conversation(
      R"({"messages":[{"role":"user","content":"x"},{"role":"user","content":[{"type":"text","text":1}]}]})");
  ASSERT_FALSE(conversation.has_value());
  EXPECT_EQ(conversation.error().where, "messages[1].content[0].text");
}

TEST(HarmonyJson, ParseDocumentsMayLeaveOutTheRole) {
  const auto messages = [](const std::string& text) {
    const Json line{{"ids", byte_tokenizer().encode(text, SpecialMode::kAll)}};
    return Json::parse(parse_line(line.dump(), byte_tokenizer())).at("messages");
  };
  EXPECT_EQ(messages("<|start|>user<|message|>x<|end|>")[0].at("role"), "user");
  EXPECT_EQ(messages("<|channel|>final<|message|>x<|end|>")[0].at("role"), "assistant");
}

TEST(HarmonyJson, OddIdsAreNoErrorsAndOddDocumentsAre) {
  const auto error = [](const std::string& line) {
    return Json::parse(parse_line(line, byte_tokenizer())).contains("error");
  };
  EXPECT_FALSE(error(R"({"ids":[-1,99999999999,18446744073709551615,-9223372036854775808]})"));
  EXPECT_TRUE(error(R"({"ids":[1.5]})"));
  EXPECT_TRUE(error(R"({"ids":5})"));
  EXPECT_TRUE(error(R"({"ids":[],"role":"nobody"})"));
  EXPECT_TRUE(error(R"({"ids":[],"strict":"yes"})"));
}

// ---- parsing: the vectors

bool must_equal(const Json& item) {
  const std::string name = item.at("name");
  if (item.at("result").is_object()) return false;  // the package refuses
  const std::string group = group_of(item);
  if (group == "well") return name.find("final_json_") == std::string::npos;
  if (group == "random") {
    return name.find("_sound") != std::string::npos || name.find("_split") != std::string::npos;
  }
  // In these the package's messages are right; its deltas too.
  return group == "role" || group == "utf8" || group == "badid" || group == "truncated";
}

class HarmonyParse : public ::testing::TestWithParam<const char*> {};

TEST_P(HarmonyParse, EqualsThePackageOrKeepsWhatItHadFinished) {
  const auto cases = cases_in("parse_cases.json", GetParam());
  ASSERT_FALSE(cases.empty());
  for (const Json& item : cases) {
    SCOPED_TRACE(item.at("name").get<std::string>());
    SCOPED_TRACE(item.at("text").dump());
    const Json answer = Json::parse(
        parse_line(line_of(item, {"ids", "role", "strict"}), o200k(), {.stream = true}));
    ASSERT_FALSE(answer.contains("error")) << answer;
    const Json& messages = answer.at("messages");
    if (must_equal(item)) {
      EXPECT_EQ(messages, item.at("result"));
      EXPECT_EQ(answer.at("stream"), item.at("stream"));
      continue;
    }
    if (!item.at("result").is_object()) continue;
    EXPECT_FALSE(answer.at("warnings").empty());
    const Json& done = item.at("done");
    ASSERT_GE(messages.size(), done.size());
    for (size_t i = 0; i < done.size(); ++i) EXPECT_EQ(messages[i], done[i]);
  }
}

TEST_P(HarmonyParse, KeepsItsPromisesInEveryMode) {
  const auto cases = cases_in("parse_cases.json", GetParam());
  ASSERT_FALSE(cases.empty());
  for (const Json& item : cases) {
    SCOPED_TRACE(item.at("name").get<std::string>());
    ParserOptions options;
    const Json& role = item.at("role");
    options.role = role.is_null() ? std::nullopt : role_from_name(role.get<std::string>());
    options.strict = item.at("strict");
    const auto ids = item.at("ids").get<std::vector<int32_t>>();
    for (const bool repair : {true, false}) {
      options.repair_answers = repair;
      parse_checked(o200k(), ids, options);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, HarmonyParse,
                         ::testing::Values("well", "role", "random", "bad", "utf8", "badid",
                                           "truncated"),
                         name_of);

// ---- parsing: repairs

// "channel>recipient|type: content" per message, "role(name) " before where it is no assistant.
std::string in_short(const Message& message) {
  std::string out;
  if (message.role != Role::kAssistant) {
    out += std::string(role_name(message.role)) + "(" + message.name.value_or("") + ") ";
  }
  out += message.channel.value_or("-");
  if (message.recipient) out += ">" + *message.recipient;
  if (message.content_type) out += "|" + *message.content_type;
  return out + ": " + message.text();
}

std::vector<std::string> parsed(const std::string& text, ParserOptions options = {}) {
  const auto ids = byte_tokenizer().encode(text, SpecialMode::kAll);
  const Parser parser = parse_checked(byte_tokenizer(), ids, options);
  EXPECT_FALSE(parser.warnings().empty()) << text;
  std::vector<std::string> out;
  for (const ParsedMessage& message : parser.messages()) out.push_back(in_short(message.message));
  return out;
}

struct RepairCase {
  const char* text;
  std::vector<std::string> messages;
};

void expect_repairs(std::initializer_list<RepairCase> cases) {
  for (const RepairCase& item : cases) EXPECT_EQ(parsed(item.text), item.messages) << item.text;
}

TEST(HarmonyRepair, ContentTypesAreNoRecipients) {
  expect_repairs({{"<|channel|>final <|constrain|>json<|message|>{}<|return|>",
                   {"final|<|constrain|>json: {}"}},
                  {"<|channel|>final<|constrain|>json<|message|>{}<|return|>",
                   {"final|<|constrain|>json: {}"}},
                  {"<|channel|>final json<|message|>{}<|return|>", {"final|json: {}"}},
                  {"<|channel|>final <|constrain|>functions.f<|message|>{}<|call|>",
                   {"final>functions.f: {}"}}});
}

TEST(HarmonyRepair, CallsFindTheirTool) {
  const std::vector<std::string> call = {"commentary>functions.f|<|constrain|>json: {}"};
  expect_repairs(
      {{"<|channel|>commentary to= functions.f <|constrain|>json<|message|>{}<|call|>", call},
       {"<|channel|>commentary to:functions.f <|constrain|>json<|message|>{}<|call|>", call},
       {"<|channel|>commentary to=\"functions.f\" <|constrain|>json<|message|>{}<|call|>", call},
       {"<|channel|>commentary <|constrain|>json to=functions.f<|message|>{}<|call|>", call},
       {"<|channel|>commentary to=functions.f <|constrain|> json<|message|>{}<|call|>", call},
       {"<|channel|>commentary to=functions.f <|constrain|><|constrain|>json<|message|>{}<|call|>",
        call},
       {"<|constrain|>json<|channel|>commentary to=functions.f<|message|>{}<|call|>", call},
       {" to=functions.f<|channel|>commentary to=functions.f "
        "<|constrain|>json<|message|>{}<|call|>",
        call},
       {"<|channel|>commentary to=functions.f <|constrain|>json{}<|call|>", call},
       {" to=functions.f<|channel|>commentary <|constrain|>json {}<|call|>", call},
       {"<|channel|>commentaryto=functions.f <|constrain|>json<|message|>{}<|call|>", call},
       {"<|channel|>commentary to=functions.f {\"a\":1}<|message|><|call|>",
        {"commentary>functions.f: {\"a\":1}"}}});
}

TEST(HarmonyRepair, TheListOfToolsTellsAGluedTypeFromAName) {
  const std::string text = "<|channel|>commentary to=functions.shelljson<|message|>{}<|call|>";
  ParserOptions options;
  options.known_recipients = {"functions.shell", "functions.parsejson"};
  EXPECT_EQ(parsed(text, options),
            (std::vector<std::string>{"commentary>functions.shell|json: {}"}));
  const auto ids = byte_tokenizer().encode(
      "<|channel|>commentary to=functions.parsejson<|message|>{}<|call|>", SpecialMode::kAll);
  const Parser parser = parse_checked(byte_tokenizer(), ids, options);
  EXPECT_EQ(in_short(parser.messages()[0].message), "commentary>functions.parsejson: {}");
  EXPECT_TRUE(parser.warnings().empty());
}

TEST(HarmonyRepair, ChannelsAreFound) {
  expect_repairs({{"<|channel|>analysis<|channel|>final<|message|>x<|end|>", {"final: x"}},
                  {"<|channel|><|channel|>final<|message|>x<|end|>", {"final: x"}},
                  {"<|channel|> final<|message|>x<|end|>", {"final: x"}},
                  {"<|channel|><|message|>x<|end|>", {"-: x"}},
                  {"<|channel|>commentary?<|message|>x<|end|>", {"commentary: x"}},
                  {"<|channel|>finalfinal<|message|>x<|end|>", {"final: x"}},
                  {"final<|message|>x<|end|>", {"final: x"}},
                  {"<|channel|>I will now answer<|message|>x<|end|>", {"-: x"}}});
}

TEST(HarmonyRepair, RolesAreFound) {
  const std::string first = "<|channel|>analysis<|message|>a<|end|>";
  const auto second = [&](const std::string& text) {
    const auto messages = parsed(first + text);
    EXPECT_EQ(messages.size(), 2u) << text;
    EXPECT_EQ(messages.front(), "analysis: a") << text;
    return messages.back();
  };
  for (const char* header :
       {"<|start|><|start|>assistant<|channel|>final", "<|channel|>final",
        "assistant<|channel|>final", "<|start|><|channel|>final", "<|start|>final",
        "<|start|>Assistant<|channel|>final", "<|start|>assistant assistant<|channel|>final",
        "\n<|start|>assistant<|channel|>final"}) {
    EXPECT_EQ(second(std::string(header) + "<|message|>x<|return|>"), "final: x") << header;
  }
  EXPECT_EQ(second("<|start|>to=functions.f<|channel|>commentary<|message|>{}<|call|>"),
            "commentary>functions.f: {}");
  EXPECT_EQ(second("<|start|>functions.f<|channel|>commentary<|message|>x<|end|>"),
            "tool(functions.f) commentary: x");
  EXPECT_EQ(second("<|start|>user:bob<|message|>x<|end|>"), "user(bob) -: x");
  EXPECT_EQ(second("<|start|>assistant<|channel|>analysis<|channel|>commentary to=functions.f"
                   "<|message|>{}<|call|>"),
            "commentary>functions.f: {}");
  EXPECT_EQ(parsed("<|start|>assistant<|channel|>final<|message|>x<|return|>"),
            std::vector<std::string>{"final: x"});
}

TEST(HarmonyRepair, TextWithoutAHeaderIsKept) {
  expect_repairs(
      {{"I can't help with that.<|return|>", {"-: I can't help with that."}},
       {"I can't help with that.", {"-: I can't help with that."}},
       {"<|channel|>final The  answer\nis 4.<|return|>", {"final: The  answer\nis 4."}},
       {"<|channel|>finalHello<|return|>", {"final: Hello"}},
       {"We refuse.<|end|><|start|>assistant<|channel|>final<|message|>No.<|return|>",
        {"-: We refuse.", "final: No."}},
       {"We refuse.<|start|>assistant<|channel|>final<|message|>No.<|return|>",
        {"-: We refuse.", "final: No."}},
       {"<|channel|>final<|message|>x<|end|>And more.", {"final: x", "-: And more."}},
       {"<|channel|>commentary<|end|><|start|>assistant<|channel|>final<|message|>x<|return|>",
        {"commentary: ", "final: x"}}});
}

TEST(HarmonyRepair, AMissingEndDoesNotSwallowTheNextMessage) {
  expect_repairs({{"<|channel|>analysis<|message|>think<|start|>assistant<|channel|>final<|message|"
                   ">x<|return|>",
                   {"analysis: think", "final: x"}},
                  {"<|channel|>analysis<|message|>think<|channel|>final<|message|>x<|return|>",
                   {"analysis: think", "final: x"}},
                  {"<|channel|>analysis<|message|>think<|start|>assistant<|channel|>fin",
                   {"analysis: think"}}});
  // Control tokens that begin no message stay text.
  const auto ids = byte_tokenizer().encode(
      "<|channel|>final<|message|>a<|channel|>b<|message|>c<|start|>d<|end|>", SpecialMode::kAll);
  EXPECT_EQ(in_short(parse_checked(byte_tokenizer(), ids, {}).messages()[0].message),
            "final: a<|channel|>b<|message|>c<|start|>d");
}

TEST(HarmonyRepair, ACutHeaderIsNoMessage) {
  const std::string text =
      " to=functions.f<|channel|>commentary <|constrain|>json<|message|>{}<|call|>";
  const auto ids = byte_tokenizer().encode(text, SpecialMode::kAll);
  for (size_t i = 0; i < ids.size(); ++i) {
    const Parser parser =
        parse_checked(byte_tokenizer(), std::vector<int32_t>(ids.begin(), ids.begin() + i), {});
    EXPECT_EQ(parser.messages().size(), ids[i] == '{' || ids[i] == '}' || i + 1 == ids.size()) << i;
    for (const ParsedMessage& message : parser.messages()) {
      EXPECT_EQ(message.end, MessageEnd::kCut);
    }
  }
}

TEST(HarmonyRepair, WarningsAreBounded) {
  const auto control = ControlTokens::find(byte_tokenizer());
  Parser parser(byte_tokenizer(), *control);
  for (int i = 0; i < 10'000; ++i) parser.process(control->end);
  parser.finish();
  EXPECT_LE(parser.warnings().size(), 101u);
}

// ---- builders

TEST(HarmonyBuilders, MakeTheUsualPrompt) {
  Conversation conversation;
  conversation.messages.push_back(default_system_message("2025-06-28", ReasoningEffort::kHigh));
  conversation.messages.push_back(*developer_message("Be brief.", {{"now", "The time.", {}}}));
  conversation.messages.push_back(user_message("When?"));
  conversation.messages.push_back(function_call("now", "{}"));
  conversation.messages.push_back(function_result("now", "12:30"));
  const auto ids = render(conversation, RenderMode::kCompletion, {}, byte_tokenizer());
  ASSERT_TRUE(ids.has_value());
  EXPECT_EQ(
      *byte_tokenizer().decode(*ids),
      "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
      "Knowledge cutoff: 2024-06\nCurrent date: 2025-06-28\n\nReasoning: high\n\n"
      "# Valid channels: analysis, commentary, final. Channel must be included for every "
      "message.\nCalls to these tools must go to the commentary channel: 'functions'.<|end|>"
      "<|start|>developer<|message|># Instructions\n\nBe brief.\n\n# Tools\n\n## functions\n\n"
      "namespace functions {\n\n// The time.\ntype now = () => any;\n\n"
      "} // namespace functions<|end|><|start|>user<|message|>When?<|end|>"
      "<|start|>assistant to=functions.now<|channel|>commentary <|constrain|>json<|message|>{}"
      "<|call|><|start|>functions.now to=assistant<|channel|>commentary<|message|>12:30<|end|>"
      "<|start|>assistant");
  EXPECT_FALSE(developer_message(std::nullopt, {}).has_value());
  EXPECT_EQ(local_date().size(), 10u);
}

TEST(HarmonyBuilders, FinishedReasoningIsDroppedAndUnfinishedKept) {
  Message python = assistant_message("2+2", "analysis");
  python.recipient = "python";
  Conversation conversation{{user_message("1"), assistant_message("old", "analysis"), python,
                             assistant_message("one", "final"), user_message("2"),
                             assistant_message("older", "analysis"),
                             assistant_message("two", "final"), user_message("3"),
                             assistant_message("now", "analysis"), function_call("f", "{}")}};
  drop_finished_analysis(conversation);
  std::string texts;
  for (const Message& message : conversation.messages) texts += message.text() + " ";
  EXPECT_EQ(texts, "1 2+2 one 2 two 3 now {} ");
  Conversation loop{{user_message("1"), assistant_message("now", "analysis")}};
  drop_finished_analysis(loop);
  EXPECT_EQ(loop.messages.size(), 2u);
}

// ---- properties

std::vector<int32_t> bytes_with_control(const std::vector<int>& draws) {
  static const std::vector<std::string> words = {
      "assistant", "user", " to=functions.f", " json", "final", "analysis", "commentary",
      " ",         "\n",   "Hello",           "\xff",  "🦄",  "\xf0\x9f", "functions.f",
      "code",      "to=",  "{\"a\":1}"};
  std::vector<int32_t> ids;
  for (const int draw : draws) {
    if (draw < testing::kNumControlIds) {
      ids.push_back(testing::kFirstControlId + draw);
    } else if (draw - testing::kNumControlIds < static_cast<int>(words.size())) {
      for (const char c : words[static_cast<size_t>(draw - testing::kNumControlIds)]) {
        ids.push_back(static_cast<uint8_t>(c));
      }
    } else {
      ids.push_back(draw % 2 == 0 ? -1 : 1'000'000);
    }
  }
  return ids;
}

RC_GTEST_PROP(HarmonyProperty, NoTokenStringFailsAndNoTextIsLost, ()) {
  const auto draws = *rc::gen::container<std::vector<int>>(
      rc::gen::oneOf(rc::gen::inRange(0, 7), rc::gen::inRange(0, 27), rc::gen::inRange(0, 29)));
  ParserOptions options;
  options.strict = *rc::gen::arbitrary<bool>();
  options.repair_answers = *rc::gen::arbitrary<bool>();
  const int role = *rc::gen::inRange(-1, 5);
  options.role = role < 0 ? std::nullopt : std::optional<Role>(static_cast<Role>(role));
  parse_checked(byte_tokenizer(), bytes_with_control(draws), options);
}

RC_GTEST_PROP(HarmonyProperty, AnyIdsOfTheRealVocabularyPass, ()) {
  const auto ids = *rc::gen::container<std::vector<int32_t>>(
      rc::gen::oneOf(rc::gen::inRange(199'998, 200'020), rc::gen::inRange(0, 201'600),
                     rc::gen::arbitrary<int32_t>()));
  parse_checked(o200k(), ids, {});
}

rc::Gen<std::optional<std::string>> some_of(std::vector<std::string> words) {
  return rc::gen::map(rc::gen::inRange<size_t>(0, words.size() + 1),
                      [words](size_t i) -> std::optional<std::string> {
                        if (i == words.size()) return std::nullopt;
                        return words[i];
                      });
}

Message sound_message() {
  Message message;
  message.role = *rc::gen::element(Role::kUser, Role::kAssistant, Role::kSystem, Role::kTool);
  message.channel = *some_of({"analysis", "commentary", "final", "other"});
  message.recipient = *some_of({"functions.f", "assistant", "browser.search", "größe"});
  if (message.role == Role::kTool) {
    message.name = *rc::gen::element<std::string>("functions.f", "python", "browser.open");
    if (!message.recipient) message.recipient = "assistant";
  }
  if (message.recipient) message.content_type = *some_of({"json", "code", "<|constrain|>json"});
  const auto words = *rc::gen::container<std::vector<std::string>>(rc::gen::element<std::string>(
      "a ", "\n", "🦄", "<|end|>", "é", "<|start|>assistant", " 12345", "東京"));
  std::string text;
  for (const std::string& word : words) text += word;
  message.content.push_back(TextContent{text});
  return message;
}

RC_GTEST_PROP(HarmonyProperty, WhatWasRenderedParsesBackAndRendersTheSame, ()) {
  Conversation conversation;
  const int num_messages = *rc::gen::inRange(1, 6);
  for (int i = 0; i < num_messages; ++i) conversation.messages.push_back(sound_message());
  const Tokenizer& tokenizer = *rc::gen::arbitrary<bool>() ? byte_tokenizer() : o200k();
  const RenderConfig keep_all{.auto_drop_analysis = false};
  const auto ids = render(conversation, RenderMode::kConversation, keep_all, tokenizer);
  RC_ASSERT(ids.has_value());
  const Parser parser = parse_checked(tokenizer, *ids, {.role = std::nullopt});
  RC_ASSERT(parser.warnings().empty());
  Conversation again;
  for (const ParsedMessage& message : parser.messages()) again.messages.push_back(message.message);
  RC_ASSERT(again == conversation);
  RC_ASSERT(*render(again, RenderMode::kConversation, keep_all, tokenizer) == *ids);
}

RC_GTEST_PROP(HarmonyProperty, HowTextIsSplitIntoTokensDoesNotMatter, ()) {
  Conversation conversation;
  const int num_messages = *rc::gen::inRange(1, 4);
  for (int i = 0; i < num_messages; ++i) conversation.messages.push_back(sound_message());
  const auto ids = *render(conversation, RenderMode::kConversation, {}, o200k());
  // The same text a byte at a time; control tokens stay whole.
  std::vector<int32_t> split;
  for (const int32_t id : ids) {
    if (o200k().is_special(id)) {
      split.push_back(id);
      continue;
    }
    for (const char byte : o200k().token_bytes(id)) {
      const auto one = o200k().encode(std::string_view(&byte, 1));
      split.insert(split.end(), one.begin(), one.end());
    }
  }
  const ParserOptions options{.role = std::nullopt};
  const Parser whole = parse_checked(o200k(), ids, options);
  const Parser bytes = parse_checked(o200k(), split, options);
  RC_ASSERT(whole.messages().size() == bytes.messages().size());
  for (size_t i = 0; i < whole.messages().size(); ++i) {
    RC_ASSERT(whole.messages()[i].message == bytes.messages()[i].message);
    RC_ASSERT(whole.messages()[i].raw == bytes.messages()[i].raw);
  }
}

}  // namespace
}  // namespace moxie::harmony
