// Predictions for GPUs by name: the tables they come from against the records, one prediction by
// hand, and what must hold for every card.
#include "lab/predict.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/testing/paths.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

std::string slurp(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// 71400: "71,400"
std::string with_commas(double number) {
  std::string digits = fmt::format("{:.0f}", number);
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

// The run that a speed is from, in either form of records, with its tests by name.
struct RecordedRun {
  double read_gb_s = 0;
  std::string mxfp4_layers, model;
  std::map<std::string, double> medians;
};
RecordedRun run_of(const Json& record, const std::string& bench) {
  RecordedRun run;
  if (!bench.empty()) {
    const Json& one = record["benches"][bench];
    run = {one["machine"]["read_gb_s"], one["model"]["mxfp4_layers"], one["model"]["name"], {}};
    for (const Json& test : one["tests"]) run.medians[test["name"]] = test["tok_s"]["median"];
    return run;
  }
  run = {record["machine"]["read_gb_s"],
         record["configuration"]["--mxfp4-layers"]["value"],
         record["configuration"]["--model"]["value"],
         {}};
  for (const Json& result : record["results"])
    if (result["unit"] == "tok/s") run.medians[result["name"]] = result["median"];
  return run;
}

TEST(MeasuredSpeeds, AreThoseOfTheRecords) {
  for (const MeasuredSpeed& speed : measured_speeds()) {
    const std::string path = source_dir() + "/docs/" + speed.source->file;
    const std::string text = slurp(path);
    ASSERT_FALSE(text.empty()) << path;
    if (path.ends_with(".md")) {
      EXPECT_NE(text.find(with_commas(speed.tok_s)), std::string::npos)
          << path << " lacks " << with_commas(speed.tok_s);
      continue;
    }
    const RecordedRun run = run_of(Json::parse(text), speed.bench);
    ASSERT_TRUE(run.medians.contains(speed.test)) << path << ' ' << speed.bench << speed.test;
    EXPECT_NEAR(run.medians.at(speed.test), speed.tok_s, 0.051) << path << ' ' << speed.test;
    EXPECT_NEAR(run.read_gb_s / speed.source->read_gb_s, 1, 0.007) << path << ' ' << speed.bench;
    EXPECT_EQ(run.model, fmt::format("synthetic:gpt-oss-{}b", speed.billions)) << speed.bench;
    EXPECT_EQ(run.mxfp4_layers == "all", speed.all_mxfp4) << path << ' ' << speed.bench;
  }
}

TEST(MeasuredSpeeds, NamesOfTestsSayTheirSizes) {
  const SpeedTest prompt = parse_test("pp8192"), decode = parse_test("tg32@d1024@b64");
  EXPECT_EQ(prompt.n_prompt, 8192);
  EXPECT_EQ(prompt.depth, 0);
  EXPECT_EQ(prompt.streams, 1);
  EXPECT_EQ(decode.n_prompt, 0);
  EXPECT_EQ(decode.depth, 1024);
  EXPECT_EQ(decode.streams, 64);
}

TEST(GpuCards, AreFoundByNameAndHaveTheirRows) {
  for (const GpuCard& card : gpu_cards()) EXPECT_EQ(*gpu_card(card.name), &card);
  EXPECT_EQ(*gpu_card("rtx pro 6000"), *gpu_card("RTXPRO6000"));
  EXPECT_EQ((*gpu_card("a100"))->memory_gb, 80);
  EXPECT_EQ((*gpu_card("A100-40GB"))->memory_gb, 40);
  const auto unknown = gpu_card("H300");
  ASSERT_FALSE(unknown.has_value());
  for (const GpuCard& card : gpu_cards())
    EXPECT_NE(unknown.error().message().find(card.name), std::string::npos) << card.name;
  EXPECT_EQ(rows_of(**gpu_card("H200")), GpuRows::kHopper);
  for (const char* name : {"GB10", "RTX5090", "RTXPRO6000", "B200"})
    EXPECT_EQ(rows_of(**gpu_card(name)), GpuRows::kPortable) << name;
  for (const char* name : {"RTX4090", "RTX3090", "A100", "L40S"})
    EXPECT_EQ(rows_of(**gpu_card(name)), GpuRows::kSm80) << name;
}

TEST(GpuCards, ReadNoFasterThanOperandsAreMade) {
  const GpuCard& h200 = **gpu_card("H200");
  EXPECT_DOUBLE_EQ(read_gb_s_of(h200, 0.95), 0.95 * 4800);
  // 148 SMs at 1.97 GHz make operands of 19.3 bytes a clock.
  EXPECT_NEAR(read_gb_s_of(**gpu_card("B200"), 0.95), 148 * 1.97 * 19.3, 1);
}

// A model with its sizes on CUDA.
class Model {
 public:
  explicit Model(const std::string& name, bool all_mxfp4 = true)
      : checkpoint_(std::move(*open_checkpoint(name))),
        layout_(checkpoint_->layout(
            {.mxfp4_layers = {all_mxfp4, all_mxfp4, all_mxfp4}, .device = DeviceKind::kCuda})),
        all_mxfp4_(all_mxfp4) {}
  PredictedModel get() const {
    return {.config = checkpoint_->config(), .layout = layout_, .all_mxfp4 = all_mxfp4_};
  }

 private:
  std::unique_ptr<Checkpoint> checkpoint_;
  ModelWeights layout_;
  bool all_mxfp4_;
};

// One stream of gpt-oss-20b on a GB10, from what an H100 measured.
TEST(Predict, IsWhatOneCanComputeByHand) {
  const Model model("synthetic:gpt-oss-20b");
  const auto found = predict_speed(**gpu_card("GB10"), model.get(), {}, "H200");
  ASSERT_TRUE(found.has_value()) << found.error().message();
  // 20b reads 1.929 GB for a token, 120b 2.764. 120b with portable rows makes 689.9 tok/s, 1,449
  // us, where 2.764 GB take 875 us at 3,157 GB/s: 60.4% of the limit, the least of the four tests.
  // A GB10 that reads 90% of 273 GB/s then takes 13.0 ms.
  const double slowest_us = 1.929e9 / (0.90 * 273e3) * 1449.5 / 875.4;
  EXPECT_NEAR(found->tok_s.low, 1e6 / slowest_us / 1.06, 0.02 * found->tok_s.low);
  // 20b with Hopper's rows makes 1,084 tok/s: 922.5 us, where 1.929 GB take 610.4 us at 3,160 GB/s.
  // The least time beyond the limit, 312 us, is added to the limit at 97% of 273 GB/s.
  // 6% faster would be past the limit itself.
  const double limit_us = 1.929e9 / (0.97 * 273e3);
  const double fastest_us = std::max((limit_us + 922.5 - 610.4) / 1.06, limit_us);
  EXPECT_NEAR(found->tok_s.high, 1e6 / fastest_us, 0.02 * found->tok_s.high);
  EXPECT_EQ(found->num_measured, 4);
  EXPECT_FALSE(found->measured.has_value());
}

TEST(Predict, TakesWhatAPromptsExpertsHave) {
  // 2,048 tokens of 20b give an expert 256, as 8,192 of 120b do.
  const Model model("synthetic:gpt-oss-20b");
  const SpeedTest test{.n_prompt = 2048};
  const auto found = predict_speed(**gpu_card("RTX3090"), model.get(), test);
  ASSERT_TRUE(found.has_value()) << found.error().message();
  EXPECT_EQ(found->num_measured, 3);  // 120b twice, 20b once
  // Products take most of the time: at 0.9 of 71 TFLOPS and 45 to 55% of that.
  const TestLimit limit = limit_of(model.get(), test, 936 * 0.95, 71e3 * 0.9);
  const double share = (limit.cache_us + limit.others_us) / (1e6 * 2048 / found->tok_s.mid);
  EXPECT_GT(share, 0.45);
  EXPECT_LT(share, 0.55);
}

TEST(Predict, OrdersItsIntervalAndGrowsWithTheCard) {
  const Model model("synthetic:gpt-oss-120b");
  for (const GpuCard& card : gpu_cards()) {
    for (const SpeedTest& test :
         {SpeedTest{}, SpeedTest{.depth = 32768}, SpeedTest{.depth = 2048, .streams = 64},
          SpeedTest{.n_prompt = 2048}}) {
      const auto found = predict_speed(card, model.get(), test);
      ASSERT_TRUE(found.has_value()) << found.error().message();
      const Range tok_s = found->tok_s;
      EXPECT_GT(tok_s.low, 0) << card.name;
      EXPECT_LT(tok_s.low, tok_s.mid) << card.name;
      EXPECT_LT(tok_s.mid, tok_s.high) << card.name;
      if (test.n_prompt == 0) {
        const TestLimit limit = limit_of(model.get(), test, card.memory_gb_s, 1e9);
        EXPECT_LT(tok_s.high, 1e6 * test.streams / (limit.cache_us + limit.others_us)) << card.name;
      }
      GpuCard faster = card;
      faster.memory_gb_s *= 1.2, faster.clock_ghz *= 1.2, faster.bf16_tflops *= 1.2;
      const Range more = predict_speed(faster, model.get(), test)->tok_s;
      EXPECT_GT(more.low, tok_s.low) << card.name;
      EXPECT_GT(more.mid, tok_s.mid) << card.name;
      EXPECT_GT(more.high, tok_s.high) << card.name;
    }
  }
}

TEST(Predict, SlowsWithDepthAndWithWiderFormats) {
  const Model all("synthetic:gpt-oss-120b"), checkpoint("synthetic:gpt-oss-120b", false);
  const GpuCard& card = **gpu_card("GB10");
  const auto at = [&](const PredictedModel& model, int32_t depth) {
    return predict_speed(card, model, {.depth = depth})->tok_s.mid;
  };
  EXPECT_GT(at(all.get(), 0), at(all.get(), 8192));
  EXPECT_GT(at(all.get(), 8192), at(all.get(), 32768));
  EXPECT_GT(at(all.get(), 0), at(checkpoint.get(), 0));
  PredictedModel fp8 = all.get();
  fp8.kv_dtype = DType::kF8E4M3;
  EXPECT_GT(at(fp8, 32768), at(all.get(), 32768));
}

TEST(Predict, ShowsWhatTheCardMeasured) {
  const Model model("synthetic:gpt-oss-120b");
  const auto found = predict_speed(**gpu_card("H200"), model.get(), {});
  ASSERT_TRUE(found.has_value() && found->measured.has_value());
  EXPECT_NEAR(*found->measured, (861.8 + 859.0) / 2, 0.1);
}

TEST(Predict, RefusesModelsWhoseRowsWereNotMeasured) {
  const Model model("embedded");
  const auto found = predict_speed(**gpu_card("GB10"), model.get(), {});
  ASSERT_FALSE(found.has_value());
  EXPECT_NE(found.error().message().find("narrower than 1024"), std::string::npos);
}

// A card that is left out is predicted nearly as it measured.
TEST(Predict, FindsMostOfWhatTheOtherCardMeasured) {
  const std::vector<HeldOut> all = held_out_speeds();
  size_t inside = 0;
  for (const HeldOut& held : all) {
    const double measured = held.predicted.measured.value_or(held.speed->tok_s);
    const Range& tok_s = held.predicted.tok_s;
    EXPECT_NEAR(tok_s.mid / measured, 1, 0.25) << held.card->name << ' ' << held.speed->test;
    inside += measured >= tok_s.low && measured <= tok_s.high;
  }
  EXPECT_GE(all.size(), 20u);
  EXPECT_GE(inside, all.size() * 4 / 5);
}

}  // namespace
}  // namespace moxie
