// Threads that exchange arrays, and ranks that do not come.
#include "core/rank_link.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

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

TEST(RankLink, EveryRankSeesAllArraysInOrderOfRanks) {
  for (const int32_t size : {1, 2, 4, 7}) {
    const auto links = make_thread_links(size);
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

TEST(RankLink, ARankThatDoesNotComeIsNamed) {
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

TEST(RankLink, AFaultEndsTheWaitOfAllRanks) {
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
