// Choices of experts read back from a model, counted by definition and in small cases.
#include "lab/shared_experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "kernels/experts/experts.h"
#include "kernels/route/route.h"

namespace moxie {
namespace {

std::unique_ptr<Engine> open(int32_t max_batch_tokens) {
  EngineOptions options{.device = "cpu",
                        .threads = 2,
                        .max_model_len = 256,
                        .max_batch_tokens = max_batch_tokens,
                        .show_progress = false};
  auto engine = Engine::load(options);
  CHECK(engine.has_value(), engine ? "" : engine.error().message());
  return std::move(*engine);
}

std::vector<int32_t> random_ids(size_t count) {
  std::mt19937 random(7);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 4000);
  return ids;
}

TEST(SharedExpertsTest, ChoicesDoNotDependOnHowTheTextIsCut) {
  const auto ids = random_ids(90);
  const auto whole = read_routes(*open(128), ids);
  const auto in_parts = read_routes(*open(7), ids);
  ASSERT_TRUE(whole.has_value() && in_parts.has_value());
  EXPECT_EQ(whole->size(), 8u);
  for (const auto& layer : *whole) {
    ASSERT_EQ(layer.size(), 4 * ids.size());
    for (size_t at = 0; at < layer.size(); at += 4) {
      const std::set<int32_t> chosen(layer.begin() + static_cast<int64_t>(at),
                                     layer.begin() + static_cast<int64_t>(at) + 4);
      EXPECT_EQ(chosen.size(), 4u);
      EXPECT_TRUE(*chosen.begin() >= 0 && *chosen.rbegin() < 16);
    }
  }
  EXPECT_EQ(*whole, *in_parts);
  EXPECT_NE((*whole)[0], (*whole)[7]);
}

// x before each layer as taps copy it out, through the router of that layer.
TEST(SharedExpertsTest, GuessesAreTheRoutersChoicesBeforeAttention) {
  const auto ids = random_ids(50);
  Routes guessed;
  const auto routes = read_routes(*open(64), ids, &guessed);
  ASSERT_TRUE(routes.has_value());
  EngineOptions options{.device = "cpu",
                        .threads = 2,
                        .max_model_len = 256,
                        .max_batch_tokens = 64,
                        .taps = {0, 1, 2, 3, 4, 5, 6, 7},
                        .show_progress = false};
  const auto engine = Engine::load(options);
  ASSERT_TRUE(engine.has_value());
  Engine& e = **engine;
  const Chunk chunk{e.kv().add_sequence(), ids, Logits::kNone};
  ASSERT_TRUE(e.step({&chunk, 1}).has_value());
  const GptOssConfig& config = e.config();
  std::vector<float> t(ids.size() * static_cast<size_t>(config.hidden)), weights(4 * ids.size());
  ASSERT_EQ(guessed.size(), 8u);
  int64_t num_equal = 0;
  for (size_t l = 0; l < guessed.size(); ++l) {
    std::vector<int32_t> expected(4 * ids.size());
    const LayerWeights& layer = e.weights().layers[l];
    e.kernels().run(RouteParams{
        .launch = e.kernels().launch(&e.stream(), e.activations().workspace, e.workspace_bytes()),
        .num_tokens = static_cast<int32_t>(ids.size()),
        .hidden = config.hidden,
        .top_k = config.top_k,
        .rms_eps = config.rms_eps,
        .x = e.tap(l),
        .norm_weight = layer.post_norm,
        .weight = layer.router,
        .bias = layer.router_bias,
        .t = t.data(),
        .expert_ids = expected.data(),
        .expert_weights = weights.data()});
    EXPECT_EQ(guessed[l], expected) << "layer " << l;
    for (size_t i = 0; i < expected.size(); ++i) num_equal += expected[i] == (*routes)[l][i];
  }
  EXPECT_LT(num_equal, static_cast<int64_t>(8 * 4 * ids.size()));  // a guess is no choice
  const std::vector<RoutedText> texts = {{"a", ids, 10}};
  const auto shared = measure_shared_experts(*open(64), texts);
  ASSERT_TRUE(shared.has_value());
  for (size_t l = 0; l < guessed.size(); ++l) {
    int common = 0;
    for (size_t at = 10; at < ids.size(); ++at)
      for (size_t i = 4 * at; i < 4 * (at + 1); ++i)
        common +=
            std::count(guessed[l].begin() + static_cast<int64_t>(4 * at),
                       guessed[l].begin() + static_cast<int64_t>(4 * at + 4), (*routes)[l][i]);
    EXPECT_NEAR(shared->all.guessed[l], common / 160.0, 1e-9) << "layer " << l;
  }
}

TEST(SharedExpertsTest, MeansAreThoseOfTheChoicesByDefinition) {
  const auto engine = open(64);
  const auto ids = random_ids(60);
  constexpr size_t kFirst = 21;
  const std::vector<RoutedText> texts = {{"a", ids, kFirst}, {"b", ids, 0}, {"a", ids, kFirst}};
  const auto shared = measure_shared_experts(*engine, texts);
  ASSERT_TRUE(shared.has_value()) << shared.error().message();
  const auto routes = read_routes(*engine, ids);
  ASSERT_TRUE(routes.has_value());
  ASSERT_EQ(shared->parts.size(), 2u);
  EXPECT_EQ(shared->parts[0].name, "a");
  EXPECT_EQ(shared->parts[0].num_tokens, 2 * (60 - 21));
  EXPECT_EQ(shared->all.num_tokens, 2 * (60 - 21) + 60);
  for (size_t n = 2; n <= 8; ++n) {
    double mean = 0;
    for (size_t l = 0; l < 8; ++l) {
      double sum = 0;
      for (size_t at = kFirst; at + n <= ids.size(); ++at) {
        std::set<int32_t> distinct;
        for (size_t i = 4 * at; i < 4 * (at + n); ++i) distinct.insert((*routes)[l][i]);
        sum += static_cast<double>(distinct.size());
      }
      sum /= static_cast<double>(ids.size() - kFirst - n + 1);
      EXPECT_NEAR(shared->parts[0].layers[l][n - 2], sum, 1e-9) << l << " " << n;
      mean += sum / 8;
    }
    EXPECT_NEAR(shared->parts[0].mean[n - 2], mean, 1e-9);
    EXPECT_NEAR(shared->independent[n - 2], 16 * (1 - std::pow(0.75, n)), 1e-9);
  }
}

// Equal tokens in a row choose nearly the same experts: far fewer than independent routing.
TEST(SharedExpertsTest, TokensThatRepeatShareExperts) {
  const auto engine = open(64);
  const std::vector<RoutedText> same = {{"same", std::vector<int32_t>(64, 300), 8}};
  const auto shared = measure_shared_experts(*engine, same);
  ASSERT_TRUE(shared.has_value());
  EXPECT_LT(shared->all.mean.back(), 0.6 * shared->independent.back());
  EXPECT_GE(shared->all.mean.front(), 4);
}

TEST(SharedExpertsTest, TextsThatCannotBeLookedAtAreRefused) {
  const auto engine = open(64);
  const auto why = [&](std::vector<RoutedText> texts) {
    const auto shared = measure_shared_experts(*engine, texts);
    return shared ? "" : shared.error().message();
  };
  EXPECT_NE(why({{"short", random_ids(20), 13}}).find("8 tokens"), std::string::npos);
  EXPECT_EQ(why({{"enough", random_ids(20), 12}}), "");
  EXPECT_NE(why({{"long", random_ids(257), 0}}).find("257 tokens"), std::string::npos);
  EXPECT_EQ(engine->kv().num_free_full_pages(), engine->kv().num_full_pages());
}

TEST(SharedExpertsTest, TextsAreReadByNameAsIdsWordsAndAnswers) {
  const auto engine = open(64);
  const auto parse = [&](const std::string& json) {
    return parse_routed_texts(json, "file", engine->tokenizer(), 4096);
  };
  const auto texts = parse(
      R"({"b": [[1, 2, 3], "one two"], "a": [{"prompt": "<|start|>user", "answer": [5, 6]}]})");
  ASSERT_TRUE(texts.has_value()) << texts.error().message();
  ASSERT_EQ(texts->size(), 3u);
  EXPECT_EQ((*texts)[0].name, "b");
  EXPECT_EQ((*texts)[0].ids, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ((*texts)[1].ids, engine->tokenizer()->encode("one two"));
  EXPECT_EQ((*texts)[2].first, 2u) << "a control token and a word";
  EXPECT_EQ((*texts)[2].ids.size(), 4u);
  for (const char* wrong :
       {"[", "[]", "{}", R"({"a": 1})", R"({"a": [1]})", R"({"a": [[4096]]})", R"({"a": [[-1]]})",
        R"({"a": [[1.5]]})", R"({"a": [[]]})", R"({"a": [{"prompt": [1]}]})"}) {
    EXPECT_FALSE(parse(wrong).has_value()) << wrong;
  }
  EXPECT_FALSE(parse_routed_texts(R"({"a": ["x"]})", "file", nullptr, 4096).has_value());
}

}  // namespace
}  // namespace moxie
