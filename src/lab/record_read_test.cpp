// A record is read back as it was; each damage is told with its place.
#include "lab/record_read.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "lab/testing/sample_record.h"

namespace moxie {
namespace {

using Json = nlohmann::json;

std::string fault_of(const std::string& text) {
  const auto record = parse_record(text, "r.json");
  return record ? "none" : record.error().message();
}

// The fault of the sample record after `damage`.
std::string fault_after(const std::function<void(Json&)>& damage) {
  Json json = Json::parse(to_json(sample_record()).dump());
  damage(json);
  return fault_of(json.dump());
}

void expect_in(const std::string& part, const std::string& text) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

TEST(ReadRecord, GivesBackWhatWasWritten) {
  const std::string path = testing::TempDir() + "moxie_read_record.json";
  ASSERT_TRUE(write_record(sample_record(), path).has_value());
  const auto record = read_record(path);
  ASSERT_TRUE(record.has_value()) << record.error().message();
  EXPECT_EQ(to_json(*record), to_json(sample_record()));
  std::filesystem::remove(path);
}

TEST(ReadRecord, KnowsTheRateOfLaunchesOnlyWhereItIsWritten) {
  const auto json = to_json(sample_record());
  EXPECT_FALSE(json["results"][0].contains("limit_launches_s"));
  const auto record = parse_record(json.dump(), "r.json");
  ASSERT_TRUE(record.has_value()) << record.error().message();
  EXPECT_TRUE(record->results[0].limit_launches_s.empty());
  EXPECT_EQ(record->results[1].limit_launches_s, (std::vector<double>{5e5, 4.5e5}));
}

TEST(ReadRecord, KnowsTheEnergyOfATokenOnlyWhereItIsWritten) {
  const auto json = to_json(sample_record());
  EXPECT_FALSE(json["results"][0].contains("joules_per_token"));
  EXPECT_EQ(json["results"][1]["joules_per_token"], 0.75);
  const auto record = parse_record(json.dump(), "r.json");
  ASSERT_TRUE(record.has_value()) << record.error().message();
  EXPECT_FALSE(record->results[0].joules_per_token.has_value());
  EXPECT_EQ(record->results[1].joules_per_token, 0.75);
}

TEST(ReadRecord, FindsItInACommandsDocument) {
  const Json document = {{"tests", {1, 2}},
                         {"record", Json::parse(to_json(sample_record()).dump())}};
  const auto record = parse_record(document.dump(), "bench.json");
  ASSERT_TRUE(record.has_value()) << record.error().message();
  EXPECT_EQ(record->results.size(), 2u);
  Json damaged = document;
  damaged["record"].erase("machine");
  expect_in("/record/machine: is missing", fault_of(damaged.dump()));
}

TEST(ReadRecord, TellsThePlaceOfAFault) {
  using Damage = std::function<void(Json&)>;
  const std::pair<const char*, Damage> kCases[] = {
      {"/kind: is missing", [](Json& j) { j.erase("kind"); }},
      {"/kind: is no kind", [](Json& j) { j["kind"] = "race"; }},
      {"/schema_version: is 3, this program reads 2", [](Json& j) { j["schema_version"] = 3; }},
      {"/schema_version: expected a whole number", [](Json& j) { j["schema_version"] = "2"; }},
      {"/more: is not a key", [](Json& j) { j["more"] = 1; }},
      {"/environment/gpus/0/name: expected a text",
       [](Json& j) { j["environment"]["gpus"][0]["name"] = 3; }},
      {"/environment/load_average: expected three",
       [](Json& j) { j["environment"]["load_average"].push_back(1); }},
      {"/environment/cpu_clock_mhz: expected [before, after]",
       [](Json& j) { j["environment"]["cpu_clock_mhz"] = {1}; }},
      {"/machine/peak/watts: is not a key", [](Json& j) { j["machine"]["peak"]["watts"] = 1; }},
      {"/results/0/samples/2: expected a number",
       [](Json& j) { j["results"][0]["samples"][2] = nullptr; }},
      {"/results/0/median: is not that of the samples",
       [](Json& j) { j["results"][0]["median"] = 12; }},
      {"/results/1/limit_launches_s/1: expected a number",
       [](Json& j) { j["results"][1]["limit_launches_s"][1] = nullptr; }},
      {"/results/1/joules_per_token: expected a number",
       [](Json& j) { j["results"][1]["joules_per_token"] = "0.75"; }},
      {"/results/1/better: must be", [](Json& j) { j["results"][1]["better"] = "more"; }},
      {"/results/1/name: is that of another",
       [](Json& j) { j["results"][1]["name"] = j["results"][0]["name"]; }},
      {"/results/1/workload/n_gen: must be from 0",
       [](Json& j) { j["results"][1]["workload"]["n_gen"] = -1; }},
      {"/kernel_path/0/launches: expected a count",
       [](Json& j) { j["kernel_path"][0]["launches"] = -24; }},
      {"/configuration/--threads/source: must be",
       [](Json& j) { j["configuration"]["--threads"]["source"] = "guess"; }},
      {"/command/arguments/0: expected a text",
       [](Json& j) { j["command"]["arguments"][0] = {1}; }},
      {"/invalid_because: has no reason", [](Json& j) { j["valid"] = false; }},
      {"/details: expected an object", [](Json& j) { j["details"] = "text"; }},
      {"/workload/seed: expected a count", [](Json& j) { j["workload"]["seed"] = 1.5; }},
  };
  for (const auto& [fault, damage] : kCases) expect_in(fault, fault_after(damage));
}

TEST(ReadRecord, RefusesEveryCutText) {
  const std::string text = to_json(sample_record()).dump();
  for (size_t size = 0; size < text.size(); size += 7) {
    expect_in("the text ends within a value", fault_of(text.substr(0, size)));
  }
}

TEST(ReadRecord, RefusesHostileTexts) {
  expect_in("nested deeper than", fault_of(std::string(1 << 20, '[')));
  expect_in("at byte", fault_of("{\"schema_version\": NaN}"));
  expect_in("too large", fault_of("{\"schema_version\": 1e999}"));
  expect_in("there twice", fault_of(R"({"kind": "bench", "kind": "score"})"));
  expect_in("expected an object", fault_of("[1]"));
  expect_in("no JSON", fault_of("\"\xff\""));
  expect_in("at byte", fault_of(std::string("{\0}", 3)));
}

TEST(ReadRecord, RefusesWhatIsNoSmallFile) {
  const std::string path = testing::TempDir() + "moxie_large_record.json";
  std::ofstream(path).put('{');
  std::filesystem::resize_file(path, uint64_t{10} << 30);  // a hole: it takes no room
  const auto large = read_record(path);
  ASSERT_FALSE(large.has_value());
  expect_in("10737418240 bytes", large.error().message());
  std::filesystem::remove(path);
  expect_in("no regular file", read_record("/dev/zero").error().message());
  expect_in("cannot be opened", read_record(path).error().message());
}

}  // namespace
}  // namespace moxie
