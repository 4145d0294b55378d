// Prompt lookup against its definition, and texts drafted by it against texts without drafts.
#include "engine/ngram_drafter.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>

#include "engine/engine.h"
#include "engine/service.h"

namespace moxie {
namespace {

// By definition: a search through the whole text.
std::vector<int32_t> naive_drafts(std::span<const int32_t> tokens, NgramLengths lengths,
                                  int32_t limit) {
  for (auto n = static_cast<size_t>(lengths.max); n >= static_cast<size_t>(lengths.min); --n) {
    if (n > tokens.size()) continue;
    const auto last = tokens.last(n);
    for (size_t at = 0; at + n < tokens.size(); ++at) {
      if (!std::equal(last.begin(), last.end(), tokens.begin() + static_cast<int64_t>(at)))
        continue;
      const auto behind = tokens.subspan(at + n);
      const auto count = std::min(behind.size(), static_cast<size_t>(limit));
      return {behind.begin(), behind.begin() + static_cast<int64_t>(count)};
    }
  }
  return {};
}

std::vector<int32_t> drafts_of(NgramDrafter& drafter, RequestId request,
                               std::span<const int32_t> tokens, int32_t limit) {
  std::vector<int32_t> drafts;
  drafter.propose({.request = request, .tokens = tokens, .limit = limit, .drafts = &drafts});
  return drafts;
}

TEST(NgramDrafterTest, ProposesWhatFollowedTheEarliestLongestMatch) {
  NgramDrafter drafter({.min = 1, .max = 3});
  RequestId id = 0;
  const auto drafts = [&](std::vector<int32_t> tokens, int32_t limit) {
    return drafts_of(drafter, ++id, tokens, limit);
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(drafts({}, 4), (Ids{}));
  EXPECT_EQ(drafts({1}, 4), (Ids{}));
  EXPECT_EQ(drafts({1, 2, 3}, 4), (Ids{}));
  EXPECT_EQ(drafts({1, 2, 3, 1}, 2), (Ids{2, 3}));
  EXPECT_EQ(drafts({1, 2, 3, 1}, 9), (Ids{2, 3, 1}));                       // no more than there is
  EXPECT_EQ(drafts({1, 5, 1, 6, 1}, 1), (Ids{5}));                          // the earliest
  EXPECT_EQ(drafts({4, 1, 5, 9, 1, 6, 9, 1}, 1), (Ids{6}));                 // the longest
  EXPECT_EQ(drafts({2, 3, 4, 7, 1, 2, 3, 4, 8, 1, 2, 3, 4}, 1), (Ids{7}));  // 3 at most
  EXPECT_EQ(drafts({8, 8, 8, 8}, 9), (Ids{8}));  // it may overlap the last tokens
  NgramDrafter strict({.min = 2, .max = 3});
  const Ids once = {1, 2, 3, 1}, twice = {1, 2, 3, 1, 2};
  EXPECT_EQ(drafts_of(strict, 1, once, 4), (Ids{}));
  EXPECT_EQ(drafts_of(strict, 1, twice, 4), (Ids{3, 1, 2}));
}

TEST(NgramDrafterTest, GrowingTextsOfManyRequestsAreSearchedAsByDefinition) {
  EXPECT_TRUE(rc::check([] {
    const int32_t min = *rc::gen::inRange(1, 5), max = min + *rc::gen::inRange(0, 4);
    const NgramLengths lengths{.min = min, .max = max};
    NgramDrafter drafter(lengths);
    const int32_t vocab = *rc::gen::element(2, 3, 10);
    std::vector<std::vector<int32_t>> texts(3);
    const int num_calls = *rc::gen::inRange(1, 40);
    for (int i = 0; i < num_calls; ++i) {
      const auto which = *rc::gen::inRange<size_t>(0, texts.size());
      std::vector<int32_t>& text = texts[which];
      if (*rc::gen::inRange(0, 12) == 0) {  // it ends, and another begins
        drafter.forget(which);
        text.clear();
      }
      const auto more = *rc::gen::container<std::vector<int32_t>>(rc::gen::inRange(0, vocab));
      text.insert(text.end(), more.begin(), more.end());
      const int32_t limit = *rc::gen::inRange(1, 12);
      RC_ASSERT(drafts_of(drafter, which, text, limit) == naive_drafts(text, lengths, limit));
    }
  }));
}

TEST(NgramDrafterTest, MemoryIsAFewBytesATokenAndGoesWithTheRequest) {
  constexpr size_t kTokens = 100000;
  std::vector<int32_t> text;
  uint32_t seed = 1;
  while (text.size() < kTokens) {
    seed = seed * 1664525u + 1013904223u;
    text.push_back(static_cast<int32_t>((seed >> 8) % 200000));
  }
  NgramIndex index({.min = 2, .max = 4});
  std::vector<int32_t> drafts;
  index.propose(text, 4, &drafts);
  EXPECT_GT(index.bytes(), 3 * 4 * kTokens);
  EXPECT_LT(index.bytes(), 3 * 24 * kTokens);

  NgramDrafter drafter({});
  drafts_of(drafter, 1, text, 4);
  drafts_of(drafter, 2, text, 4);
  EXPECT_EQ(drafter.num_requests(), 2u);
  drafter.forget(1);
  drafter.forget(1);  // and of one that was never asked for
  drafter.forget(7);
  EXPECT_EQ(drafter.num_requests(), 1u);
}

// The embedded model on prompts with much and with little to repeat.
class NgramTextTest : public ::testing::Test {
 protected:
  static constexpr int32_t kDrafts = 7, kTokens = 64;

  static EngineOptions options() {
    EngineOptions options{.device = "cpu", .max_model_len = 192, .show_progress = false};
    options.speculation = {.method = SpecMethod::kNgram, .lookup_min = 1, .lookup_max = 4};
    fit_service(8, &options);
    options.kv_cache_bytes = uint64_t{64} << 20;
    return options;
  }
  std::vector<std::vector<int32_t>> prompts(const Engine& engine) const {
    std::vector<std::vector<int32_t>> all;
    for (const char* text :
         {"one two three four five six one two three four five six one two three",
          "Once upon a time there was a little girl who lived in a wood.",
          "17 + 25 = 42. 17 + 25 =", "a",
          "{\"name\": \"Ann\", \"age\": 5}, {\"name\": \"Bob\", \"age\": 6}, {\"name\":"}) {
      all.push_back(engine.tokenizer()->encode(text));
    }
    return all;
  }
};

TEST_F(NgramTextTest, GreedyAndSeededTextsAreThoseWithoutDrafts) {
  auto engine = Engine::load(options());
  ASSERT_TRUE(engine.has_value()) << engine.error().message();
  int32_t max_drafts = 0;
  auto drafter = make_drafter(**engine, &max_drafts);
  ASSERT_TRUE(drafter.has_value()) << drafter.error().message();
  ASSERT_NE(*drafter, nullptr);
  EXPECT_EQ(max_drafts, kDrafts);
  std::vector<SamplingOptions> samplings = {
      {.temperature = 0, .max_tokens = kTokens, .ignore_eos = true},
      {.temperature = 0.8f, .top_p = 0.9f, .seed = 11, .max_tokens = kTokens, .ignore_eos = true},
      {.temperature = 0,
       .repetition_penalty = 1.1f,
       .presence_penalty = 0.2f,
       .max_tokens = kTokens,
       .ignore_eos = true}};
  for (const auto& prompt : prompts(**engine)) {
    for (const SamplingOptions& sampling : samplings) {
      const auto plain = (*engine)->generate(prompt, sampling);
      ASSERT_TRUE(plain.has_value()) << plain.error().message();
      for (const bool is_adaptive : {false, true}) {
        const Drafting drafting{
            .drafter = drafter->get(), .max_drafts = max_drafts, .is_adaptive = is_adaptive};
        const auto drafted = (*engine)->generate(prompt, sampling, {}, drafting);
        ASSERT_TRUE(drafted.has_value()) << drafted.error().message();
        EXPECT_EQ(drafted->ids, plain->ids);
      }
    }
  }
}

// All at once, so that their drafts share launches.
TEST_F(NgramTextTest, TextsOfAServiceAreThoseWithoutDrafts) {
  auto loaded = Engine::load(options());
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message();
  Engine& engine = **loaded;
  int32_t max_drafts = 0;
  auto drafter = make_drafter(engine, &max_drafts);
  ASSERT_TRUE(drafter.has_value()) << drafter.error().message();
  const auto run = [&](const Drafting& drafting, ServiceStats* stats) {
    auto service = Service::create(engine, {.drafting = drafting});
    std::vector<std::vector<int32_t>> texts;
    const auto all = prompts(engine);
    texts.resize(2 * all.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      ServiceRequest request{.prompt = all[i % all.size()]};
      request.sampling = {.temperature = i < all.size() ? 0.0f : 1.0f,
                          .seed = i,
                          .max_tokens = kTokens,
                          .ignore_eos = true};
      request.sink = [&texts, i](const RequestUpdate& update) {
        for (const SampleAnswer& answer : update.tokens) texts[i].push_back(answer.token);
      };
      EXPECT_TRUE(service->submit(std::move(request)).has_value());
    }
    EXPECT_TRUE(service->drain(600));
    *stats = service->stats();
    service->stop();
    return texts;
  };
  ServiceStats plain, drafted;
  const auto expected = run({}, &plain);
  EXPECT_EQ(run({.drafter = drafter->get(), .max_drafts = max_drafts}, &drafted), expected);
  EXPECT_EQ(plain.drafts.num_tokens, 0);
  EXPECT_GT(drafted.drafts.num_accepted, 0);
  EXPECT_LE(drafted.drafts.num_accepted, drafted.drafts.num_tokens);
  EXPECT_EQ(static_cast<NgramDrafter*>(drafter->get())->num_requests(), 0u);
}

}  // namespace
}  // namespace moxie
