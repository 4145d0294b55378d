// Dijkstra's search without a queue: borders are in order, so that the cost of each is final when
// the search reaches it.
#include "kernels/plan.h"

#include <algorithm>
#include <limits>

#include "core/base.h"

namespace moxie {

std::optional<Chain> cheapest_chain(std::span<const Hop> hops, int32_t last) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  constexpr size_t kNone = SIZE_MAX;
  int32_t num_states = 1;
  for (const Hop& hop : hops) {
    CHECK(hop.from >= 0 && hop.from < hop.to && hop.to <= last && hop.us >= 0);
    CHECK(hop.from_state >= 0 && hop.to_state >= 0);
    num_states = std::max({num_states, hop.from_state + 1, hop.to_state + 1});
  }
  struct Reached {
    double us = kNever;
    size_t by = kNone;
  };
  const auto place = [&](int32_t border, int32_t state) {
    return static_cast<size_t>(border) * static_cast<size_t>(num_states) +
           static_cast<size_t>(state);
  };
  std::vector<Reached> reached(place(last + 1, 0));
  reached[place(0, 0)].us = 0;
  for (int32_t border = 0; border < last; ++border) {
    for (size_t i = 0; i < hops.size(); ++i) {
      const Hop& hop = hops[i];
      if (hop.from != border) continue;
      const double us = reached[place(border, hop.from_state)].us + hop.us;
      Reached& there = reached[place(hop.to, hop.to_state)];
      if (us < there.us) there = {us, i};
    }
  }
  const Reached& end = reached[place(last, 0)];
  if (end.us == kNever) return std::nullopt;
  Chain chain{.hops = {}, .us = end.us};
  for (int32_t border = last, state = 0; border > 0;) {
    const size_t by = reached[place(border, state)].by;
    chain.hops.push_back(by);
    border = hops[by].from;
    state = hops[by].from_state;
  }
  std::reverse(chain.hops.begin(), chain.hops.end());
  return chain;
}

}  // namespace moxie
