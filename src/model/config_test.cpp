// Configurations in all forms, their faults, and YaRN against the published values.
#include "model/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace moxie {
namespace {

nlohmann::json full_json() {
  return {{"model_type", "gpt_oss"},
          {"num_hidden_layers", 36},
          {"num_local_experts", 128},
          {"experts_per_token", 4},
          {"num_experts_per_tok", 4},
          {"hidden_size", 2880},
          {"intermediate_size", 2880},
          {"num_attention_heads", 64},
          {"num_key_value_heads", 8},
          {"head_dim", 64},
          {"sliding_window", 128},
          {"max_position_embeddings", 131072},
          {"initial_context_length", 4096},
          {"rope_theta", 150000},
          {"rope_scaling",
           {{"rope_type", "yarn"},
            {"factor", 32.0},
            {"original_max_position_embeddings", 4096},
            {"beta_fast", 32.0},
            {"beta_slow", 1.0},
            {"truncate", false}}},
          {"rms_norm_eps", 1e-5},
          {"swiglu_limit", 7.0},
          {"vocab_size", 201088},
          {"eos_token_id", 200002},
          {"pad_token_id", 199999}};
}

GptOssConfig parsed(const nlohmann::json& json) {
  Result<GptOssConfig> config = parse_config_json(json.dump(), "config.json");
  EXPECT_TRUE(config) << config.error().message();
  return config ? *config : GptOssConfig{};
}

std::string error_of(const std::string& text) {
  const Result<GptOssConfig> config = parse_config_json(text, "config.json");
  return config ? "no error" : config.error().message();
}

TEST(Config, ReadsThePublishedForm) {
  const GptOssConfig config = parsed(full_json());
  EXPECT_EQ(config.num_layers, 36);
  EXPECT_EQ(config.num_experts, 128);
  EXPECT_EQ(config.qkv_width(), 5120);
  EXPECT_EQ(config.num_window_layers(), 18);
  EXPECT_EQ(config.is_window[0], 1);
  EXPECT_EQ(config.is_window[1], 0);
  EXPECT_EQ(config.rope_factor, 32.0);
  EXPECT_FALSE(config.rope_truncate);
  EXPECT_EQ(config.swiglu_alpha, 1.702f);
  EXPECT_EQ(config.eos_id, 200002);
  EXPECT_TRUE(config.faults().empty());
}

TEST(Config, ReadsTheNewerRopeForm) {
  nlohmann::json json = full_json();
  nlohmann::json rope = json["rope_scaling"];
  rope["rope_theta"] = 250000;
  rope["factor"] = 16;
  json["rope_parameters"] = rope;
  json.erase("rope_scaling");
  json.erase("rope_theta");
  const GptOssConfig config = parsed(json);
  EXPECT_EQ(config.rope_theta, 250000.0);
  EXPECT_EQ(config.rope_factor, 16.0);
  EXPECT_FALSE(config.rope_truncate);
}

TEST(Config, TruncatesWhereTheFileSaysNothing) {
  nlohmann::json json = full_json();
  json["rope_scaling"].erase("truncate");
  EXPECT_TRUE(parsed(json).rope_truncate);
}

TEST(Config, ReadsTheOriginalForm) {
  const GptOssConfig config = parsed({{"num_hidden_layers", 24},
                                      {"num_experts", 32},
                                      {"experts_per_token", 4},
                                      {"vocab_size", 201088},
                                      {"hidden_size", 2880},
                                      {"intermediate_size", 2880},
                                      {"swiglu_limit", 7.0},
                                      {"head_dim", 64},
                                      {"num_attention_heads", 64},
                                      {"num_key_value_heads", 8},
                                      {"sliding_window", 128},
                                      {"initial_context_length", 4096},
                                      {"rope_theta", 150000.0},
                                      {"rope_scaling_factor", 32.0},
                                      {"rope_ntk_alpha", 1.0},
                                      {"rope_ntk_beta", 32.0}});
  EXPECT_EQ(config.num_experts, 32);
  EXPECT_EQ(config.num_full_layers(), 12);
  EXPECT_EQ(config.max_positions, 131072);
  EXPECT_EQ(config.rope_beta_fast, 32.0);
  EXPECT_EQ(config.rope_beta_slow, 1.0);
  EXPECT_FALSE(config.rope_truncate);
  EXPECT_TRUE(config.faults().empty());
}

TEST(Config, ObeysLayerTypes) {
  nlohmann::json json = full_json();
  json["num_hidden_layers"] = 3;
  json["layer_types"] = {"full_attention", "full_attention", "sliding_attention"};
  EXPECT_EQ(parsed(json).is_window, (std::vector<uint8_t>{0, 0, 1}));
  json["layer_types"] = {"full_attention"};
  EXPECT_EQ(parsed(json).faults(),
            std::vector<std::string>{"layer_types: found 1 entries, expected 3"});
}

TEST(Config, WritesWhatItReads) {
  nlohmann::json json = full_json();
  json["sliding_window"] = 77;
  json["swiglu_limit"] = 6.5;
  const GptOssConfig config = parsed(json);
  const GptOssConfig again = parsed(nlohmann::json::parse(config_json(config)));
  EXPECT_EQ(config_json(again), config_json(config));
  EXPECT_EQ(again.sliding_window, 77);
  EXPECT_EQ(again.swiglu_limit, 6.5f);
  EXPECT_EQ(again.rms_eps, 1e-5f);
}

TEST(Config, NamesEveryBadFieldAtOnce) {
  nlohmann::json json = full_json();
  json["hidden_size"] = "wide";
  json["num_attention_heads"] = 6.5;
  json["vocab_size"] = 1e18;
  json.erase("num_local_experts");
  const std::string error = error_of(json.dump());
  EXPECT_NE(error.find("hidden_size: found \"wide\", expected a whole number"), std::string::npos);
  EXPECT_NE(error.find("num_attention_heads: found 6.5"), std::string::npos) << error;
  EXPECT_NE(error.find("vocab_size: found 1e+18"), std::string::npos) << error;
  EXPECT_NE(error.find("num_local_experts: found nothing"), std::string::npos) << error;
}

TEST(Config, RefusesWhatItCannotServe) {
  EXPECT_NE(error_of("{"), "no error");
  EXPECT_NE(error_of("[]"), "no error");
  EXPECT_NE(error_of(std::string(100000, '[')), "no error");
  nlohmann::json json = full_json();
  json["model_type"] = "llama";
  EXPECT_NE(error_of(json.dump()).find("model_type: found \"llama\""), std::string::npos);
  json = full_json();
  json["rope_scaling"]["rope_type"] = "longrope";
  EXPECT_NE(error_of(json.dump()).find("rope_type: found \"longrope\""), std::string::npos);
  json = full_json();
  json["layer_types"] = {"chunked_attention"};
  EXPECT_NE(error_of(json.dump()).find("layer_types[0]: found \"chunked"), std::string::npos);
  json = full_json();
  json["hidden_act"] = "gelu";
  json["tie_word_embeddings"] = true;
  const std::string error = error_of(json.dump());
  EXPECT_NE(error.find("hidden_act: found \"gelu\", expected \"silu\""), std::string::npos)
      << error;
  EXPECT_NE(error.find("tie_word_embeddings: found true"), std::string::npos) << error;
  json["hidden_act"] = "silu";
  json["tie_word_embeddings"] = false;
  EXPECT_EQ(error_of(json.dump()), "no error");
}

TEST(Config, ListsAbsurdValues) {
  GptOssConfig config = parsed(full_json());
  config.hidden = 2881;
  config.num_experts = 2;
  config.num_kv_heads = 7;
  config.vocab = -1;
  config.rope_theta = std::nan("");
  const std::vector<std::string> faults = config.faults();
  const auto has = [&](const std::string& text) {
    for (const std::string& fault : faults)
      if (fault.find(text) != std::string::npos) return true;
    return false;
  };
  EXPECT_TRUE(has("hidden_size: found 2881, expected a multiple of 32"));
  EXPECT_TRUE(has("num_experts_per_tok: found 4, expected at most 2 experts"));
  EXPECT_TRUE(has("num_attention_heads: found 64, expected a multiple of 7"));
  EXPECT_TRUE(has("vocab_size: found -1"));
  EXPECT_TRUE(has("rope_theta: found nan"));
}

TEST(Yarn, GivesThePublishedFrequencies) {
  const double expected[32] = {
      1.0000000000e+00, 6.8904430589e-01, 4.7478205548e-01, 3.2714587186e-01, 2.2541800020e-01,
      1.5532298948e-01, 1.0702442148e-01, 7.3744568210e-02, 5.0813274815e-02, 3.1705696185e-02,
      1.9335001127e-02, 1.1592049256e-02, 6.7949594897e-03, 3.8603593172e-03, 2.0937923790e-03,
      1.0526021014e-03, 4.5648391922e-04, 1.2931870125e-04, 3.8308812374e-05, 2.6396469031e-05,
      1.8188336682e-05, 1.2532569824e-05, 8.6354958754e-06, 5.9502392615e-06, 4.0999784818e-06,
      2.8250668272e-06, 1.9465962110e-06, 1.3412910351e-06, 9.2420895024e-07, 6.3682091462e-07,
      4.3879782509e-07, 3.0235114281e-07};
  const GptOssConfig config = parsed(full_json());
  const YarnFrequencies yarn = yarn_frequencies(config);
  ASSERT_EQ(yarn.inverse.size(), 32u);
  for (size_t i = 0; i < 32; ++i) EXPECT_NEAR(yarn.inverse[i] / expected[i], 1.0, 1e-9) << i;
  EXPECT_NEAR(yarn.concentration, 1.3465735902799727, 1e-15);
}

TEST(Yarn, TruncationMovesTheFrequenciesBetween) {
  GptOssConfig config = parsed(full_json());
  const YarnFrequencies plain = yarn_frequencies(config);
  config.rope_truncate = true;
  const YarnFrequencies truncated = yarn_frequencies(config);
  // Published ratios of the truncating implementations, i = 9..17.
  const double ratios[9] = {.9973, 1.0060, 1.0173, 1.0325, 1.0542, 1.0876, 1.1459, 1.2727, 1.7627};
  for (size_t i = 0; i < 32; ++i) {
    const double ratio = truncated.inverse[i] / plain.inverse[i];
    EXPECT_NEAR(ratio, i >= 9 && i <= 17 ? ratios[i - 9] : 1.0, 1e-4) << i;
  }
}

TEST(Yarn, FactorOneIsPlainRotary) {
  nlohmann::json json = full_json();
  json["rope_scaling"] = {{"rope_type", "default"}};
  const YarnFrequencies yarn = yarn_frequencies(parsed(json));
  EXPECT_EQ(yarn.concentration, 1.0);
  for (size_t i = 0; i < 32; ++i)
    EXPECT_NEAR(yarn.inverse[i] * std::pow(150000.0, static_cast<double>(i) / 32), 1.0, 1e-12);
}

TEST(Yarn, TablesHoldCosThenSinAtEveryPosition) {
  const GptOssConfig config = parsed(full_json());
  const YarnFrequencies yarn = yarn_frequencies(config);
  std::vector<float> table(3 * 64);
  fill_rotary_table(config, 131069, 3, table.data());
  for (int p = 0; p < 3; ++p) {
    for (int i = 0; i < 32; ++i) {
      const double angle = (131069.0 + p) * yarn.inverse[static_cast<size_t>(i)];
      EXPECT_NEAR(table[static_cast<size_t>(64 * p + i)], 1.3465735902799727 * std::cos(angle),
                  1e-7);
      EXPECT_NEAR(table[static_cast<size_t>(64 * p + 32 + i)], 1.3465735902799727 * std::sin(angle),
                  1e-7);
    }
  }
}

}  // namespace
}  // namespace moxie
