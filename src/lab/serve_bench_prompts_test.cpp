#include "lab/serve_bench_prompts.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>

namespace moxie {
namespace {

// A tokenizer with a template of `overhead` tokens (and `more` with a context): a word is one
// token, one of more than `whole` letters a token a letter.
struct Endpoint {
  int64_t overhead = 20, more = 7;
  size_t whole = 3;
  mutable int num_calls = 0;

  int64_t of_text(const std::string& text) const {
    std::istringstream words(text);
    int64_t count = 0;
    for (std::string word; words >> word;)
      count += word.size() > whole ? static_cast<int64_t>(word.size()) : 1;
    return count;
  }
  int64_t count(const PromptText& text) const {
    ++num_calls;
    const int64_t context = text.context.empty() ? 0 : more + of_text(text.context);
    return overhead + context + of_text(text.user);
  }
};

Result<PromptMaker> maker_for(const Endpoint& endpoint, uint64_t seed = 1) {
  return PromptMaker::calibrate(
      [&](const PromptText& text) -> Result<int64_t> { return endpoint.count(text); }, seed);
}

TEST(PromptMaker, MakesPromptsOfTheAskedLength) {
  const Endpoint endpoint;
  auto maker = maker_for(endpoint);
  ASSERT_TRUE(maker) << maker.error().message();
  for (const std::string& word : maker->words()) EXPECT_EQ(endpoint.of_text(word), 1) << word;
  for (const int64_t n : {21, 22, 64, 1000}) {
    EXPECT_EQ(endpoint.count(*maker->make(n, 0)), n);
    EXPECT_EQ(endpoint.count(*maker->make(n, 500)), n + 500);
  }
}

TEST(PromptMaker, NeedsFewCounts) {
  const Endpoint some, all{.whole = 100};
  ASSERT_TRUE(maker_for(some));
  EXPECT_LE(some.num_calls, 250);
  ASSERT_TRUE(maker_for(all));
  EXPECT_LE(all.num_calls, 8);
}

TEST(PromptMaker, PromptsDifferAndFollowTheSeed) {
  const Endpoint endpoint;
  auto one = maker_for(endpoint, 1), same = maker_for(endpoint, 1), other = maker_for(endpoint, 2);
  ASSERT_TRUE(one && same && other);
  std::set<std::string> beginnings;
  for (int i = 0; i < 100; ++i) {
    const std::string text = one->make(100, 0)->user;
    EXPECT_EQ(text, same->make(100, 0)->user);
    beginnings.insert(text.substr(0, 40));
  }
  EXPECT_EQ(beginnings.size(), 100U);
  EXPECT_EQ(beginnings.count(other->make(100, 0)->user.substr(0, 40)), 0U);
}

TEST(PromptMaker, SaysThatALengthIsBelowTheTemplate) {
  const Endpoint endpoint;
  auto maker = maker_for(endpoint);
  ASSERT_TRUE(maker);
  const auto prompt = maker->make(20, 0);
  ASSERT_FALSE(prompt);
  EXPECT_EQ(prompt.error().where, "-p");
  EXPECT_NE(prompt.error().what.find("take 21"), std::string::npos) << prompt.error().what;
  EXPECT_EQ(maker->make(10, 5).error().where, "-d");
}

TEST(PromptMaker, RefusesCountsThatDoNotAddUp) {
  const Endpoint bytes{.whole = 0};
  const auto none = maker_for(bytes);
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().what.find("common words"), std::string::npos);
  const Endpoint endpoint;
  const auto lies = PromptMaker::calibrate(
      [&](const PromptText& text) -> Result<int64_t> {
        return std::min<int64_t>(endpoint.count(text), 100);  // long prompts are cut
      },
      1);
  ASSERT_FALSE(lies);
  EXPECT_NE(lies.error().what.find("200 words"), std::string::npos) << lies.error().what;
}

TEST(PromptMaker, HandsAFaultOn) {
  const auto maker = PromptMaker::calibrate(
      [](const PromptText&) -> Result<int64_t> { return fail("refused", "there"); }, 1);
  ASSERT_FALSE(maker);
  EXPECT_EQ(maker.error().what, "refused");
}

}  // namespace
}  // namespace moxie
