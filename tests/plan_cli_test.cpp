// What `moxie plan` predicts: memory, held to the peak that is seen, and speeds on GPUs by name.
#include <map>

#include "cli.h"

namespace moxie {
namespace {

TEST_F(CliTest, ADepthLiesWithinTheModelsPositions) {
  EXPECT_EQ(moxie({"plan", "--depth", "4095"}).exit_code, 0);
  const auto refused = moxie({"plan", "--depth", "1000000"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("--depth 1000000: the model has "), std::string::npos) << refused.err;
}

TEST_F(CliTest, GpusDocumentIsWhatIsPrinted) {
  const auto printed = moxie({"plan", "--markdown"});
  EXPECT_EQ(printed.exit_code, 0);
  EXPECT_TRUE(printed.out == slurp(source_dir() + "/docs/gpus.md"))
      << "docs/gpus.md is stale; write it anew: moxie plan --markdown";
}

TEST_F(CliTest, PlansForAGpuByName) {
  const Json plan = json_of(moxie({"plan", "--gpu", "gb10", "--model", "synthetic:gpt-oss-120b",
                                   "--mxfp4-layers", "all", "--json"}));
  EXPECT_EQ(plan["device"], "GB10");
  EXPECT_NEAR(plan["tok_s_limit"].get<double>(), 99, 1);  // 273 GB/s over the bytes of a token
  const Json& speeds = plan["speeds"];
  EXPECT_EQ(speeds["status"], "predicted, never run on this card");
  EXPECT_EQ(speeds["card"]["sms"], 48);
  ASSERT_EQ(speeds["decode"].size(), 15u);
  ASSERT_EQ(speeds["prefill"].size(), 2u);
  for (const Json& cell : speeds["decode"]) {
    // 64 streams of 131,072 tokens need 300 GB of cache.
    const bool fits = cell["streams"] < 64 || cell["depth"] < 32768;
    EXPECT_EQ(cell["fits"], fits) << cell;
    EXPECT_EQ(cell["tok_s"].is_null(), !fits) << cell;
  }
  EXPECT_LT(speeds["decode"][0]["tok_s"]["low"], speeds["decode"][0]["tok_s"]["high"]);
  EXPECT_FALSE(speeds["tiles"].empty());
  EXPECT_FALSE(speeds["published"].empty());
  const auto table = moxie({"plan", "--gpu", "H200", "--model", "synthetic:gpt-oss-20b"});
  EXPECT_NE(table.out.find("(measured "), std::string::npos) << table.out;
  const auto narrow = moxie({"plan", "--gpu", "RTX3090"});
  EXPECT_EQ(narrow.exit_code, 0);
  EXPECT_NE(narrow.out.find("not predicted"), std::string::npos) << narrow.out;
  const auto unknown = moxie({"plan", "--gpu", "H300"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_NE(unknown.err.find("GB10, RTX5090"), std::string::npos) << unknown.err;
}

// The head and the rows that it takes: half of 4,096 x 256 in BF16.
TEST_F(CliTest, PlansTheFirstRankWhereItHasADraftHead) {
  const auto parts_of = [&](const std::vector<std::string>& more) {
    std::vector<std::string> command = {"plan", "--json", "--tensor-parallel-size", "2"};
    command.insert(command.end(), more.begin(), more.end());
    std::map<std::string, uint64_t> parts;
    const Json plan = json_of(moxie(command));
    for (const Json& part : plan["parts"]) parts[part["name"]] = part["bytes"];
    return parts;
  };
  auto plain = parts_of({}), drafted = parts_of({"--spec", "eagle3"});
  EXPECT_EQ(drafted["weights"] - plain["weights"], 2048u * 256 * 2);
  EXPECT_GT(drafted["draft head"], 0u);
  const auto table = moxie({"plan", "--tensor-parallel-size", "2", "--spec", "eagle3"});
  EXPECT_NE(table.out.find("the first of 2 ranks, which has the draft head"), std::string::npos)
      << table.out;
}

TEST_F(CliTest, AModelLargerThanMemoryIsRefusedBeforeLoading) {
  // 120b takes some 62 GiB: where that much is free, there is nothing to refuse.
  const Json plan = json_of(moxie({"plan", "--model", "synthetic:gpt-oss-120b", "--json"}));
  EXPECT_GT(plan["total_bytes"].get<double>(), 60e9);
  if (plan["fits"].get<bool>()) GTEST_SKIP() << "it fits here";
  const auto result = moxie({"bench", "--model", "synthetic:gpt-oss-120b", "-p", "0", "-n", "1"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("gpt-oss-20b"), std::string::npos) << result.err;
  EXPECT_LT(result.peak_bytes, uint64_t{1} << 30);
}

// A sanitizer's or an emulator's own memory is no part of the plan: these two are left to the other
// builds.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(MOXIE_EMULATED)
TEST_F(CliTest, PlanIsWithinFivePercentOfThePeakSeen) {
  // Large enough that the program itself is a small part: some 700 MiB of weights.
  Json config = Json::parse(slurp(kNano + "/config.json"));
  config["hidden_size"] = 1024;
  config["intermediate_size"] = 1024;
  config["num_local_experts"] = 64;
  config["num_hidden_layers"] = 4;
  config["vocab_size"] = 32768;
  config["num_attention_heads"] = 16;
  config["sliding_window"] = 128;
  write("config.json", config.dump());
  const std::string model = "synthetic:" + at("config.json");
  Json ids = Json::array();
  for (int i = 0; i < 600; ++i) ids.push_back(i * 37 % 32768);
  write("ids.json", Json::array({ids}).dump());
  for (const std::string kv : {"bf16", "f32"}) {
    const Json plan = json_of(
        moxie({"plan", "--model", model, "--json", "--max-model-len", "4096", "--kv-dtype", kv}));
    const auto run = moxie({"score", "--model", model, "--ids-file", at("ids.json"),
                            "--max-model-len", "4096", "--kv-dtype", kv, "--chunk", "512"});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    // Scoring keeps a row of logits for each token of a launch, where a plan counts one.
    const double predicted = plan["total_bytes"].get<double>() + 511.0 * 32768 * 4;
    EXPECT_NEAR(static_cast<double>(run.peak_bytes) / predicted, 1.0, 0.05) << plan.dump(1);
  }
}

TEST_F(CliTest, PlanOfTheEmbeddedModelIsWithinFivePercentOfThePeakSeen) {
  // The cache is taken as it is written, so that all of the context must be.
  for (const int context : {4096, 12288}) {
    const std::string len = std::to_string(context);
    const Json plan = json_of(moxie({"plan", "--json", "--max-model-len", len}));
    Json ids = Json::array();
    for (int i = 0; i < context; ++i) ids.push_back(i * 37 % 4000);
    write("ids.json", Json::array({ids}).dump());
    constexpr int kChunk = 256;
    const auto run = moxie({"score", "--ids-file", at("ids.json"), "--max-model-len", len,
                            "--chunk", std::to_string(kChunk)});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    // As above: rows of logits that a plan does not count.
    const double predicted = plan["total_bytes"].get<double>() + (kChunk - 1.0) * 4096 * 4;
    EXPECT_NEAR(static_cast<double>(run.peak_bytes) / predicted, 1.0, 0.05) << plan.dump(1);
    // With little of it written, it takes less.
    const auto little = moxie({"run", "What is 3 + 4?", "--max-model-len", len});
    ASSERT_EQ(little.exit_code, 0) << little.err;
    EXPECT_LT(little.peak_bytes, run.peak_bytes);
  }
}
#endif

}  // namespace
}  // namespace moxie
