// Reading of sets, extraction of answers, and their comparison, by tables.
#include "lab/eval_set.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace moxie {
namespace {

using Json = nlohmann::json;

EvalQuestion question_of(const std::string& line) {
  auto questions = parse_eval_set(line, "set.jsonl", "set");
  EXPECT_TRUE(questions.has_value()) << (questions ? "" : questions.error().message());
  return questions ? questions->front() : EvalQuestion{};
}

EvalVerdict verdict_of(const EvalQuestion& question, const std::string& content,
                       const std::string& finish_reason = "stop") {
  return judge(question, {.content = content, .finish_reason = finish_reason}).verdict;
}

TEST(EvalSetTest, ReadsBothForms) {
  const auto questions = parse_eval_set(
      R"({"id":"a","question":"Which?","choices":["red","blue"],"answer":"B"})"
      "\n\n"
      R"({"id":"a","task":"sums","question":"1 + 1","answer":"2","match":"number","meta":[1]})"
      "\r\n",
      "set.jsonl", "set");
  ASSERT_TRUE(questions.has_value()) << questions.error().message();
  ASSERT_EQ(questions->size(), 2u);
  EXPECT_EQ((*questions)[0].task, "set");
  EXPECT_EQ((*questions)[0].match, EvalMatch::kChoice);
  EXPECT_EQ((*questions)[0].answer, "B");
  const Json chat = Json::parse((*questions)[0].chat);
  ASSERT_EQ(chat["messages"].size(), 1u);
  const auto content = chat["messages"][0]["content"].get<std::string>();
  EXPECT_NE(content.find("Which?"), std::string::npos);
  EXPECT_NE(content.find("A) red\nB) blue\n"), std::string::npos);
  EXPECT_EQ((*questions)[1].task, "sums");
  EXPECT_EQ((*questions)[1].match, EvalMatch::kNumber);
}

TEST(EvalSetTest, AConversationStandsBeforeTheQuestion) {
  const EvalQuestion question = question_of(
      R"({"id":"a","messages":[{"role":"developer","content":"Be brief."}],"question":"Hi",)"
      R"("tools":[{"type":"function","function":{"name":"f"}}],)"
      R"("answer":{"name":"f","arguments":{"x":1}},"match":"call"})");
  const Json chat = Json::parse(question.chat);
  ASSERT_EQ(chat["messages"].size(), 2u);
  EXPECT_EQ(chat["messages"][0]["role"], "developer");
  EXPECT_EQ(chat["messages"][1]["content"], "Hi");
  EXPECT_EQ(chat["tools"].size(), 1u);
}

TEST(EvalSetTest, TheAnswerMayBeAChoiceItself) {
  const EvalQuestion question =
      question_of(R"({"id":"a","question":"?","choices":["red","blue"],"answer":"blue"})");
  EXPECT_EQ(question.answer, "B");
}

TEST(EvalSetTest, FaultsNameTheLine) {
  const std::string good = R"({"id":"q","question":"?","answer":"x"})";
  const struct {
    const char* line;
    const char* what;
  } kCases[] = {
      {"{", ""},
      {"[]", "object"},
      {R"({"question":"?","answer":"x"})", "\"id\" is missing"},
      {R"({"id":7,"question":"?","answer":"x"})", "\"id\" is not a string"},
      {R"({"id":"","question":"?","answer":"x"})", "\"id\" is empty"},
      {R"({"id":"a","answer":"x"})", "\"question\" is missing"},
      {R"({"id":"a","question":"","answer":"x"})", "\"question\" is empty"},
      {R"({"id":"a","question":"?"})", "\"answer\" is missing"},
      {R"({"id":"a","question":"?","answer":4})", "\"answer\" is not a string"},
      {R"({"id":"a","question":"?","answer":""})", "\"answer\" is empty"},
      {R"({"id":"a","question":"?","answer":"x","mach":"exact"})", "did you mean match"},
      {R"({"id":"a","question":"?","answer":"x","match":"exakt"})", "did you mean exact"},
      {R"({"id":"a","question":"?","answer":"x","match":"choice"})", "go together"},
      {R"({"id":"a","question":"?","answer":"x","match":"number"})", "not a number"},
      {R"({"id":"a","question":"?","answer":"4 m","match":"number"})", "not a number"},
      {R"({"id":"a","question":"?","answer":"1-2","match":"number"})", "not a number"},
      {R"({"id":"a","question":"?","answer":"(x","match":"regex"})", "no regular expression"},
      {R"({"id":"a","question":"?","answer":"C","choices":["x","y"]})", "neither"},
      {R"({"id":"a","question":"?","answer":"A","choices":["x"]})", "2 to 26"},
      {R"({"id":"a","question":"?","answer":"A","choices":["x","x"]})", "equal"},
      {R"({"id":"a","question":"?","answer":"A","choices":["x",""]})", "with text"},
      {R"({"id":"a","question":"?","answer":"A","choices":"xy"})", "2 to 26"},
      {R"({"id":"a","question":"?","answer":{"name":"f"},"match":"call"})", "arguments"},
      {R"({"id":"a","messages":{},"answer":"x"})", "messages"},
      {R"({"id":"a","messages":[{}],"answer":"x"})", "messages"},
      {R"({"id":"a","question":"?","answer":"x","tools":{}})", "tools"},
      {R"({"id":"q","question":"?","answer":"x"})", "twice"},
  };
  for (const auto& [line, what] : kCases) {
    const auto read = parse_eval_set(good + "\n" + line + "\n", "set.jsonl", "set");
    ASSERT_FALSE(read.has_value()) << line;
    EXPECT_NE(read.error().message().find("set.jsonl: line 2"), std::string::npos)
        << read.error().message();
    EXPECT_NE(read.error().message().find(what), std::string::npos) << read.error().message();
  }
  EXPECT_FALSE(parse_eval_set("\n\n", "set.jsonl", "set").has_value());
}

TEST(EvalSetTest, DeeplyNestedLinesAreRefused) {
  const std::string deep = R"({"id":"a","meta":)" + std::string(100000, '[');
  EXPECT_FALSE(parse_eval_set(deep, "set.jsonl", "set").has_value());
}

TEST(EvalSetTest, ChosenLetters) {
  const std::vector<std::string> kColours = {"red", "dark blue", "green", "a blue green"};
  const struct {
    const char* text;
    char letter;
  } kCases[] = {
      {"B", 'B'},
      {"b", 'B'},
      {" (B). ", 'B'},
      {"**C**", 'C'},
      {"\\boxed{D}", 'D'},
      {"B) dark blue", 'B'},
      {"C. It grows.", 'C'},
      {"The answer is C.", 'C'},
      {"The answer is (D) because A is wrong.", 'D'},
      {"Answer: option B", 'B'},
      {"The answer could be A. Thinking again, the answer is B.", 'B'},
      {"answer: A, the answer lies in plain sight", 'A'},
      {"dark blue", 'B'},
      {"Dark Blue.", 'B'},
      {"It must be red, I think.", 'A'},
      {"either red or green", 0},
      {"A sunny day", 0},
      {"I do not know", 0},
      {"E", 0},
      {"hundred", 0},
      {"", 0},
      {"***", 0},
  };
  for (const auto& [text, letter] : kCases) {
    EXPECT_EQ(chosen_letter(text, kColours), letter) << text;
  }
}

TEST(EvalSetTest, LastNumbers) {
  const struct {
    const char* text;
    const char* number;
  } kCases[] = {
      {"42", "42"},
      {"The sum is 1,234.", "1234"},
      {"1,234,567.50 dollars", "1234567.5"},
      {"12 + 30 = 42", "42"},
      {"7 - 12 = -5", "-5"},
      {"7-5", "5"},
      {"7 - 5", "5"},
      {"\xe2\x88\x92"
       "5",
       "-5"},
      {"-0", "0"},
      {"0.50", "0.5"},
      {".5", "5"},
      {"007", "7"},
      {"3, 4", "4"},
      {"3,4", "4"},
      {"1,23", "23"},
      {"version 1.2.3", "3"},
      {"x9", "9"},
      {"none", ""},
      {"", ""},
      {"5.", "5"},
      {"(-3)", "-3"},
      {"f(2)-3", "3"},
  };
  for (const auto& [text, number] : kCases) EXPECT_EQ(last_number(text), number) << text;
}

TEST(EvalSetTest, JudgesByTheMatch) {
  const auto with = [](const char* match, const char* answer) {
    return question_of(std::string(R"({"id":"a","question":"?","answer":)") + Json(answer).dump() +
                       R"(,"match":")" + match + R"("})");
  };
  const struct {
    const char* match;
    const char* answer;
    const char* text;
    EvalVerdict verdict;
  } kCases[] = {
      {"exact", "two words", " two words\n", EvalVerdict::kRight},
      {"exact", "two words", "Two words", EvalVerdict::kWrong},
      {"exact", "x", "  ", EvalVerdict::kInvalid},
      {"number", "1200", "That makes 1,200.00 in all", EvalVerdict::kRight},
      {"number", "1,200", "1200", EvalVerdict::kRight},
      {"number", "1200", "-1200", EvalVerdict::kWrong},
      {"number", "1200", "twelve hundred", EvalVerdict::kInvalid},
      {"regex", "^(yes|no), [0-9]+$", "no, 12", EvalVerdict::kRight},
      {"regex", "^(yes|no), [0-9]+$", "no, twelve", EvalVerdict::kWrong},
      {"contains", "Friday", "it is a FRIDAY.", EvalVerdict::kRight},
      {"contains", "Friday", "it is Saturday", EvalVerdict::kWrong},
      {"starts_with", "Yes", "Yes, it is.", EvalVerdict::kRight},
      {"starts_with", "Yes", "No. Yes?", EvalVerdict::kWrong},
  };
  for (const auto& [match, answer, text, verdict] : kCases) {
    EXPECT_EQ(verdict_of(with(match, answer), text), verdict) << match << ": " << text;
  }
  EXPECT_EQ(verdict_of(with("exact", "x"), "x", "length"), EvalVerdict::kInvalid);
}

TEST(EvalSetTest, JudgesJsonByItsValue) {
  const EvalQuestion question =
      question_of(R"({"id":"a","question":"?","answer":{"a":1,"b":[true,"x"]},"match":"json"})");
  EXPECT_EQ(verdict_of(question, R"({"b": [true, "x"], "a": 1.0})"), EvalVerdict::kRight);
  EXPECT_EQ(verdict_of(question, R"({"b": ["x", true], "a": 1})"), EvalVerdict::kWrong);
  EXPECT_EQ(verdict_of(question, R"({"a": 1, "b": [true, "x"], "c": null})"), EvalVerdict::kWrong);
  EXPECT_EQ(verdict_of(question, R"({"a": "1", "b": [true, "x"]})"), EvalVerdict::kWrong);
  EXPECT_EQ(verdict_of(question, "{a: 1}"), EvalVerdict::kInvalid);
}

TEST(EvalSetTest, JudgesCallsByNameAndArguments) {
  const EvalQuestion question = question_of(
      R"({"id":"a","question":"?","answer":{"name":"f","arguments":{"x":1}},"match":"call"})");
  const auto verdict = [&](std::vector<EvalReply::Call> calls, const char* finish = "tool_calls") {
    return judge(question, {.calls = std::move(calls), .finish_reason = finish}).verdict;
  };
  EXPECT_EQ(verdict({{"f", R"({"x": 1})"}}), EvalVerdict::kRight);
  EXPECT_EQ(verdict({{"g", R"({"x": 1})"}}), EvalVerdict::kWrong);
  EXPECT_EQ(verdict({{"f", R"({"x": 2})"}}), EvalVerdict::kWrong);
  EXPECT_EQ(verdict({{"f", R"({"x": 1})"}, {"f", "{}"}}), EvalVerdict::kWrong);
  EXPECT_EQ(verdict({{"f", "x=1"}}), EvalVerdict::kInvalid);
  EXPECT_EQ(verdict({}), EvalVerdict::kInvalid);
  EXPECT_EQ(verdict({{"f", R"({"x": 1})"}}, "length"), EvalVerdict::kInvalid);
  EXPECT_EQ(judge(question_of(R"({"id":"a","question":"?","answer":"x"})"),
                  {.content = "x", .calls = {{"f", "{}"}}, .finish_reason = "tool_calls"})
                .verdict,
            EvalVerdict::kInvalid);
}

}  // namespace
}  // namespace moxie
