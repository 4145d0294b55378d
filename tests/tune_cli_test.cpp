// `moxie tune` and what follows from its file, as people run it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/child_process.h"

namespace moxie {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class TuneCliTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() /
              ("moxie_tune_" + std::string(info->name()) + "_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  // With a cache folder of its own.
  ProcessResult moxie(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), MOXIE_BINARY);
    arguments.insert(arguments.end(), {"--device", "cpu", "--threads", "1"});
    return run_process(arguments, "", {"XDG_CACHE_HOME=" + folder_.string()}, 300);
  }
  Json json(std::vector<std::string> arguments) const {
    arguments.emplace_back("--json");
    const ProcessResult result = moxie(std::move(arguments));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    Json document = Json::parse(result.out, nullptr, false);
    EXPECT_FALSE(document.is_discarded()) << result.out;
    return document;
  }
  Json tune() const {
    return json({"tune", "-b", "1,2", "-p", "16", "-r", "3", "-d", "16", "--kv-dtype", "f32"});
  }
  Json plan(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"kernels", "--plan", "-n", "1,16", "--kv-dtype", "f32"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return json(arguments);
  }
  std::string file() const { return (folder_ / "moxie" / "tuning.json").string(); }
  fs::path folder_;
};

// The rows of a plan.
Json rows_of(const Json& plan) {
  Json names = Json::array();
  for (const Json& row : plan["rows"]) names.push_back(row["name"]);
  return names;
}

TEST_F(TuneCliTest, PlansFollowTheFileAndSaySo) {
  const Json before = plan();
  EXPECT_EQ(before["tuning"], "none in " + file());
  const Json tuned = tune();
  EXPECT_EQ(tuned["file"], file());
  ASSERT_EQ(tuned["launches"].size(), 3u);
  for (const Json& launch : tuned["launches"]) {
    for (const Json& row : launch["rows"]) {
      EXPECT_EQ(row["samples_us"].size(), 3u);
      EXPECT_GT(row["measured_us"], 0);
    }
  }
  const Json after = plan();
  EXPECT_EQ(after["tuning"].get<std::string>().rfind("used, ", 0), 0u) << after["tuning"];
  for (const Json& one : after["plans"]) EXPECT_TRUE(one["tuned"]);
  // The rows of layers are those that tune chose.
  for (const Json& row : after["plans"][0]["rows"]) {
    bool is_chosen = false;
    for (const Json& timed : tuned["launches"][0]["rows"])
      is_chosen = is_chosen || (timed["name"] == row["name"] && timed["chosen"]);
    EXPECT_TRUE(is_chosen) << row["name"];
  }
  const Json off = plan({"--tuning", "off"});
  EXPECT_EQ(off["tuning"], "off");
  ASSERT_EQ(off["plans"].size(), before["plans"].size());
  for (size_t i = 0; i < off["plans"].size(); ++i) {
    EXPECT_EQ(rows_of(off["plans"][i]), rows_of(before["plans"][i]));
    EXPECT_FALSE(off["plans"][i]["tuned"]);
  }
}

TEST_F(TuneCliTest, ATuningThatDoesNotFitIsNotUsedAndDoctorSaysWhy) {
  tune();
  std::ifstream in(file());
  Json document = Json::parse(in);
  in.close();
  document["tunings"][0]["key"]["commit"] = "another";
  std::ofstream(file()) << document;
  EXPECT_NE(plan()["tuning"].get<std::string>().find("its commit is 'another'"), std::string::npos);
  const ProcessResult doctor = moxie({"doctor", "--kv-dtype", "f32"});
  EXPECT_NE(doctor.out.find("its commit is 'another'"), std::string::npos) << doctor.out;
  EXPECT_NE(doctor.out.find("moxie tune --model embedded"), std::string::npos) << doctor.out;
}

TEST_F(TuneCliTest, ABrokenFileIsAWarning) {
  fs::create_directories(folder_ / "moxie");
  std::ofstream(file()) << R"({"form":"moxie tuning 1","tunings":[{"key":4}]})";
  const ProcessResult shown = moxie({"kernels", "--plan", "-n", "1", "--json"});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_NE(shown.err.find("/tunings/0/key: expected an object"), std::string::npos) << shown.err;
  const ProcessResult named = moxie({"kernels", "--plan", "--tuning", file() + ".none"});
  EXPECT_EQ(named.exit_code, 1);
  EXPECT_NE(named.err.find("no such file"), std::string::npos) << named.err;
}

TEST_F(TuneCliTest, AnswersAreTheSameBitsWithTuningOff) {
  const std::vector<std::string> ids = {"score",   "--ids", "1,2,3,4,5,6,7,8", "--kv-dtype", "f32",
                                        "--chunk", "16",    "--tuning",        "off"};
  const Json before = json(ids);
  tune();
  EXPECT_EQ(json(ids)["nll"], before["nll"]);
}

TEST_F(TuneCliTest, ARecordHasEachLaunchOnceAndLessTimeIsBetter) {
  const std::string path = (folder_ / "tune.json").string();
  const Json tuned = json(
      {"tune", "-b", "1,1", "-p", "16,17", "-r", "3", "-d", "16", "--dry-run", "--record", path});
  ASSERT_EQ(tuned["launches"].size(), 2u) << "16 and 17 tokens are of one bracket";
  std::ifstream file(path);
  const Json record = Json::parse(file);
  EXPECT_FALSE(record["results"].empty());
  for (const Json& series : record["results"]) EXPECT_EQ(series["better"], "lower") << series;
  const ProcessResult same =
      run_process({MOXIE_BINARY, "bench", "compare", path, path}, "", {}, 60);
  EXPECT_EQ(same.exit_code, 0) << same.err;
}

TEST_F(TuneCliTest, UsageFaults) {
  EXPECT_EQ(moxie({"tune", "--tuning", "off"}).exit_code, 2);
  EXPECT_EQ(moxie({"tune", "--filter", "outt"}).exit_code, 2);
  EXPECT_EQ(moxie({"tune", "-b", "0", "-p", "0"}).exit_code, 2);
  EXPECT_EQ(moxie({"tune", "--batch-invariant", "on"}).exit_code, 2);
}

}  // namespace
}  // namespace moxie
