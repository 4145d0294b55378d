// A listener of a prefix cache that replays what it is told, and fails for a call that cannot be:
// a block stored twice, one removed that was not stored, a name that its tokens do not have.
#pragma once

#include <set>
#include <utility>

#include "engine/prefix_cache.h"

namespace moxie {

class CacheReplay : public CacheListener {
 public:
  using Names = std::set<std::pair<uint64_t, uint64_t>>;
  explicit CacheReplay(int32_t page_tokens) : page_tokens_(static_cast<size_t>(page_tokens)) {}

  static std::pair<uint64_t, uint64_t> name_of(const BlockHash& hash) {
    return {hash.low, hash.high};
  }
  /// The blocks that have a page of the full layers.
  const Names& held() const { return held_; }

  void on_stored(const NamedTokens& named) override {
    CHECK(!named.chain.empty() && named.tokens.size() == named.chain.size() * page_tokens_);
    BlockHash hash = chain_start(named.salt);
    for (size_t i = 0; i < named.chain.size(); ++i) {
      hash = chain_next(hash, named.tokens.subspan(i * page_tokens_, page_tokens_));
      CHECK(hash == named.chain[i], "a name of other tokens");
    }
    CHECK(held_.insert(name_of(hash)).second, "stored twice");
  }
  void on_removed(const BlockHash& hash) override {
    CHECK(held_.erase(name_of(hash)) == 1, "removed, but not stored");
    ++num_removed;
  }
  void on_cleared() override {
    held_.clear();
    ++num_cleared;
  }

  int64_t num_removed = 0, num_cleared = 0;

 private:
  const size_t page_tokens_;
  Names held_;
};

}  // namespace moxie
