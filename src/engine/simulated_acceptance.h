// Acceptance of drafts by rates instead of by comparing tokens: for benchmarks of models whose
// weights are synthetic, which accept nothing.
//
// The rates are unconditional: rate i is the share of launches whose drafts are accepted up to
// place i. The drafts are random tokens, so that they route to experts independently of each other
// and of the text, as neighbours of a real text do at worst. What a drafter proposes for such a
// text would often be one token again and again, which would read the same experts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moxie {

class SimulatedAcceptance {
 public:
  /// `rates` are borrowed; they do not increase. Empty: there is no simulation.
  SimulatedAcceptance(std::span<const float> rates, uint64_t seed) : rates_(rates), state_(seed) {}

  bool is_on() const { return !rates_.empty(); }
  /// Replaces `drafts` by `count` random tokens of the vocabulary.
  void fill(int32_t count, int32_t vocab, std::vector<int32_t>* drafts) {
    drafts->clear();
    for (int32_t i = 0; i < count; ++i) {
      drafts->push_back(static_cast<int32_t>(next() % static_cast<uint64_t>(vocab)));
    }
  }
  /// How many of a launch's drafts are accepted. One draw decides: it is below rate i with that
  /// probability, and then below all rates before.
  int32_t num_accepted(int32_t num_drafts) {
    const double drawn = static_cast<double>(next() >> 11) * 0x1p-53;
    int32_t count = 0;
    while (count < num_drafts && static_cast<size_t>(count) < rates_.size() &&
           drawn < static_cast<double>(rates_[static_cast<size_t>(count)])) {
      ++count;
    }
    return count;
  }

 private:
  uint64_t next() {  // splitmix64
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
  }

  std::span<const float> rates_;
  uint64_t state_;
};

}  // namespace moxie
