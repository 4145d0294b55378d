// The prefix cache and the pools' order of eviction against a naive model that keeps every block by
// its tokens and every page in plain lists: hits, misses, free pages and what a listener is told
// are the same throughout.
#include "engine/prefix_cache.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <functional>
#include <list>
#include <map>

#include "engine/testing/cache_replay.h"
#include "engine/testing/fake_runner.h"

namespace moxie {
namespace {

using Tokens = std::vector<int32_t>;

// Pages of one kind without numbers: what they hold, who holds them, in which order they go.
class NaivePool {
 public:
  struct Page {
    int holders = 1;
    bool preferred = false;
    const Tokens* block = nullptr;  // if kept
  };
  explicit NaivePool(int32_t size) : size_(size) {}

  int32_t num_free() const { return size_ - num_held_; }
  Page* take(const std::function<void(const Tokens&)>& on_evict) {
    CHECK(num_free() > 0);
    if (num_held_ + static_cast<int32_t>(idle_.size()) == size_) {  // all free ones are kept
      auto victim = std::find_if(idle_.begin(), idle_.end(), [](Page* p) { return !p->preferred; });
      if (victim == idle_.end()) victim = idle_.begin();
      on_evict(*(*victim)->block);
      idle_.erase(victim);
    }
    ++num_held_;
    return &pages_.emplace_back();
  }
  void share(Page* page) {
    if (page->holders++ > 0) return;
    idle_.remove(page);
    ++num_held_;
  }
  void drop(Page* page) {
    if (--page->holders > 0) return;
    --num_held_;
    if (page->block != nullptr) idle_.push_back(page);
  }
  void prefer(Page* page) {
    if (page->preferred) return;
    page->preferred = true;
    if (page->holders > 0) return;
    idle_.remove(page);  // as if it had been let go of now
    idle_.push_back(page);
  }

 private:
  const int32_t size_;
  int32_t num_held_ = 0;
  std::list<Page> pages_;  // never shortened: addresses stay
  std::list<Page*> idle_;  // kept pages nobody holds, the one let go of first in front
};

// Cache and sequences by definition.
class NaiveCache {
 public:
  struct Block {
    NaivePool::Page *full = nullptr, *window = nullptr;
  };
  struct Sequence {
    Tokens tokens;
    std::vector<NaivePool::Page*> full, window;  // window: null where passed
  };
  NaiveCache(int32_t page_tokens, int32_t window, int32_t full_pages, int32_t window_pages)
      : page_tokens_(page_tokens), window_(window), full(full_pages), window_pool(window_pages) {}

  // The blocks of the longest hit, and how many have full pages.
  std::pair<int32_t, int32_t> find(const Tokens& prompt) const {
    int32_t hit = 0, known = 0;
    while ((known + 1) * page_tokens_ < static_cast<int32_t>(prompt.size())) {
      const Block* block = at(prompt, known);
      if (block == nullptr || block->full == nullptr) break;
      ++known;
      bool has_window = true;
      for (int32_t i = first_seen(known); i < known; ++i) {
        has_window &= at(prompt, i)->window != nullptr;
      }
      if (has_window) hit = known;
    }
    return {hit, known};
  }
  bool was_ever(const Tokens& prompt, int32_t block) const { return at(prompt, block) != nullptr; }
  // The tokens of each block that has a full page, with all before it.
  std::vector<Tokens> full_blocks() const {
    std::vector<Tokens> found;
    for (const auto& [tokens, block] : blocks_) {
      if (block.full != nullptr) found.push_back(tokens);
    }
    return found;
  }

  Sequence begin(const Tokens& prompt, int32_t num_blocks) {
    Sequence sequence;
    sequence.tokens.assign(prompt.begin(), prompt.begin() + num_blocks * page_tokens_);
    for (int32_t i = 0; i < num_blocks; ++i) {
      const Block& block = blocks_.at(key(prompt, i));
      full.share(block.full);
      sequence.full.push_back(block.full);
      const bool seen = i >= first_seen(num_blocks);
      if (seen) window_pool.share(block.window);
      sequence.window.push_back(seen ? block.window : nullptr);
    }
    return sequence;
  }
  // One chunk: pages, then blocks that are whole, then what the window has passed.
  void extend(Sequence& sequence, std::span<const int32_t> tokens) {
    const auto first_block = static_cast<int32_t>(sequence.tokens.size()) / page_tokens_;
    sequence.tokens.insert(sequence.tokens.end(), tokens.begin(), tokens.end());
    const auto length = static_cast<int32_t>(sequence.tokens.size());
    while (static_cast<int32_t>(sequence.full.size()) * page_tokens_ < length) {
      sequence.full.push_back(full.take([&](const Tokens& b) { blocks_.at(b).full = nullptr; }));
    }
    while (sequence.window.size() < sequence.full.size()) {
      sequence.window.push_back(
          window_pool.take([&](const Tokens& b) { blocks_.at(b).window = nullptr; }));
    }
    for (int32_t i = first_block; (i + 1) * page_tokens_ <= length; ++i) {
      const auto entry = blocks_.try_emplace(key(sequence.tokens, i)).first;
      const auto keep = [&](NaivePool::Page*& of_block, NaivePool::Page* own) {
        if (of_block != nullptr) return;
        of_block = own;
        own->block = &entry->first;
      };
      keep(entry->second.full, sequence.full[static_cast<size_t>(i)]);
      keep(entry->second.window, sequence.window[static_cast<size_t>(i)]);
    }
    const int32_t passed = std::max(0, length - window_ + 1) / page_tokens_;
    for (int32_t i = 0; i < std::min(passed, static_cast<int32_t>(sequence.window.size())); ++i) {
      NaivePool::Page*& page = sequence.window[static_cast<size_t>(i)];
      if (page != nullptr) window_pool.drop(page);
      page = nullptr;
    }
  }
  void expect_end(const Tokens& tokens, int32_t num_blocks) {
    for (int32_t i = first_seen(num_blocks); i < num_blocks; ++i) {
      const Block* block = at(tokens, i);
      if (block != nullptr && block->window != nullptr) window_pool.prefer(block->window);
    }
  }
  void end(Sequence& sequence) {
    for (size_t i = sequence.full.size(); i-- > 0;) full.drop(sequence.full[i]);
    for (size_t i = sequence.window.size(); i-- > 0;) {
      if (sequence.window[i] != nullptr) window_pool.drop(sequence.window[i]);
    }
  }

 private:
  Tokens key(const Tokens& tokens, int32_t block) const {
    return {tokens.begin(), tokens.begin() + (block + 1) * page_tokens_};
  }
  const Block* at(const Tokens& tokens, int32_t block) const {
    const auto found = blocks_.find(key(tokens, block));
    return found == blocks_.end() ? nullptr : &found->second;
  }
  // The first block with a key that the token behind `num_blocks` blocks sees.
  int32_t first_seen(int32_t num_blocks) const {
    return std::max(0, num_blocks * page_tokens_ - (window_ - 1)) / page_tokens_;
  }

  const int32_t page_tokens_, window_;
  std::map<Tokens, Block> blocks_;

 public:
  NaivePool full, window_pool;
};

std::vector<BlockHash> chain_of(const Tokens& tokens, int32_t page_tokens) {
  std::vector<BlockHash> chain;
  BlockHash hash = chain_start("");
  for (size_t at = 0; at + static_cast<size_t>(page_tokens) <= tokens.size();
       at += static_cast<size_t>(page_tokens)) {
    hash = chain_next(hash, std::span(tokens).subspan(at, static_cast<size_t>(page_tokens)));
    chain.push_back(hash);
  }
  return chain;
}

// Both, side by side.
class Pair {
 public:
  Pair(int32_t page_tokens, int32_t window, int32_t full_pages, int32_t window_pages)
      : page_tokens_(page_tokens),
        runner_({page_tokens, window, full_pages, window_pages}, {}),
        replay_(page_tokens),
        cache_(runner_.kv(), &replay_),
        naive_(page_tokens, window, full_pages, window_pages) {}

  size_t num_running() const { return running_.size(); }
  void begin(const Tokens& prompt) {
    const auto chain = chain_of(prompt, page_tokens_);
    const CacheReport report = cache_.find(chain, static_cast<int32_t>(prompt.size()));
    const auto [hit, known] = naive_.find(prompt);
    RC_ASSERT(report.hit_tokens == hit * page_tokens_);
    RC_ASSERT(report.full_tokens == known * page_tokens_);
    const bool all = (known + 1) * page_tokens_ >= static_cast<int32_t>(prompt.size());
    if (hit < known) {
      RC_ASSERT(report.miss == CacheMiss::kWindow);
    } else if (!all && !naive_.was_ever(prompt, known)) {
      RC_ASSERT(report.miss == (known == 0 ? CacheMiss::kUnseen : CacheMiss::kDiffers));
    } else if (all) {
      RC_ASSERT(report.miss == (known == 0 ? CacheMiss::kShort : CacheMiss::kNone));
    }
    const SeqId seq = hit > 0 ? cache_.take(chain, report.hit_tokens) : runner_.kv().add_sequence();
    running_.push_back({seq, prompt, naive_.begin(prompt, hit)});
    check();
  }
  // The next tokens of one, if pages are there.
  void extend(size_t which, int32_t count) {
    Running& run = running_[which % running_.size()];
    const size_t done = run.naive.tokens.size();
    count = std::min(count, static_cast<int32_t>(run.tokens.size() - done));
    KvCache& kv = runner_.kv();
    if (count == 0 || !kv.append(run.seq, count)) return;
    const auto part = std::span(run.tokens).subspan(done, static_cast<size_t>(count));
    const auto chain = chain_of(run.tokens, page_tokens_);
    for (size_t block = done / static_cast<size_t>(page_tokens_);
         (block + 1) * static_cast<size_t>(page_tokens_) <= done + part.size(); ++block) {
      cache_.insert(run.seq, static_cast<int32_t>(block), {chain, run.tokens, ""});
    }
    kv.release_window(run.seq);
    naive_.extend(run.naive, part);
    check();
  }
  void expect_end(size_t which) {
    const Running& run = running_[which % running_.size()];
    const auto chain = chain_of(run.naive.tokens, page_tokens_);
    cache_.expect_end(chain);
    naive_.expect_end(run.naive.tokens, static_cast<int32_t>(chain.size()));
    check();
  }
  void end(size_t which) {
    which %= running_.size();
    runner_.kv().free_sequence(running_[which].seq);
    naive_.end(running_[which].naive);
    running_.erase(running_.begin() + static_cast<int64_t>(which));
    check();
  }

 private:
  struct Running {
    SeqId seq;
    Tokens tokens;
    NaiveCache::Sequence naive;
  };
  void check() {
    runner_.kv().check_integrity();
    cache_.check_integrity();
    RC_ASSERT(runner_.kv().num_free_full_pages() == naive_.full.num_free());
    RC_ASSERT(runner_.kv().num_free_window_pages() == naive_.window_pool.num_free());
    CacheReplay::Names names;
    for (const Tokens& tokens : naive_.full_blocks()) {
      names.insert(CacheReplay::name_of(chain_of(tokens, page_tokens_).back()));
    }
    RC_ASSERT(replay_.held() == names);
  }

  const int32_t page_tokens_;
  FakeRunner runner_;
  CacheReplay replay_;
  PrefixCache cache_;
  NaiveCache naive_;
  std::vector<Running> running_;
};

Tokens random_prompt() {
  Tokens prompt;  // of few tokens, so that beginnings are shared
  const int32_t length = *rc::gen::inRange(1, 60), family = *rc::gen::inRange(0, 3);
  const int32_t own_from = *rc::gen::inRange(0, 80), own = *rc::gen::inRange(0, 4);
  for (int32_t i = 0; i < length; ++i) prompt.push_back(i < own_from ? family : 10 + own);
  return prompt;
}

TEST(PrefixCacheTest, HitsAndMissesAreThoseOfTheNaiveModelThroughEvictions) {
  const auto life = [] {
    Pair pair(*rc::gen::element(1, 3, 4, 16), *rc::gen::element(1, 2, 6, 20),
              *rc::gen::inRange(8, 80), *rc::gen::inRange(8, 80));
    const int num_events = *rc::gen::inRange(1, 120);
    for (int i = 0; i < num_events; ++i) {
      const int kind = *rc::gen::inRange(0, 8);
      const auto which = *rc::gen::inRange<size_t>(0, 32);
      if (pair.num_running() == 0 || (kind == 0 && pair.num_running() < 4)) {
        pair.begin(random_prompt());
      } else if (kind == 1) {
        pair.end(which);
      } else if (kind == 2) {
        pair.expect_end(which);
      } else {
        pair.extend(which, *rc::gen::inRange(1, 30));
      }
    }
    while (pair.num_running() > 0) pair.end(0);
  };
  EXPECT_TRUE(rc::check([&] {
    for (int i = 0; i < 5; ++i) life();
  }));
}

TEST(PrefixCacheTest, AListenerIsToldOfClearingButNotOfTheEnd) {
  CacheReplay replay(4);
  FakeRunner runner({.page_tokens = 4}, {});
  const Tokens tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  const auto chain = chain_of(tokens, 4);
  {
    PrefixCache cache(runner.kv(), &replay);
    const SeqId seq = runner.kv().add_sequence();
    ASSERT_TRUE(runner.kv().append(seq, 8));
    cache.insert(seq, 0, {chain, tokens, ""});
    cache.insert(seq, 0, {chain, tokens, ""});  // it has a page: nothing to tell
    cache.insert(seq, 1, {chain, tokens, ""});
    EXPECT_EQ(replay.held().size(), 2u);
    cache.clear();
    EXPECT_EQ(replay.held().size(), 0u);
    EXPECT_EQ(replay.num_cleared, 1);
    cache.insert(seq, 1, {chain, tokens, ""});
    EXPECT_EQ(replay.held().size(), 1u);
    runner.kv().free_sequence(seq);
  }
  EXPECT_EQ(replay.num_cleared, 1);
  EXPECT_EQ(replay.num_removed, 0);
}

TEST(PrefixCacheTest, ChainsNameTokensTheirOrderAndTheSalt) {
  const Tokens page = {1, 2, 3, 4}, turned = {1, 2, 4, 3};
  const BlockHash start = chain_start("");
  EXPECT_EQ(chain_next(start, page), chain_next(start, page));
  EXPECT_NE(chain_next(start, page), chain_next(start, turned));
  EXPECT_NE(chain_next(start, page), chain_next(chain_start("a"), page));
  EXPECT_NE(chain_next(chain_next(start, page), page), chain_next(start, page));
}

}  // namespace
}  // namespace moxie
