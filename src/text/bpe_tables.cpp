// XXH3 over the bytes of a piece; Fibonacci hashing over a pair of ids. Both tables probe linearly
// and stay at most half full.
#include "text/bpe_tables.h"

#include <algorithm>
#include <bit>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/base.h"

namespace moxie {

void TokenBytes::set(int32_t id, std::string_view bytes) {
  CHECK(id >= 0 && static_cast<uint32_t>(id) < kMaxTokens && !has(id));
  CHECK(bytes_.size() + bytes.size() <= UINT32_MAX);
  if (static_cast<size_t>(id) >= spans_.size()) spans_.resize(static_cast<size_t>(id) + 1);
  spans_[static_cast<size_t>(id)] = {static_cast<uint32_t>(bytes_.size()),
                                     static_cast<uint32_t>(bytes.size())};
  bytes_ += bytes;
}

void TokenBytes::reserve(size_t num_ids, size_t num_bytes) {
  spans_.reserve(num_ids);
  bytes_.reserve(num_bytes);
}

void TokenIndex::reserve(size_t num_tokens) {
  CHECK(num_used_ == 0);
  slots_.assign(std::bit_ceil(std::max<size_t>(num_tokens, 8) * 2), Slot{});
}

void TokenIndex::grow() {
  std::vector<Slot> old(std::max<size_t>(slots_.size() * 2, 16));
  std::swap(old, slots_);
  // The tag is the low half of the hash and slots are chosen by it, so no bytes are needed here.
  for (const Slot& slot : old) {
    if (slot.id == kNoToken) continue;
    size_t at = slot.tag & (slots_.size() - 1);
    while (slots_[at].id != kNoToken) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = slot;
  }
}

int32_t TokenIndex::insert(int32_t id, const TokenBytes& tokens) {
  if ((num_used_ + 1) * 2 > slots_.size()) grow();
  const std::string_view bytes = tokens.at(id);
  const uint32_t tag = static_cast<uint32_t>(XXH3_64bits(bytes.data(), bytes.size()));
  size_t at = tag & (slots_.size() - 1);
  for (; slots_[at].id != kNoToken; at = (at + 1) & (slots_.size() - 1)) {
    if (slots_[at].tag == tag && tokens.at(slots_[at].id) == bytes) return slots_[at].id;
  }
  slots_[at] = {id, tag};
  ++num_used_;
  return kNoToken;
}

int32_t TokenIndex::find(std::string_view bytes, const TokenBytes& tokens) const {
  if (slots_.empty()) return kNoToken;
  const uint32_t tag = static_cast<uint32_t>(XXH3_64bits(bytes.data(), bytes.size()));
  for (size_t at = tag & (slots_.size() - 1); slots_[at].id != kNoToken;
       at = (at + 1) & (slots_.size() - 1)) {
    if (slots_[at].tag == tag && tokens.at(slots_[at].id) == bytes) return slots_[at].id;
  }
  return kNoToken;
}

void MergeIndex::reserve(size_t num_pairs) {
  const size_t num_slots = std::bit_ceil(std::max<size_t>(num_pairs, 8) * 2);
  if (num_slots <= slots_.size()) return;
  std::vector<uint64_t> old(num_slots, kFree);
  std::swap(old, slots_);
  shift_ = 64 - static_cast<uint32_t>(std::countr_zero(num_slots));
  num_used_ = 0;
  for (const uint64_t slot : old) {
    if (slot == kFree) continue;
    const uint64_t key = slot >> kRankBits;
    insert(static_cast<int32_t>(key >> kIdBits), static_cast<int32_t>(key & (kMaxTokens - 1)),
           static_cast<uint32_t>(slot & kMaxRanks));
  }
}

void MergeIndex::insert(int32_t left, int32_t right, uint32_t rank) {
  CHECK(rank < kMaxRanks);
  if ((num_used_ + 1) * 2 > slots_.size()) reserve(num_used_ + 1);
  const uint64_t key = key_of(left, right);
  size_t at = home_of(key);
  for (; slots_[at] != kFree; at = (at + 1) & (slots_.size() - 1)) {
    if (slots_[at] >> kRankBits != key) continue;
    slots_[at] = std::min(slots_[at], key << kRankBits | rank);
    return;
  }
  slots_[at] = key << kRankBits | rank;
  ++num_used_;
}

uint32_t MergeIndex::rank_of(int32_t left, int32_t right) const {
  if (slots_.empty()) return kNoRank;
  const uint64_t key = key_of(left, right);
  for (size_t at = home_of(key); slots_[at] != kFree; at = (at + 1) & (slots_.size() - 1)) {
    if (slots_[at] >> kRankBits == key) return static_cast<uint32_t>(slots_[at] & kMaxRanks);
  }
  return kNoRank;
}

}  // namespace moxie
