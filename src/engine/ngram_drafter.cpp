// The index of n-grams. A slot holds the end of an n-gram, whose tokens are compared in the text:
// equal hashes of different n-grams cost a step and no match.
#include "engine/ngram_drafter.h"

#include <algorithm>

#include "core/base.h"

namespace moxie {

NgramIndex::NgramIndex(NgramLengths lengths)
    : lengths_(lengths),
      tables_(static_cast<size_t>(lengths.max - lengths.min + 1)),
      hashes_(tables_.size()) {
  CHECK(lengths.min >= 1 && lengths.min <= lengths.max && lengths.max <= kLongestNgram);
}

void NgramIndex::propose(std::span<const int32_t> tokens, int32_t limit,
                         std::vector<int32_t>* drafts) {
  CHECK(num_known_ <= tokens.size());
  // An occurrence ends before the last token, or it would be the match itself.
  while (num_known_ + 1 < tokens.size()) add(tokens, ++num_known_);
  for (size_t t = hash(tokens, tokens.size()); t-- > 0;) {
    if (tables_[t].ends.empty()) continue;
    const auto end =
        static_cast<size_t>(*find(tables_[t], hashes_[t], tokens, tokens.size(), length_of(t)));
    if (end == 0) continue;
    const auto behind = tokens.subspan(end);
    const auto count = std::min(behind.size(), static_cast<size_t>(limit));
    drafts->insert(drafts->end(), behind.begin(), behind.begin() + static_cast<int64_t>(count));
    return;
  }
}

// From the last token backwards, so that a hash goes on from that of the length before
// (splitmix64).
size_t NgramIndex::hash(std::span<const int32_t> tokens, size_t end) {
  uint64_t h = 0;
  size_t num_lengths = 0;
  const auto most = std::min(end, static_cast<size_t>(lengths_.max));
  for (size_t i = 1; i <= most; ++i) {
    h = (h ^ static_cast<uint32_t>(tokens[end - i])) + 0x9E3779B97F4A7C15u;
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9u;
    h = (h ^ h >> 27) * 0x94D049BB133111EBu;
    h ^= h >> 31;
    if (std::cmp_greater_equal(i, lengths_.min)) hashes_[num_lengths++] = h;
  }
  return num_lengths;
}

// The slot of the n-gram that ends at `end`; empty if the table does not have the n-gram.
int32_t* NgramIndex::find(Table& table, uint64_t hash, std::span<const int32_t> tokens, size_t end,
                          int32_t length) const {
  const auto n = static_cast<size_t>(length);
  const size_t mask = table.ends.size() - 1;
  for (size_t slot = hash & mask;; slot = (slot + 1) & mask) {
    int32_t* const found = &table.ends[slot];
    if (*found == 0) return found;
    const auto first = tokens.begin() + (*found - length);
    if (std::equal(first, first + length, tokens.begin() + static_cast<int64_t>(end - n))) {
      return found;
    }
  }
}

void NgramIndex::add(std::span<const int32_t> tokens, size_t end) {
  for (size_t t = 0, count = hash(tokens, end); t < count; ++t) {
    Table& table = tables_[t];
    if (table.num_used * 2 >= table.ends.size()) {
      grow(t, tokens);
      hash(tokens, end);
    }
    int32_t* const slot = find(table, hashes_[t], tokens, end, length_of(t));
    if (*slot != 0) continue;  // the earliest one stays
    *slot = static_cast<int32_t>(end);
    ++table.num_used;
  }
}

void NgramIndex::grow(size_t t, std::span<const int32_t> tokens) {
  constexpr size_t kFirst = 64;
  Table& table = tables_[t];
  const std::vector<int32_t> old = std::move(table.ends);
  table.ends.assign(std::max(kFirst, 2 * old.size()), 0);
  for (const int32_t end : old) {
    if (end == 0) continue;
    hash(tokens, static_cast<size_t>(end));
    *find(table, hashes_[t], tokens, static_cast<size_t>(end), length_of(t)) = end;
  }
}

uint64_t NgramIndex::bytes() const {
  uint64_t total = 0;
  for (const Table& table : tables_) total += table.ends.capacity() * sizeof(int32_t);
  return total;
}

void NgramDrafter::propose(const Ask& ask) {
  NgramIndex& index = indices_.try_emplace(ask.request, lengths_).first->second;
  index.propose(ask.tokens, ask.limit, ask.drafts);
}

}  // namespace moxie
