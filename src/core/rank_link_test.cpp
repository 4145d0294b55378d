// Threads that exchange arrays, and ranks that do not come.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "core/rank_socket.h"

namespace moxie {
namespace {

using std::chrono::milliseconds;

// Runs `body` with each rank's link on a thread of its own.
template <typename Body>
void on_ranks(const std::vector<std::unique_ptr<RankLink>>& links, Body&& body) {
  std::vector<std::thread> threads;
  for (const auto& link : links) threads.emplace_back([&] { body(*link); });
  for (std::thread& thread : threads) thread.join();
}

// Every two ranks have a connection, as processes do.
std::vector<std::unique_ptr<RankLink>> socket_links(int32_t size, milliseconds patience) {
  const auto deadline = Clock::now() + std::chrono::seconds(20);
  const auto count = static_cast<size_t>(size);
  std::vector<std::vector<RankSocket>> sockets(count);
  for (auto& of_rank : sockets) of_rank.resize(count);
  for (size_t a = 0; a < count; ++a) {
    for (size_t b = a + 1; b < count; ++b) {
      const auto listener = RankSocket::listen(0);
      CHECK(listener.has_value());
      auto left = RankSocket::connect("127.0.0.1", listener->port(), deadline);
      auto right = listener->accept(deadline);
      CHECK(left && right);
      sockets[a][b] = std::move(*left);
      sockets[b][a] = std::move(*right);
    }
  }
  std::vector<std::unique_ptr<RankLink>> links;
  for (int32_t rank = 0; rank < size; ++rank)
    links.push_back(
        make_socket_link(rank, std::move(sockets[static_cast<size_t>(rank)]), patience));
  return links;
}

struct LinksOf {
  const char* name;
  std::vector<std::unique_ptr<RankLink>> (*make)(int32_t size, milliseconds patience);
};
void PrintTo(const LinksOf& links, std::ostream* out) { *out << links.name; }
class RankLinkTest : public testing::TestWithParam<LinksOf> {};
INSTANTIATE_TEST_SUITE_P(Kinds, RankLinkTest,
                         testing::Values(LinksOf{"threads", make_thread_links},
                                         LinksOf{"sockets", socket_links}));

TEST_P(RankLinkTest, EveryRankSeesAllArraysInOrderOfRanks) {
  for (const int32_t size : {1, 2, 4, 7}) {
    const auto links = GetParam().make(size, std::chrono::seconds(10));
    // An array may be written again after the next exchange.
    struct Arrays {
      float values[2][3];
    };
    std::vector<Arrays> arrays(static_cast<size_t>(size));
    on_ranks(links, [&](RankLink& link) {
      EXPECT_EQ(link.size(), size);
      auto& values = arrays[static_cast<size_t>(link.rank())].values;
      for (int round = 0; round < 2000; ++round) {
        float* mine = values[round % 2];
        for (int i = 0; i < 3; ++i) mine[i] = static_cast<float>(100 * link.rank() + round + i);
        const auto all = link.exchange({mine, 1 + link.rank() % 3});
        ASSERT_EQ(all.size(), static_cast<size_t>(size));
        for (int32_t rank = 0; rank < size; ++rank) {
          ASSERT_EQ(all[static_cast<size_t>(rank)].count, 1 + rank % 3);
          ASSERT_EQ(all[static_cast<size_t>(rank)].data[0], static_cast<float>(100 * rank + round));
        }
      }
      EXPECT_TRUE(link.status().has_value());
    });
  }
}

// More than any buffer between two processes holds, both ways at once.
TEST(SocketLinks, LargeArraysPassEachOther) {
  const auto links = socket_links(3, std::chrono::seconds(10));
  on_ranks(links, [&](RankLink& link) {
    std::vector<float> mine(4'000'000, static_cast<float>(link.rank()));
    for (int round = 0; round < 3; ++round) {
      const auto all = link.exchange({mine.data(), static_cast<int64_t>(mine.size())});
      ASSERT_EQ(all.size(), 3u);
      for (size_t rank = 0; rank < 3; ++rank) {
        ASSERT_EQ(all[rank].count, static_cast<int64_t>(mine.size()));
        const auto* const end = all[rank].data + all[rank].count;
        ASSERT_EQ(std::count(all[rank].data, end, static_cast<float>(rank)), all[rank].count);
      }
    }
  });
}

TEST(SocketLinks, ARankThatEndsIsNamedAtOnce) {
  auto links = socket_links(3, std::chrono::seconds(60));
  EXPECT_FALSE(links[0]->lost_rank().has_value());
  links[1].reset();
  EXPECT_EQ(links[0]->lost_rank(), 1);
  const float value = 1;
  EXPECT_TRUE(links[0]->exchange({&value, 1}).empty());
  const auto status = links[0]->status();
  ASSERT_FALSE(status.has_value());
  EXPECT_NE(status.error().message().find("rank 1 (127.0.0.1) has ended"), std::string::npos)
      << status.error().message();
  // Whoever has a fault ends its connections: the others do not wait for it.
  EXPECT_TRUE(links[2]->exchange({&value, 1}).empty());
  EXPECT_FALSE(links[2]->status().has_value());
}

TEST(SocketLinks, ARankThatDoesNotComeIsNamed) {
  const auto links = socket_links(2, milliseconds(50));
  const float value = 1;
  EXPECT_TRUE(links[1]->exchange({&value, 1}).empty());
  EXPECT_NE(links[1]->status().error().message().find("rank 0 (127.0.0.1) has not answered"),
            std::string::npos);
}

TEST(ThreadLinks, ARankThatDoesNotComeIsNamed) {
  const auto links = make_thread_links(3, milliseconds(50));
  on_ranks(links, [](RankLink& link) {
    const float value = 0;
    EXPECT_EQ(link.exchange({&value, 1}).size(), 3u);
    if (link.rank() == 1) return;
    EXPECT_TRUE(link.exchange({&value, 1}).empty());
  });
  for (const auto& link : links) {
    ASSERT_FALSE(link->status().has_value());
    EXPECT_NE(link->status().error().message().find("rank 1 has not answered"), std::string::npos)
        << link->status().error().message();
  }
}

TEST(ThreadLinks, AFaultEndsTheWaitOfAllRanks) {
  const auto links = make_thread_links(2, std::chrono::hours(1));
  on_ranks(links, [](RankLink& link) {
    if (link.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(20));
      return link.set_fault("out of memory");
    }
    const float value = 0;
    EXPECT_TRUE(link.exchange({&value, 1}).empty());
    EXPECT_TRUE(link.exchange({&value, 1}).empty()) << "and so it stays";
  });
  links[1]->set_fault("another");
  EXPECT_NE(links[0]->status().error().message().find("out of memory"), std::string::npos);
}

}  // namespace
}  // namespace moxie
