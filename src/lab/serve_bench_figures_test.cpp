#include "lab/serve_bench_figures.h"

#include <gtest/gtest.h>

#include "core/shown_address.h"
#include "lab/serve_bench.h"

namespace moxie {
namespace {

// Sent at 10 s; the role comes at 10.5, text at 11, 11.2, 11.6 and 12, the end at 12.1.
StreamResult stream() {
  return {.start_s = 10,
          .first_response_s = 10.5,
          .content_s = {11, 11.2, 11.6, 12},
          .end_s = 12.1,
          .usage = {.num_prompt = 100, .num_completion = 5, .num_cached = 16}};
}

TEST(RequestFigures, AreComputedFromTheTimesOfEvents) {
  const RequestFigures f = figures_of(stream(), 90, 0, 0.1);
  EXPECT_NEAR(f.ttft_ms, 1000, 1e-9);
  EXPECT_NEAR(f.e2e_ms, 2100, 1e-9);
  ASSERT_TRUE(f.tpot_ms);
  EXPECT_NEAR(*f.tpot_ms, 250, 1e-9);  // 1 s for the 4 tokens after the first
  ASSERT_EQ(f.itl_ms.size(), 3U);
  EXPECT_NEAR(f.itl_ms[0], 200, 1e-9);
  EXPECT_NEAR(f.itl_ms[1], 400, 1e-9);
  EXPECT_NEAR(f.itl_ms[2], 400, 1e-9);
  ASSERT_TRUE(f.pp_tok_s);
  EXPECT_NEAR(*f.pp_tok_s, 250, 1e-9);  // 100 tokens in 0.5 s - 0.1 s
  EXPECT_NEAR(f.ttfr_ms, 500, 1e-9);
  EXPECT_NEAR(*f.pp_ttft_tok_s, 1000.0 / 9, 1e-9);  // 100 tokens in 1 s - 0.1 s
  EXPECT_EQ(f.num_output, 5);
  EXPECT_EQ(f.num_events, 4);
  EXPECT_EQ(f.num_cached, 16);
}

TEST(RequestFigures, TokensOfTheFirstEventAreNotDecoded) {
  StreamResult r = stream();
  r.num_token_ids = 5;
  r.num_first_token_ids = 3;
  EXPECT_NEAR(*figures_of(r, 90, 0, 0).tpot_ms, 500, 1e-9);
}

TEST(RequestFigures, TokensBehindTheLastTextAreNotDecodedUntilIt) {
  StreamResult r = stream();
  r.num_token_ids = 5;
  r.num_first_token_ids = 1;
  r.num_last_token_ids = 3;
  const RequestFigures f = figures_of(r, 90, 0, 0);
  EXPECT_NEAR(*f.tpot_ms, 500, 1e-9);
  EXPECT_EQ(f.num_output, 5);
}

TEST(RequestFigures, WithoutUsageEventsAreTokensAndTheAskedLengthCounts) {
  StreamResult r = stream();
  r.usage = {};
  const RequestFigures f = figures_of(r, 90, 0, 0);
  EXPECT_EQ(f.num_output, 4);
  EXPECT_EQ(f.num_prompt, 90);
  EXPECT_NEAR(*f.tpot_ms, 1000.0 / 3, 1e-9);
}

TEST(RequestFigures, ALoadedContextIsNoPartOfPp) {
  EXPECT_NEAR(*figures_of(stream(), 100, 40, 0.1).pp_tok_s, 100, 1e-9);
}

TEST(RequestFigures, OneTokenHasNoTimeATokenAndNoLatencyBelowNothing) {
  StreamResult r = stream();
  r.content_s = {11};
  r.usage.num_completion = 1;
  const RequestFigures f = figures_of(r, 100, 0, 0.7);
  EXPECT_FALSE(f.tpot_ms);
  EXPECT_FALSE(f.pp_tok_s);
  EXPECT_TRUE(f.itl_ms.empty());
}

TEST(UsageFault, FindsContradictionsAlone) {
  StreamResult r = stream();
  EXPECT_EQ(usage_fault(r, 5), "");
  EXPECT_NE(usage_fault(r, 4).find("at most 4"), std::string::npos);
  r.usage.num_completion = 3;
  EXPECT_NE(usage_fault(r, 5).find("4 events"), std::string::npos);
  r.usage.num_completion = 5;
  r.num_token_ids = 4;  // without the token that ends the answer
  EXPECT_EQ(usage_fault(r, 5), "");
  r.num_token_ids = 9;
  EXPECT_NE(usage_fault(r, 5).find("token_ids of 9"), std::string::npos);
  r.usage = {.num_prompt = 0};
  EXPECT_NE(usage_fault(r, 5).find("no tokens"), std::string::npos);
  r.usage = {};
  EXPECT_EQ(usage_fault(r, 5), "");
}

TEST(Goodput, CountsRequestsThatKeepEveryBar) {
  const auto goodput = parse_goodput("ttft_ms=1000,tpot_ms=250.5,e2e_ms=2100.5");
  ASSERT_TRUE(goodput);
  ServeFigures figures{.requests = {figures_of(stream(), 1, 0, 0)}};
  EXPECT_EQ(figures.num_good(*goodput), 1);
  figures.requests.front().e2e_ms = 2101;
  EXPECT_EQ(figures.num_good(*goodput), 0);
  EXPECT_FALSE(parse_goodput("")->is_asked());
}

TEST(Goodput, RefusesWhatIsNoBar) {
  for (const char* text : {"ttft=5", "ttft_ms", "ttft_ms=", "ttft_ms=-1", "ttft_ms=nan",
                           "ttft_ms=5x", "ttft_ms=5,,e2e_ms=1"})
    EXPECT_FALSE(parse_goodput(text)) << text;
}

TEST(ServeFigures, AddUpOverRequestsAndBlocks) {
  ServeFigures figures;
  for (int i = 0; i < 3; ++i) figures.requests.push_back(figures_of(stream(), 90, 0, 0.1));
  figures.busy_s = 6;
  figures.block_begins = {0, 2};
  figures.block_tok_s = {4, 2};
  figures.errors = {{"closed", 1}, {"http_429", 2}};
  EXPECT_NEAR(figures.output_tok_s(), 15.0 / 6, 1e-12);
  EXPECT_NEAR(figures.total_tok_s(), 315.0 / 6, 1e-12);
  EXPECT_NEAR(figures.requests_s(), 0.5, 1e-12);
  EXPECT_EQ(figures.num_errors(), 3);
  EXPECT_EQ(figures.num_cached(), 48);
  const auto blocks = figures.by_block();
  ASSERT_EQ(blocks.size(), 2U);
  EXPECT_EQ(blocks[0].requests.size(), 2U);
  EXPECT_EQ(blocks[1].requests.size(), 1U);
  for (const ServeSeries& one : figures.series()) {
    const size_t expected = one.name == "itl" ? 9 : one.name == "output" ? 2 : 3;
    EXPECT_EQ(one.samples.size(), expected) << one.name;
  }
}

TEST(ServeTest, NamesItsConditions) {
  EXPECT_EQ((ServeTest{.n_prompt = 512, .n_gen = 32, .concurrency = 8}).name(), "pp512 tg32 c8");
  EXPECT_EQ(
      (ServeTest{.n_prompt = 1, .n_gen = 2, .depth = 3, .concurrency = 0, .rate = 2.5}).name(),
      "pp1 tg2 d3 r2.5");
}

TEST(ParseEndpoint, FindsTheBaseAndTheRoot) {
  for (const char* url :
       {"http://h:8000", "http://h:8000/", "http://h:8000/v1", "http://h:8000/v1/"}) {
    const auto endpoint = parse_endpoint(url, "");
    ASSERT_TRUE(endpoint) << url;
    EXPECT_EQ(endpoint->base, "http://h:8000/v1") << url;
    EXPECT_EQ(endpoint->root, "http://h:8000") << url;
  }
  EXPECT_EQ(parse_endpoint("https://h/openai/v1", "")->root, "https://h/openai");
  for (const char* url : {"", "h:8000", "ftp://h", "http://", "http://h/ v1", "http://h?a=b"})
    EXPECT_FALSE(parse_endpoint(url, "")) << url;
  EXPECT_FALSE(parse_endpoint("http://h", "a\nb"));
}

// What is printed and kept names no password; requests go to the whole address.
TEST(ParseEndpoint, ShowsNoUser) {
  const auto endpoint = parse_endpoint("http://me:my%40word@h:8000/v1", "");
  ASSERT_TRUE(endpoint);
  EXPECT_EQ(endpoint->url, "http://h:8000/v1");
  EXPECT_EQ(endpoint->base, "http://me:my%40word@h:8000/v1");
}

TEST(ShownAddress, LeavesAllButUsersAsTheyAre) {
  EXPECT_EQ(shown_address("http://h/v1?to=a@b"), "http://h/v1?to=a@b");
  EXPECT_EQ(shown_address("--url=https://u:p@q@h"), "--url=https://h");
  EXPECT_EQ(shown_address("http://u:p@a,http://v@b/v1,c@d"), "http://a,http://b/v1,c@d");
  for (const char* text : {"", "a@b", "://", "http://", "http://@"})
    EXPECT_EQ(shown_address(text).find(":p"), std::string::npos) << text;
}

}  // namespace
}  // namespace moxie
