// The page of metrics, and what it counts with.
#include "server/metrics.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>

namespace moxie {
namespace {

TEST(MetricsTest, HistogramsCountUpwards) {
  const double bounds[] = {1, 2, 5};
  Histogram histogram(bounds);
  for (const double value : {0.5, 1.0, 1.5, 7.0}) histogram.observe(value);
  std::string text;
  histogram.append("h", "a=\"b\"", &text);
  EXPECT_EQ(text,
            "h_bucket{a=\"b\",le=\"1\"} 2\nh_bucket{a=\"b\",le=\"2\"} 3\n"
            "h_bucket{a=\"b\",le=\"5\"} 3\nh_bucket{a=\"b\",le=\"+Inf\"} 4\n"
            "h_sum{a=\"b\"} 10\nh_count{a=\"b\"} 4\n");
}

TEST(MetricsTest, FamiliesStandTogetherAndAreThereFromTheStart) {
  Metrics metrics;
  metrics.on_http("/a", "GET", 200, 0.1);
  const auto families_of = [](const std::string& text) {
    std::vector<std::string> families;
    std::istringstream lines(text);
    for (std::string line, type; std::getline(lines, line);) {
      if (line.starts_with("# HELP ")) {
        families.push_back(line.substr(7, line.find(' ', 7) - 7));
      } else if (!line.starts_with("#")) {
        EXPECT_TRUE(line.starts_with(families.back())) << line << " in " << families.back();
      }
    }
    return families;
  };
  const auto loading = families_of(metrics.text("m", nullptr));
  EXPECT_EQ(std::set(loading.begin(), loading.end()).size(), loading.size());
  ServiceStats stats{.running = 2, .waiting = 3, .waiting_deferred = 1, .full_pages = 9};
  const std::string text = metrics.text("m", &stats);
  EXPECT_EQ(families_of(text), loading);
  EXPECT_EQ(text.find("moxie:kv_events"), std::string::npos);
  const KvEventCounters events{.removed = 5};
  const std::string more = metrics.text("m", &stats, &events);
  const auto all = families_of(more);
  EXPECT_EQ(std::set(all.begin(), all.end()).size(), loading.size() + 6);
  EXPECT_NE(more.find(R"(moxie:kv_events_total{model_name="m",engine="0",type="removed"} 5)"),
            std::string::npos);
  for (const char* line :
       {R"(vllm:num_requests_waiting_by_reason{model_name="m",engine="0",reason="capacity"} 2)",
        R"(vllm:num_requests_waiting_by_reason{model_name="m",engine="0",reason="deferred"} 1)",
        R"(moxie:kv_pages{model_name="m",engine="0",layers="full"} 9)"}) {
    EXPECT_NE(text.find(std::string(line) + "\n"), std::string::npos) << line;
  }
}

TEST(MetricsTest, EachRankHasItsOwn) {
  const Metrics metrics;
  const ServiceStats stats;
  EXPECT_EQ(metrics.text("m", &stats).find("moxie:rank_"), std::string::npos);
  const std::vector<RankFacts> ranks = {
      {.rank = 0, .weights_bytes = 7, .num_exchanges = 2, .exchange_s = 0.5},
      {.rank = 1, .weights_bytes = 9}};
  const std::string text = metrics.text("m", &stats, nullptr, ranks);
  const std::string labels = R"({model_name="m",engine="0",rank=)";
  for (const std::string& line : {"moxie:rank_weights_bytes" + labels + R"("1"} 9)",
                                  "moxie:rank_exchanges_total" + labels + R"("0"} 2)",
                                  "moxie:rank_exchange_seconds_total" + labels + R"("0"} 0.5)"})
    EXPECT_NE(text.find(line + "\n"), std::string::npos) << line;
}

TEST(MetricsTest, DraftsAreThereWithSpeculationAndCountedByPlace) {
  Metrics metrics;
  ServiceStats stats;
  EXPECT_EQ(metrics.text("m", &stats).find("spec_decode"), std::string::npos);
  stats.drafts.num_positions = 3;
  stats.drafts.add_launch(3);
  stats.drafts.add_launch(2);
  for (const int32_t place : {0, 0, 1}) stats.drafts.add_accepted(place);
  const std::string text = metrics.text("m", &stats);
  const std::string labels = R"({model_name="m",engine="0")";
  for (const std::string& line :
       {"vllm:spec_decode_num_drafts_total" + labels + "} 2",
        "vllm:spec_decode_num_draft_tokens_total" + labels + "} 5",
        "vllm:spec_decode_num_accepted_tokens_total" + labels + "} 3",
        "vllm:spec_decode_num_accepted_tokens_per_pos_total" + labels + R"(,position="0"} 2)",
        "vllm:spec_decode_num_accepted_tokens_per_pos_total" + labels + R"(,position="1"} 1)",
        "vllm:spec_decode_num_accepted_tokens_per_pos_total" + labels + R"(,position="2"} 0)"}) {
    EXPECT_NE(text.find(line + "\n"), std::string::npos) << line;
  }
}

TEST(MetricsTest, RatesAreOfTheLastWholeSeconds) {
  RecentRate rate;
  const auto at = [](double s) {
    return Clock::time_point(
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s)));
  };
  rate.add(10, at(100.1));
  EXPECT_EQ(rate.per_s(at(100.9)), 0);  // this second is not over
  rate.add(20, at(101.5));
  EXPECT_EQ(rate.per_s(at(102)), 6);
  EXPECT_EQ(rate.per_s(at(105.9)), 6);
  EXPECT_EQ(rate.per_s(at(106)), 4);
  rate.add(5, at(106.2));  // in the place of second 100
  EXPECT_EQ(rate.per_s(at(107)), 1);
  EXPECT_EQ(rate.per_s(at(1000)), 0);
}

}  // namespace
}  // namespace moxie
