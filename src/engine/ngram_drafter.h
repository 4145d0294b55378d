// Drafts from the text itself (prompt lookup): where the last tokens of a request have occurred
// before, in its prompt or its answer, the tokens that followed them there are proposed. Rules as
// in vLLM: the longest match counts, and of equally long ones the earliest.
//
// An index per request keeps where each n-gram first ended. A proposal adds the tokens that came
// since the last one, so that its cost does not grow with the text. The index holds positions, not
// tokens: about 12 bytes a token and length of a match.
#pragma once

#include <unordered_map>
#include <vector>

#include "engine/drafter.h"

namespace moxie {

/// The lengths of matches, both ends included.
struct NgramLengths {
  int32_t min = 5, max = 5;
};
inline constexpr int32_t kLongestNgram = 64;

/// Where the n-grams of a growing text first ended.
class NgramIndex {
 public:
  explicit NgramIndex(NgramLengths lengths);

  /// Appends to `drafts` at most `limit` tokens, those behind the first occurrence of the longest
  /// match of the last tokens; none if there is no match. `tokens` must begin with the tokens of
  /// the last call.
  void propose(std::span<const int32_t> tokens, int32_t limit, std::vector<int32_t>* drafts);
  uint64_t bytes() const;

 private:
  // The ends of n-grams of one length, by their hash; open addressing.
  struct Table {
    std::vector<int32_t> ends;  // 0: empty
    size_t num_used = 0;
  };
  int32_t length_of(size_t table) const { return lengths_.min + static_cast<int32_t>(table); }
  /// Hashes of the n-grams of all lengths that end at `end`; returns how many lengths fit.
  size_t hash(std::span<const int32_t> tokens, size_t end);
  int32_t* find(Table& table, uint64_t hash, std::span<const int32_t> tokens, size_t end,
                int32_t length) const;
  void add(std::span<const int32_t> tokens, size_t end);
  void grow(size_t table, std::span<const int32_t> tokens);

  const NgramLengths lengths_;
  std::vector<Table> tables_;     // one a length
  std::vector<uint64_t> hashes_;  // scratch, one a length
  size_t num_known_ = 0;          // n-grams that end here or before are in the tables
};

class NgramDrafter : public Drafter {
 public:
  explicit NgramDrafter(NgramLengths lengths) : lengths_(lengths) {}

  void propose(const Ask& ask) override;
  void observe(RequestId, std::span<const int32_t>, int32_t) override {}  // propose() sees it all
  bool may_miss_launches() const override { return true; }
  void forget(RequestId request) override { indices_.erase(request); }

  size_t num_requests() const { return indices_.size(); }

 private:
  const NgramLengths lengths_;
  std::unordered_map<RequestId, NgramIndex> indices_;
};

}  // namespace moxie
