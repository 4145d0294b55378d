// The run of a set with answers from a table: what is asked, what is kept, and how a run goes on.
#include "lab/eval.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

namespace moxie {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class EvalTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() /
              ("moxie_eval_" + std::string(info->name()) + "_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    for (int i = 0; i < 10; ++i) {
      const std::string text = std::to_string(i);
      const Json messages = Json::array({{{"role", "user"}, {"content", text}}});
      questions_.push_back({.task = i < 6 ? "sums" : "words",
                            .id = text,
                            .chat = Json{{"messages", messages}}.dump(),
                            .choices = {},
                            .answer = text,
                            .match = EvalMatch::kNumber});
    }
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string at(const char* name) const { return (folder_ / name).string(); }

  // Answers right but for questions 3 (wrong) and 8 (no number).
  Ask table() {
    return [this](const std::string& request) -> Result<EvalReply> {
      const Json body = Json::parse(request);
      const auto text = body["messages"].back()["content"].get<std::string>();
      const std::lock_guard lock(mutex_);
      asked_.push_back(text + body["reasoning_effort"].get<std::string>());
      EvalReply reply{.content = text == "3"   ? "4"
                                 : text == "8" ? "eight"
                                               : "It is " + text,
                      .finish_reason = "stop",
                      .prompt_tokens = 7,
                      .completion_tokens = 2};
      return reply;
    };
  }

  Result<std::vector<EvalSample>> run(EvalSamples* samples, const Ask& ask) {
    return run_eval(questions_, options_, ask, samples, stop_);
  }
  std::unique_ptr<EvalSamples> open(const std::string& origin = "model m") {
    auto samples = EvalSamples::open(at("s.jsonl"), origin);
    EXPECT_TRUE(samples.has_value()) << (samples ? "" : samples.error().message());
    return samples ? std::move(*samples) : nullptr;
  }

  fs::path folder_;
  std::vector<EvalQuestion> questions_;
  EvalOptions options_{.efforts = {"low", "high"}, .concurrency = 3};
  std::mutex mutex_;
  std::vector<std::string> asked_;
  std::atomic<bool> stop_{false};
};

TEST_F(EvalTest, CountsByTaskAndEffortAndOverAll) {
  EvalSamples none;
  const auto samples = run(&none, table());
  ASSERT_TRUE(samples.has_value()) << samples.error().message();
  ASSERT_EQ(samples->size(), 20u);
  const auto counts = count_samples(*samples);
  ASSERT_EQ(counts.size(), 6u);
  EXPECT_EQ(counts[0].task, "sums");
  EXPECT_EQ(counts[0].effort, "low");
  EXPECT_EQ(counts[0].total, 6);
  EXPECT_EQ(counts[0].right, 5);
  EXPECT_EQ(counts[0].invalid, 0);
  EXPECT_EQ(counts[3].task, "words");
  EXPECT_EQ(counts[3].effort, "high");
  EXPECT_EQ(counts[3].invalid, 1);
  EXPECT_EQ(counts[5].task, "");
  EXPECT_EQ(counts[5].right, 8);
  EXPECT_EQ(counts[5].prompt_tokens, 70);
  EXPECT_EQ(counts[5].completion_tokens, 20);
  EXPECT_DOUBLE_EQ(counts[5].accuracy(), 0.8);
}

TEST_F(EvalTest, SamplesStandInTheOrderOfTheQuestionsWhateverTheConcurrency) {
  EvalSamples none;
  const auto samples = run(&none, table());
  ASSERT_TRUE(samples.has_value());
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ((*samples)[i].id, std::to_string(i % 10));
    EXPECT_EQ((*samples)[i].effort, i < 10 ? "low" : "high");
  }
}

TEST_F(EvalTest, AFailedRunGoesOnFromItsSamples) {
  const Ask answers = table();
  std::atomic<int> left{7};
  const auto failed = run(open().get(), [&](const std::string& request) -> Result<EvalReply> {
    if (left.fetch_sub(1) <= 0) return fail("no answer", "http://x");
    return answers(request);
  });
  ASSERT_FALSE(failed.has_value());
  EXPECT_NE(failed.error().message().find("no answer"), std::string::npos);
  EXPECT_EQ(asked_.size(), 7u);
  auto samples = open();
  EXPECT_EQ(samples->num_read(), 7u);
  const auto done = run(samples.get(), answers);
  ASSERT_TRUE(done.has_value()) << done.error().message();
  EXPECT_EQ(asked_.size(), 20u);  // none twice
  EXPECT_EQ(std::set<std::string>(asked_.begin(), asked_.end()).size(), 20u);
  EXPECT_EQ(count_samples(*done).back().right, 8);
  samples.reset();
  const auto again = run(open().get(), answers);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(asked_.size(), 20u);
  EXPECT_EQ(count_samples(*again).back().right, 8);
}

TEST_F(EvalTest, AChangedQuestionIsAskedAgain) {
  ASSERT_TRUE(run(open().get(), table()).has_value());
  questions_[2].chat = R"({"messages":[{"role":"user","content":"two"}]})";
  ASSERT_TRUE(run(open().get(), table()).has_value());
  EXPECT_EQ(asked_.size(), 22u);
}

TEST_F(EvalTest, ALastLineThatWasCutIsDropped) {
  ASSERT_TRUE(run(open().get(), table()).has_value());
  fs::resize_file(at("s.jsonl"), fs::file_size(at("s.jsonl")) - 5);
  auto samples = open();
  EXPECT_EQ(samples->num_read(), 19u);
  ASSERT_TRUE(run(samples.get(), table()).has_value());
  samples.reset();
  EXPECT_EQ(open()->num_read(), 20u);
}

TEST_F(EvalTest, FilesOfAnotherOriginOrFormAreRefusedAndKept) {
  ASSERT_TRUE(run(open().get(), table()).has_value());
  const auto size = fs::file_size(at("s.jsonl"));
  const auto other = EvalSamples::open(at("s.jsonl"), "model other");
  ASSERT_FALSE(other.has_value());
  EXPECT_NE(other.error().message().find("another run"), std::string::npos);
  EXPECT_EQ(fs::file_size(at("s.jsonl")), size);
  for (const char* text : {"hello", "hello\n", "{}\n", "[1]\n", "\n"}) {
    std::ofstream(at("x.jsonl"), std::ios::binary) << text;
    EXPECT_FALSE(EvalSamples::open(at("x.jsonl"), "model m").has_value()) << text;
    std::ifstream file(at("x.jsonl"), std::ios::binary);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), text);
  }
  std::ofstream(at("s.jsonl"), std::ios::app) << "{\"variant\":1}\n";
  const auto bad = EvalSamples::open(at("s.jsonl"), "model m");
  ASSERT_FALSE(bad.has_value());
  EXPECT_NE(bad.error().message().find("line 22"), std::string::npos) << bad.error().message();
  EXPECT_FALSE(EvalSamples::open(at("no/s.jsonl"), "model m").has_value());
}

TEST_F(EvalTest, AStoppedRunSaysSo) {
  const Ask answers = table();
  EvalSamples none;
  options_.concurrency = 1;
  const auto stopped = run(&none, [&](const std::string& request) {
    auto reply = answers(request);
    stop_ = asked_.size() == 4;
    return reply;
  });
  ASSERT_FALSE(stopped.has_value());
  EXPECT_NE(stopped.error().message().find("3 of 20"), std::string::npos)
      << stopped.error().message();
}

TEST_F(EvalTest, PairsAnswersToTheSameQuestions) {
  EvalSamples none;
  const auto a = run(&none, table());
  const auto b = run(&none, [](const std::string& request) -> Result<EvalReply> {
    const auto text = Json::parse(request)["messages"].back()["content"].get<std::string>();
    return EvalReply{.content = text == "1" ? "nothing" : text, .finish_reason = "stop"};
  });
  ASSERT_TRUE(a.has_value() && b.has_value());
  const PairedCounts pairs = pair_samples(*a, *b);
  EXPECT_EQ(pairs.total, 20);
  EXPECT_EQ(pairs.only_a, 2);  // question 1, at two efforts
  EXPECT_EQ(pairs.only_b, 4);  // questions 3 and 8
}

TEST_F(EvalTest, RequestsCarryTheSampling) {
  options_.temperature = 0.5f;
  options_.seed = 40;
  options_.max_tokens = 99;
  const Json body = Json::parse(eval_request(options_, questions_[2], 2, "high"));
  EXPECT_EQ(body["reasoning_effort"], "high");
  EXPECT_EQ(body["temperature"], 0.5);
  EXPECT_EQ(body["seed"], 42);
  EXPECT_EQ(body["max_tokens"], 99);
  options_.temperature = 0;
  EXPECT_FALSE(Json::parse(eval_request(options_, questions_[2], 2, "high")).contains("seed"));
}

}  // namespace
}  // namespace moxie
