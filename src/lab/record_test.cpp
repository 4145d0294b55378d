// A record says where its numbers come from, survives a round trip and never half-exists.
#include "lab/record.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <vector>

namespace moxie {
namespace {

TEST(CollectEnvironment, KnowsBuildAndMachine) {
  const Environment environment = collect_environment();
  EXPECT_TRUE(std::regex_match(environment.commit, std::regex("[0-9a-f]{40}|unknown")))
      << environment.commit;
  EXPECT_TRUE(std::regex_match(environment.hostname_hash, std::regex("[0-9a-f]{16}")));
  EXPECT_TRUE(
      std::regex_match(environment.time_utc, std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)")));
  EXPECT_FALSE(environment.compiler.empty());
  EXPECT_FALSE(environment.kernel.empty());
  EXPECT_FALSE(environment.governor.empty());
  EXPECT_GE(environment.num_cores, 1);
  EXPECT_GT(environment.memory_bytes, 0u);
}

TEST(CollectEnvironment, DoesNotNameTheHost) {
  char name[256] = {};
  ASSERT_EQ(::gethostname(name, sizeof name - 1), 0);
  EXPECT_NE(collect_environment().hostname_hash, name);
}

TEST(PeakMemory, GrowsWithWhatIsTouched) {
  const uint64_t before = peak_memory_bytes();
  constexpr uint64_t kMore = uint64_t{64} << 20;
  std::vector<char> touched(before + kMore);  // above the peak so far, whatever that was
  for (size_t i = 0; i < touched.size(); i += 4096) touched[i] = 1;
  EXPECT_GE(peak_memory_bytes(), before + kMore);
}

Record sample_record() {
  Record record;
  record.configuration = {{"kv-dtype", "bf16", "default"}, {"threads", "2", "flag"}};
  record.weights = {.model = "embedded", .hash = "", .formats = {"mxfp4", "bf16"}, .bytes = 77};
  record.workload.num_output_tokens = 32;
  record.kernel_path = {{"experts", "experts_reference", 24}};
  record.results = {{.name = "tg32", .unit = "tok/s", .samples = {10, 12, 11}}};
  return record;
}

TEST(Record, JsonKeepsSamplesAndSummary) {
  const auto json = to_json(sample_record());
  EXPECT_EQ(json["results"][0]["samples"], nlohmann::json({10, 12, 11}));
  EXPECT_EQ(json["results"][0]["median"], 11);
  EXPECT_EQ(json["configuration"]["threads"]["source"], "flag");
  EXPECT_EQ(json["kernel_path"][0]["launches"], 24);
  EXPECT_TRUE(json["energy_joules"].is_null());
  EXPECT_TRUE(json["weights"]["hash"].is_null());
}

TEST(Record, SaysWhatIsBetterAndWhatMadeIt) {
  Record record = sample_record();
  record.kind = "op bench";
  record.command = {"op bench", {"moe_fp8_block_scale", "--tokens=7"}};
  record.results[0].better = Better::kLower;
  record.results[0].workload = Workload{.num_output_tokens = 7};
  record.valid = false;
  record.invalid_because = {"another row ran"};
  record.details = R"({"noise": [1, 2]})";
  const auto json = to_json(record);
  EXPECT_EQ(json["schema_version"], kRecordVersion);
  EXPECT_EQ(json["command"]["arguments"][1], "--tokens=7");
  EXPECT_EQ(json["results"][0]["better"], "lower");
  EXPECT_EQ(json["results"][0]["workload"]["n_gen"], 7);
  EXPECT_EQ(json["valid"], false);
  EXPECT_EQ(json["details"]["noise"][1], 2);
}

TEST(Record, IsWrittenWholeAndReadBack) {
  const std::string path = testing::TempDir() + "moxie_record.json";
  Record record = sample_record();
  record.weights.model = "broken \xff name";
  ASSERT_TRUE(write_record(record, path).has_value());
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, false);
  ASSERT_FALSE(json.is_discarded());
  EXPECT_EQ(json["workload"]["n_gen"], 32);
  std::filesystem::remove(path);
}

TEST(Record, RefusesAFolderThatIsNotThere) {
  const std::string path = testing::TempDir() + "no/such/folder/record.json";
  const Status status = write_record(sample_record(), path);
  ASSERT_FALSE(status.has_value());
  EXPECT_NE(status.error().message().find(path), std::string::npos);
}

}  // namespace
}  // namespace moxie
