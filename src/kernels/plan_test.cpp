// The planner against all chains, one by one, on random tables.
#include "kernels/plan.h"

#include <gtest/gtest.h>

#include <random>

namespace moxie {
namespace {

// Every chain from (border, state) to the end, by trying all hops: the least cost, or nothing.
std::optional<double> least_by_trying_all(std::span<const Hop> hops, int32_t border, int32_t state,
                                          int32_t last) {
  if (border == last) return state == 0 ? std::optional(0.0) : std::nullopt;
  std::optional<double> least;
  for (const Hop& hop : hops) {
    if (hop.from != border || hop.from_state != state) continue;
    const auto rest = least_by_trying_all(hops, hop.to, hop.to_state, last);
    if (rest && (!least || hop.us + *rest < *least)) least = hop.us + *rest;
  }
  return least;
}

void expect_is_chain(std::span<const Hop> hops, const Chain& chain, int32_t last) {
  int32_t border = 0, state = 0;
  double us = 0;
  for (const size_t i : chain.hops) {
    ASSERT_LT(i, hops.size());
    EXPECT_EQ(hops[i].from, border);
    EXPECT_EQ(hops[i].from_state, state);
    border = hops[i].to;
    state = hops[i].to_state;
    us += hops[i].us;
  }
  EXPECT_EQ(border, last);
  EXPECT_EQ(state, 0);
  EXPECT_DOUBLE_EQ(us, chain.us);
}

TEST(CheapestChain, IsThatOfTryingAllOnRandomTables) {
  std::mt19937 random(7);
  const auto below = [&](int n) {
    return static_cast<int32_t>(random() % static_cast<unsigned>(n));
  };
  int num_found = 0, num_none = 0;
  for (int table = 0; table < 1000; ++table) {
    const int32_t last = 1 + below(5), states = 1 + below(3);
    std::vector<Hop> hops(static_cast<size_t>(1 + below(14)));
    for (Hop& hop : hops) {
      hop.from = below(last);
      hop.to = hop.from + 1 + below(std::min(last - hop.from, 3));
      hop.from_state = hop.from == 0 ? 0 : below(states);
      hop.to_state = hop.to == last ? 0 : below(states);
      hop.us = below(20);  // whole numbers: equal costs are common
    }
    const auto expected = least_by_trying_all(hops, 0, 0, last);
    const auto chain = cheapest_chain(hops, last);
    ASSERT_EQ(chain.has_value(), expected.has_value()) << "table " << table;
    if (!chain) {
      ++num_none;
      continue;
    }
    ++num_found;
    EXPECT_DOUBLE_EQ(chain->us, *expected) << "table " << table;
    expect_is_chain(hops, *chain, last);
    EXPECT_EQ(cheapest_chain(hops, last)->hops, chain->hops) << "made twice";
  }
  EXPECT_GT(num_found, 200);
  EXPECT_GT(num_none, 50);
}

TEST(CheapestChain, TakesTheFirstOfEquals) {
  const std::vector<Hop> hops = {{.from = 0, .to = 1, .us = 2}, {.from = 0, .to = 1, .us = 2}};
  EXPECT_EQ(cheapest_chain(hops, 1)->hops, std::vector<size_t>{0});
}

TEST(CheapestChain, AHopOverSeveralStepsWinsWhereItCostsLess) {
  std::vector<Hop> hops = {
      {.from = 0, .to = 1, .us = 2}, {.from = 1, .to = 2, .us = 2}, {.from = 0, .to = 2, .us = 5}};
  EXPECT_EQ(cheapest_chain(hops, 2)->hops, (std::vector<size_t>{0, 1}));
  hops[2].us = 3;
  EXPECT_EQ(cheapest_chain(hops, 2)->hops, std::vector<size_t>{2});
}

TEST(CheapestChain, FormsThatDoNotMeetAreNoChain) {
  const std::vector<Hop> hops = {{.from = 0, .to = 1, .to_state = 1}, {.from = 1, .to = 2}};
  EXPECT_FALSE(cheapest_chain(hops, 2).has_value());
}

}  // namespace
}  // namespace moxie
