// Processes that meet, as threads here: what they agree on, who is refused, how each learns of the
// end of another, and orders as bytes.
#include "engine/rank_meeting.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/parallel.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;
using std::chrono::seconds;

uint16_t free_port() { return RankSocket::listen(0).value().port(); }

struct Met {
  std::vector<Result<std::unique_ptr<RankMeeting>>> ranks;
  std::vector<Json> plans;
};

// Every rank of a world meets the others on a thread of its own.
Met meet(const std::vector<RankWorld>& worlds, const std::vector<Json>& terms,
         milliseconds patience = seconds(10), milliseconds wait = seconds(20)) {
  Met met;
  for (size_t i = 0; i < worlds.size(); ++i) {
    met.ranks.emplace_back(fail("not yet"));
    met.plans.push_back(worlds[i].rank == 0 ? Json{{"pages", 7}} : Json());
  }
  std::vector<std::thread> threads;
  for (size_t i = 0; i < worlds.size(); ++i)
    threads.emplace_back([&, i] {
      met.ranks[i] = RankMeeting::meet(worlds[i], terms[i], &met.plans[i], patience, wait);
    });
  for (std::thread& thread : threads) thread.join();
  return met;
}

std::vector<RankWorld> worlds_of(int32_t size) {
  const uint16_t port = free_port();
  std::vector<RankWorld> worlds;
  for (int32_t rank = 0; rank < size; ++rank)
    worlds.push_back({.rank = rank, .size = size, .master_host = "127.0.0.1", .master_port = port});
  return worlds;
}

TEST(RankMeeting, RanksMeetLearnThePlanAndFollowOrdersUntilTheFirstEnds) {
  auto met = meet(worlds_of(4), std::vector<Json>(4, Json{{"model", "a"}}));
  for (size_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(met.ranks[i].has_value()) << met.ranks[i].error().message();
    EXPECT_EQ(met.plans[i], (Json{{"pages", 7}}));
  }
  std::vector<std::thread> threads;
  for (size_t i = 1; i < 4; ++i) {
    threads.emplace_back([&, i] {
      RankMeeting& rank = **met.ranks[i];
      rank.link().set_weights_bytes(100 + i);
      rank.say_loaded();
      for (int32_t number = 0;; ++number) {
        const auto order = rank.next_order();
        ASSERT_TRUE(order.has_value()) << order.error().message();
        if (!*order) {
          EXPECT_EQ(number, 3);
          return;
        }
        EXPECT_EQ((*order)->size(), static_cast<size_t>(number));
        const float mine = static_cast<float>(i);
        EXPECT_EQ(rank.link().exchange({&mine, 1}).size(), 4u);
      }
    });
  }
  EXPECT_TRUE((*met.ranks[0])->await_loaded().has_value());
  const auto facts = (*met.ranks[0])->facts();
  ASSERT_EQ(facts.size(), 4u);
  for (size_t rank = 1; rank < 4; ++rank) EXPECT_EQ(facts[rank].weights_bytes, 100 + rank);
  for (size_t number = 0; number < 3; ++number) {
    EXPECT_TRUE((*met.ranks[0])->order(std::vector<std::byte>(number)).has_value());
    const float mine = 0;
    const auto all = (*met.ranks[0])->link().exchange({&mine, 1});
    ASSERT_EQ(all.size(), 4u);
    for (size_t rank = 0; rank < 4; ++rank) EXPECT_EQ(*all[rank].data, static_cast<float>(rank));
  }
  met.ranks[0] = fail("over");
  for (std::thread& thread : threads) thread.join();
}

TEST(RankMeeting, WhatDiffersIsNamedOnBothSides) {
  const auto met = meet(worlds_of(2), {Json{{"model", "a"}, {"--kv", 1}}, Json{{"model", "b"}}});
  for (const auto& rank : met.ranks) {
    ASSERT_FALSE(rank.has_value());
    EXPECT_NE(rank.error().message().find("model is b on rank 1, a on rank 0"), std::string::npos)
        << rank.error().message();
  }
}

TEST(RankMeeting, WhoIsNotInTheWorldIsRefused) {
  for (const auto& [rank, size, text] :
       {std::tuple{1, 3, "rank 1 is one of 3, rank 0 of 2"}, {0, 2, "port"}}) {
    auto worlds = worlds_of(2);
    worlds[1].rank = rank, worlds[1].size = size;
    const auto met = meet(worlds, std::vector<Json>(2), seconds(10), seconds(2));
    bool is_named = false;
    for (const auto& one : met.ranks) {
      ASSERT_FALSE(one.has_value());
      is_named |= one.error().message().find(text) != std::string::npos;
    }
    EXPECT_TRUE(is_named) << text;
  }
}

TEST(RankMeeting, ARankThatDoesNotComeIsNamed) {
  auto worlds = worlds_of(3);
  worlds.pop_back();
  const auto met = meet(worlds, std::vector<Json>(2), seconds(10), milliseconds(300));
  EXPECT_NE(met.ranks[0].error().message().find("rank 2 did not come"), std::string::npos)
      << met.ranks[0].error().message();
}

TEST(RankMeeting, TheEndOfARankIsAFaultOfAll) {
  auto met = meet(worlds_of(3), std::vector<Json>(3));
  for (const auto& rank : met.ranks) ASSERT_TRUE(rank.has_value()) << rank.error().message();
  met.ranks[2] = fail("gone");
  const auto order = (*met.ranks[1])->next_order();
  ASSERT_FALSE(order.has_value());
  EXPECT_NE(order.error().message().find("rank 2"), std::string::npos) << order.error().message();
  EXPECT_FALSE((*met.ranks[0])->order({}).has_value());
  EXPECT_NE((*met.ranks[0])->link().status().error().message().find("rank 2"), std::string::npos);
}

TEST(RankMeeting, AFaultIsToldToAll) {
  auto met = meet(worlds_of(3), std::vector<Json>(3));
  for (const auto& rank : met.ranks) ASSERT_TRUE(rank.has_value()) << rank.error().message();
  (*met.ranks[2])->end_with_fault("out of memory");
  const auto order = (*met.ranks[1])->next_order();
  ASSERT_FALSE(order.has_value());
  EXPECT_NE(order.error().message().find("out of memory"), std::string::npos)
      << order.error().message();
}

RankOrder launch() {
  RankOrder order{.kind = RankOrder::Kind::kLaunch};
  order.arrays.clear();
  order.arrays.token_ids = {5, 6, 7};
  order.arrays.positions = {0, 1, 9};
  order.arrays.seq_idx = {0, 0, 1};
  order.arrays.row_offsets = {0, 2, 3};
  order.arrays.logit_rows = {1, 2};
  order.arrays.table_stride = 2;
  order.arrays.full_tables = {1, 2, 3, 4};
  order.arrays.window_tables = {4, 3, 2, 1};
  order.arrays.num_visible_keys = int64_t{1} << 40;
  return order;
}

TEST(RankOrders, AreTheSameBehindTheWire) {
  const RankOrder order = launch();
  const auto read = rank_order(to_bytes(order));
  ASSERT_TRUE(read.has_value()) << read.error().message();
  EXPECT_EQ(read->kind, order.kind);
  EXPECT_EQ(read->arrays.token_ids, order.arrays.token_ids);
  EXPECT_EQ(read->arrays.positions, order.arrays.positions);
  EXPECT_EQ(read->arrays.seq_idx, order.arrays.seq_idx);
  EXPECT_EQ(read->arrays.row_offsets, order.arrays.row_offsets);
  EXPECT_EQ(read->arrays.logit_rows, order.arrays.logit_rows);
  EXPECT_EQ(read->arrays.full_tables, order.arrays.full_tables);
  EXPECT_EQ(read->arrays.window_tables, order.arrays.window_tables);
  EXPECT_EQ(read->arrays.table_stride, 2);
  EXPECT_EQ(read->arrays.num_visible_keys, int64_t{1} << 40);
  const auto copy = rank_order(to_bytes({.kind = RankOrder::Kind::kCopyPage,
                                         .page_kind = PageKind::kWindow,
                                         .from_page = 3,
                                         .to_page = 8}));
  ASSERT_TRUE(copy.has_value());
  EXPECT_EQ(copy->page_kind, PageKind::kWindow);
  EXPECT_EQ(copy->from_page, 3);
  EXPECT_EQ(copy->to_page, 8);
}

// A decode loop's first launch of two sequences, with all that requests can have.
struct Decoding {
  std::vector<int32_t> history = {7, 9, 11}, counts = {0, 2, 1}, bias_ids = {5, 6};
  std::vector<float> bias = {-1.5f, 2.5f};
  std::vector<uint32_t> mask = {0xF0F0F0F0u, 3u};
  RankOrder begin{.kind = RankOrder::Kind::kBeginDecoding};

  Decoding() {
    HostArrays& a = begin.arrays;
    a.token_ids = {5, 6};
    a.positions = {100, 3};
    a.seq_idx = a.logit_rows = {0, 1};
    a.row_offsets = {0, 1, 2};
    a.table_stride = 3;
    a.full_tables = {1, 2, 3, 4, 5, 6};
    a.window_tables = {6, 5, 4, 3, 2, 1};
    a.num_fed = 2;
    a.fed = {8, 9, 10, 11};
    begin.mask_words = 2;
    begin.requests = {{.temperature = 0.7f,
                       .top_k = 40,
                       .top_p = 0.9f,
                       .min_p = 0.05f,
                       .repetition_penalty = 1.1f,
                       .frequency_penalty = 0.2f,
                       .presence_penalty = 0.3f,
                       .num_logprobs = 4,
                       .seed = uint64_t{1} << 60,
                       .step = 12,
                       .history_ids = history.data(),
                       .history_counts = counts.data(),
                       .num_history = 3,
                       .bias_ids = bias_ids.data(),
                       .bias_values = bias.data(),
                       .num_bias = 2,
                       .allowed_mask = mask.data()},
                      {.temperature = 1, .seed = 3}};
  }
};

TEST(RankOrders, OfADecodeLoopAreTheSameBehindTheWire) {
  const Decoding sent;
  auto first = rank_order(to_bytes(sent.begin));
  ASSERT_TRUE(first.has_value()) << first.error().message();
  const RankOrder read = std::move(*first);  // its requests go on to point at its own arrays
  EXPECT_EQ(read.kind, RankOrder::Kind::kBeginDecoding);
  EXPECT_EQ(read.arrays.fed, sent.begin.arrays.fed);
  EXPECT_EQ(read.arrays.num_fed, 2);
  EXPECT_EQ(read.arrays.full_tables, sent.begin.arrays.full_tables);
  ASSERT_EQ(read.requests.size(), 2u);
  const SampleRequest &all = read.requests[0], &plain = read.requests[1];
  EXPECT_EQ(all.temperature, 0.7f);
  EXPECT_EQ(all.top_k, 40);
  EXPECT_EQ(all.top_p, 0.9f);
  EXPECT_EQ(all.min_p, 0.05f);
  EXPECT_EQ(all.repetition_penalty, 1.1f);
  EXPECT_EQ(all.frequency_penalty, 0.2f);
  EXPECT_EQ(all.presence_penalty, 0.3f);
  EXPECT_EQ(all.num_logprobs, 4);
  EXPECT_EQ(all.seed, uint64_t{1} << 60);
  EXPECT_EQ(all.step, 12u);
  ASSERT_EQ(all.num_history, 3);
  EXPECT_EQ(std::vector(all.history_ids, all.history_ids + 3), sent.history);
  EXPECT_EQ(std::vector(all.history_counts, all.history_counts + 3), sent.counts);
  ASSERT_EQ(all.num_bias, 2);
  EXPECT_EQ(std::vector(all.bias_ids, all.bias_ids + 2), sent.bias_ids);
  EXPECT_EQ(std::vector(all.bias_values, all.bias_values + 2), sent.bias);
  EXPECT_EQ(std::vector(all.allowed_mask, all.allowed_mask + 2), sent.mask);
  EXPECT_EQ(plain.num_history + plain.num_bias, 0);
  EXPECT_EQ(plain.allowed_mask, nullptr);
  EXPECT_EQ(plain.seed, 3u);
  EXPECT_TRUE(is_plain(plain));

  RankOrder next{.kind = RankOrder::Kind::kDecodeNext, .arrays = sent.begin.arrays};
  next.arrays.fed.clear();
  next.arrays.num_fed = 0;
  next.arrays.table_stride = 1;
  next.arrays.full_tables = {8, 9};
  next.arrays.window_tables = {9, 8};
  const auto read_next = rank_order(to_bytes(next));
  ASSERT_TRUE(read_next.has_value()) << read_next.error().message();
  EXPECT_EQ(read_next->arrays.positions, next.arrays.positions);
  EXPECT_EQ(read_next->arrays.window_tables, next.arrays.window_tables);
  const auto end = rank_order(to_bytes({.kind = RankOrder::Kind::kEndDecoding}));
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->kind, RankOrder::Kind::kEndDecoding);
}

TEST(RankOrders, OfADecodeLoopWhoseArraysDoNotFitAreRefused) {
  const auto is_refused = [](auto&& change) {
    Decoding decoding;
    change(decoding.begin);
    return !rank_order(to_bytes(decoding.begin)).has_value();
  };
  EXPECT_FALSE(is_refused([](RankOrder&) {}));
  EXPECT_TRUE(is_refused([](RankOrder& o) { o.requests.pop_back(); }));
  EXPECT_TRUE(is_refused([](RankOrder& o) { o.arrays.fed.pop_back(); }));
  EXPECT_TRUE(is_refused([](RankOrder& o) { o.arrays.num_fed = -2; }));
  EXPECT_TRUE(is_refused([](RankOrder& o) { o.arrays.row_offsets = {0, 2}; }));
  EXPECT_TRUE(is_refused([](RankOrder& o) { o.kind = RankOrder::Kind::kQuit; }));
}

TEST(RankOrders, CutOrDamagedBytesAreRefused) {
  for (const auto& bytes : {to_bytes(launch()), to_bytes(Decoding().begin)}) {
    for (size_t size = 0; size < bytes.size(); ++size)
      EXPECT_FALSE(rank_order(std::span(bytes).first(size)).has_value()) << size;
    auto longer = bytes;
    longer.push_back({});
    EXPECT_FALSE(rank_order(longer).has_value());
    for (size_t at = 0; at < bytes.size(); ++at) {  // nothing but an answer comes of it
      auto damaged = bytes;
      damaged[at] ^= std::byte{0xFF};
      static_cast<void>(rank_order(damaged));
    }
  }
  EXPECT_FALSE(rank_order(to_bytes({.kind = RankOrder::Kind::kDecodeNext})).has_value());
}

}  // namespace
}  // namespace moxie
