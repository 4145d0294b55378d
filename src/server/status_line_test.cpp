// What only reports must have something to say of every model, device and number of streams.
#include "server/status_line.h"

#include <gtest/gtest.h>

#include <string>

#include "model/checkpoint.h"

namespace moxie {
namespace {

ServiceStats after_steps(int64_t num_steps, int32_t streams) {
  ServiceStats stats;
  stats.running = streams;
  stats.num_steps = num_steps;
  stats.generation_tokens = num_steps * streams;
  stats.full_pages = 1000;
  stats.full_pages_used = streams;
  return stats;
}

TEST(StatusLineTest, ComesWithAShareForEveryDevicesPackedWeights) {
  for (const char* name : {"synthetic:gpt-oss-120b", "synthetic:gpt-oss-20b", "embedded"}) {
    const auto checkpoint = open_checkpoint(name);
    ASSERT_TRUE(checkpoint.has_value()) << name;
    for (const DeviceKind device : {DeviceKind::kCpu, DeviceKind::kCuda}) {
      for (const bool all : {false, true}) {
        const Mxfp4Layers layers{.qkv = all, .o = all, .lm_head = all};
        const ModelWeights formats =
            (*checkpoint)->layout({.mxfp4_layers = layers, .device = device});
        const StatusModel model{(*checkpoint)->config(), formats, DType::kBF16};
        double last = 0;  // more streams read more experts
        for (int32_t streams = 1; streams <= 300; ++streams) {
          const std::string line =
              status_line(model, {}, after_steps(1000, streams), 5, /*read_gb_s=*/4000);
          ASSERT_TRUE(line.starts_with("running " + std::to_string(streams) + ", waiting 0, "))
              << line;
          const size_t percent = line.find("% of the memory's limit");
          ASSERT_NE(percent, line.npos) << line;
          const std::string share = line.substr(line.rfind(' ', percent) + 1, percent);
          // The embedded model's bytes are less than half a percent of this memory.
          if (std::string(name) != "embedded") {
            ASSERT_GT(std::stod(share), 0) << line;
          }
          ASSERT_GE(std::stod(share), last) << line;
          last = std::stod(share);
        }
      }
    }
  }
}

TEST(StatusLineTest, TheShareIsTheLeastBytesOfTheStepsOverWhatMemoryReads) {
  const auto checkpoint = open_checkpoint("synthetic:gpt-oss-120b");
  const ModelWeights formats = (*checkpoint)->layout({.device = DeviceKind::kCuda});
  const StatusModel model{(*checkpoint)->config(), formats, DType::kBF16};
  // 5.00 GB a token of one stream: 500 tokens in 5 s are 500 GB/s, a quarter of 2,000.
  const std::string line = status_line(model, {}, after_steps(500, 1), 5, 2000);
  EXPECT_NE(line.find(", 100.0 tok/s, KV 0.1%, 25% of the memory's limit"), line.npos) << line;
}

TEST(StatusLineTest, TheShareIsUnknownWithoutABandwidthATimeOrALaunch) {
  const auto checkpoint = open_checkpoint("synthetic:gpt-oss-120b");
  const ModelWeights formats = (*checkpoint)->layout({.device = DeviceKind::kCuda});
  const StatusModel model{(*checkpoint)->config(), formats, DType::kBF16};
  const auto share = memory_share(model, {}, after_steps(500, 1), 5, 2000);
  ASSERT_TRUE(share.has_value());
  EXPECT_NEAR(*share, 0.25, 0.005);
  EXPECT_FALSE(memory_share(model, {}, after_steps(500, 1), 5, 0).has_value());
  EXPECT_FALSE(memory_share(model, {}, after_steps(500, 1), 0, 2000).has_value());
  EXPECT_FALSE(memory_share(model, after_steps(500, 1), after_steps(500, 1), 5, 2000).has_value());
}

TEST(StatusLineTest, DraftsComeWithWhatWasAcceptedSinceTheLineBefore) {
  const auto checkpoint = open_checkpoint("embedded");
  const ModelWeights formats = (*checkpoint)->layout({});
  const StatusModel model{(*checkpoint)->config(), formats, DType::kF32};
  const ServiceStats before = after_steps(500, 1);
  ServiceStats now = after_steps(600, 1);
  now.drafts.num_positions = 2;
  EXPECT_EQ(status_line(model, before, now, 5, 0).find("draft"), std::string::npos);
  for (int i = 0; i < 4; ++i) {
    now.drafts.add_launch(2);
    if (i < 3) now.drafts.add_accepted(0);
    if (i < 1) now.drafts.add_accepted(1);
  }
  const std::string line = status_line(model, before, now, 5, 0);
  EXPECT_NE(line.find(", 2.00 tokens a draft, accepted 75%, 25% by position of 4 drafts"),
            std::string::npos)
      << line;
  ServiceStats later = now;
  later.generation_tokens += 10;
  ++later.num_steps;
  EXPECT_EQ(status_line(model, now, later, 5, 0).find("draft"), std::string::npos);
}

TEST(StatusLineTest, SaysUnknownWhereTheBandwidthIsAndNothingWhenIdle) {
  const auto checkpoint = open_checkpoint("embedded");
  const ModelWeights formats = (*checkpoint)->layout({});
  const StatusModel model{(*checkpoint)->config(), formats, DType::kF32};
  const std::string line = status_line(model, {}, after_steps(500, 1), 5, 0);
  EXPECT_NE(line.find("limit unknown"), line.npos) << line;
  EXPECT_EQ(status_line(model, after_steps(500, 0), after_steps(500, 0), 5, 100), "");
  EXPECT_EQ(status_line(model, {}, after_steps(500, 1), 0, 100), "");
  ServiceStats waiting;
  waiting.waiting = 3;
  EXPECT_EQ(status_line(model, {}, waiting, 5, 100), "running 0, waiting 3, 0.0 tok/s, KV 0.0%");
}

}  // namespace
}  // namespace moxie
