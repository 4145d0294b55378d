// A sample of tokens has the outputs of the whole launch to the bit; peers' figures are checked.
#include "lab/moe_fp8_run.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "lab/moe_fp8_inputs.h"
#include "lab/peer_figures.h"

namespace moxie {
namespace {

TEST(MoeFp8Sample, HasTheOutputsOfTheWholeLaunch) {
  auto runner = MoeFp8Runner::make(make_cpu_device(1), 1);
  ASSERT_TRUE(runner);
  const RandomMoeFp8 random = random_moe_fp8({.num_tokens = 30,
                                              .num_experts = 32,
                                              .num_local_experts = 8,
                                              .hidden = 256,
                                              .intermediate = 128,
                                              .local_expert_offset = 8},
                                             3, runner->pool());
  auto inputs = MoeFp8Inputs::from(random.tensors, "test");
  ASSERT_TRUE(inputs) << inputs.error().message();
  ASSERT_TRUE(runner->run_reference(inputs->params()));
  const std::vector<int32_t> tokens = sample_tokens(30, 6, 1);
  const MoeFp8Inputs some = inputs->only(tokens);
  ASSERT_EQ(some.params().num_tokens, 6);
  ASSERT_TRUE(runner->run_reference(some.params()));
  int num_set = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    for (size_t k = 0; k < 256; ++k) {
      const uint16_t expected = inputs->output_values()[static_cast<size_t>(tokens[i]) * 256 + k];
      ASSERT_EQ(some.output_values()[i * 256 + k], expected) << tokens[i] << ", " << k;
      num_set += (expected & 0x7FFF) != 0;
    }
  }
  EXPECT_GT(num_set, 256);  // more than one of the tokens has a local expert
}

TEST(MoeFp8Sample, IsDrawnFromTheSeedInOrder) {
  const auto tokens = sample_tokens(1000, 100, 1);
  ASSERT_EQ(tokens.size(), 100u);
  EXPECT_TRUE(std::is_sorted(tokens.begin(), tokens.end()));
  EXPECT_EQ(std::adjacent_find(tokens.begin(), tokens.end()), tokens.end());
  EXPECT_GT(tokens.back(), 500);
  EXPECT_EQ(tokens, sample_tokens(1000, 100, 1));
  EXPECT_NE(tokens, sample_tokens(1000, 100, 2));
  EXPECT_EQ(sample_tokens(3, 5, 1), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_TRUE(sample_tokens(0, 5, 1).empty());
}

TEST(PeerFigures, AreReadAndFaultsAreNamed) {
  const auto peers = parse_peer_figures(
      R"({"device": "a GPU", "results": [{"name": "x", "tokens": 7, "median_us": 1.5}]})", "f");
  ASSERT_TRUE(peers) << peers.error().message();
  EXPECT_EQ(peers->device, "a GPU");
  ASSERT_EQ(peers->figures.size(), 1u);
  EXPECT_EQ(peers->figures[0].name, "x");
  EXPECT_EQ(peers->figures[0].tokens, 7);
  EXPECT_EQ(peers->figures[0].median_us, 1.5);
  const auto of = [](const std::string& result) {
    return R"({"device": "a GPU", "results": [)" + result + "]}";
  };
  const std::pair<std::string, std::string> cases[] = {
      {"[", "f: is not a JSON object"},
      {R"({"device": "a GPU"})", "f: results: is missing"},
      {R"({"device": 3, "results": []})", "f: device: is not a string"},
      {R"({"device": "a GPU", "results": [], "shape": 1})", "f: shape: no such key"},
      {of("3"), "f: results[0]: is not a JSON object"},
      {of(R"({"name": "x", "tokens": 7})"), "f: results[0]: median_us: is missing"},
      {of(R"({"name": "x", "tokens": -7, "median_us": 1})"), "f: results[0]: tokens: is -7"},
      {of(R"({"name": "x", "tokens": 1.5, "median_us": 1})"), "f: results[0]: tokens: is 1.5"},
      {of(R"({"name": "x", "tokens": 7, "median_us": 0})"), "f: results[0]: median_us: is 0"}};
  for (const auto& [text, says] : cases) {
    const auto bad = parse_peer_figures(text, "f");
    ASSERT_FALSE(bad) << text;
    EXPECT_NE(bad.error().message().find(says), std::string::npos) << bad.error().message();
  }
}

}  // namespace
}  // namespace moxie
