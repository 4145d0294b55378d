// A drafter that knows the next tokens of a request, and can be told to propose right, wrong, too
// few or too many. It CHECKs that it is told of every token, in order, and of every end.
#pragma once

#include <algorithm>
#include <functional>
#include <unordered_map>
#include <vector>

#include "core/base.h"
#include "engine/drafter.h"

namespace moxie {

class StandInDrafter : public Drafter {
 public:
  /// All tokens of the request, prompt and answer. Unknown tokens are not proposed.
  using Truth = std::function<std::vector<int32_t>(RequestId request)>;
  enum class Manner : uint8_t {
    kRight,    ///< as many as asked for
    kWrong,    ///< right up to a place, from there on other tokens of the vocabulary
    kShort,    ///< fewer, or none
    kTooLong,  ///< more than asked for, or numbers that are no ids
    kAnyOf,    ///< one of them each time
  };
  StandInDrafter(Truth truth, int32_t vocab, Manner manner, uint64_t seed)
      : truth_(std::move(truth)), vocab_(vocab), manner_(manner), state_(seed) {}

  void propose(const Ask& ask) override {
    const auto [request, seq, tokens, limit, drafts] = ask;
    CHECK(drafts->empty() && limit > 0);
    Known& known = known_[request];
    CHECK(!known.has_ended);
    if (known.truth.empty()) {
      known.truth = truth_(request);
      known.num_prompt = tokens.size() - known.num_told;
    }
    const std::vector<int32_t>& truth = known.truth;
    CHECK(tokens.size() == known.num_prompt + known.num_told, "tokens that it was not told of");
    CHECK(std::equal(tokens.begin(), tokens.end(), truth.begin(),
                     truth.begin() + std::min(tokens.size(), truth.size())),
          "another text");
    const Manner manner = manner_ == Manner::kAnyOf ? static_cast<Manner>(next(4)) : manner_;
    size_t count = static_cast<size_t>(limit);
    if (manner == Manner::kShort) count = next(count);  // of one, none
    if (manner == Manner::kTooLong) count += 1 + next(9);
    const size_t wrong_from = manner == Manner::kWrong ? next(count) : count;
    for (size_t i = 0; i < count; ++i) {
      const bool is_known = tokens.size() + i < truth.size();
      int32_t id = is_known ? truth[tokens.size() + i]
                            : static_cast<int32_t>(next(static_cast<size_t>(vocab_)));
      if (!is_known && manner != Manner::kTooLong) break;
      if (i >= wrong_from)
        id = (id + 1 + static_cast<int32_t>(next(static_cast<size_t>(vocab_) - 1))) % vocab_;
      if (manner == Manner::kTooLong && next(8) == 0) id = next(2) == 0 ? -1 : vocab_;
      drafts->push_back(id == never_ ? (id + 1) % vocab_ : id);
    }
    known.proposed = *drafts;
  }
  void observe(RequestId request, std::span<const int32_t> tokens, int32_t num_accepted) override {
    Known& known = known_[request];
    CHECK(!known.has_ended && !tokens.empty());
    CHECK(std::cmp_equal(tokens.size(), num_accepted + 1));
    CHECK(std::cmp_less_equal(num_accepted, known.proposed.size()));
    CHECK(std::equal(tokens.begin(), tokens.end() - 1, known.proposed.begin()));
    known.proposed.clear();
    known.num_told += tokens.size();
  }
  void forget(RequestId request) override {
    CHECK(!known_[request].has_ended);
    known_[request].has_ended = true;
  }
  bool has_forgotten(RequestId request) const {
    const auto found = known_.find(request);
    return found != known_.end() && found->second.has_ended;
  }
  bool may_miss_launches() const override { return may_miss_; }
  void let_miss_launches(bool may_miss) { may_miss_ = may_miss; }
  /// An id that is never proposed.
  void avoid(int32_t id) { never_ = id; }

 private:
  struct Known {
    std::vector<int32_t> truth, proposed;
    size_t num_prompt = 0, num_told = 0;
    bool has_ended = false;
  };
  // From 0 to count - 1 (splitmix64).
  size_t next(size_t count) {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return static_cast<size_t>((z ^ z >> 31) % count);
  }

  const Truth truth_;
  const int32_t vocab_;
  const Manner manner_;
  uint64_t state_;
  int32_t never_ = -2;
  bool may_miss_ = false;
  std::unordered_map<RequestId, Known> known_;
};

}  // namespace moxie
