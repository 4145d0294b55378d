// Which pages of the KV cache hold the keys of which beginning of a prompt, so that a prompt that
// begins as an earlier one did is not computed again.
//
// A block is a page's worth of tokens with all tokens before it, named by a chain of XXH3-128
// hashes that starts at the request's salt. A block may have a page of the full layers, one of the
// window layers, or both. A hit that ends after block e needs the full pages of blocks 0 .. e - 1
// and the window pages that hold the keys which the next token sees: those of the last window - 1
// tokens. Which pages leave first is the pools' matter (kv.h): pages no sequence holds, the least
// recently used first, window pages where no hit is expected to end before the others.
// Not thread-safe: one scheduling thread owns it.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/kv.h"

namespace moxie {

/// Why no more of a prompt was found.
enum class CacheMiss : uint8_t {
  kNone,      ///< all that can be shared was: whole pages, without the last token
  kOff,       ///< the cache is off, or the request did not want it
  kShort,     ///< the prompt is not longer than a page
  kUnseen,    ///< no cached prompt begins with the same page of tokens
  kDiffers,   ///< cached prompts go on otherwise after the hit
  kEvicted,   ///< it was there, and its pages went to others since
  kWindow,    ///< the full layers' pages are there, the window layers' are not
  kLogprobs,  ///< the prompt's log-probabilities were asked for: it has to be computed
};
const char* cache_miss_name(CacheMiss miss);

struct CacheReport {
  int32_t hit_tokens = 0;
  CacheMiss miss = CacheMiss::kOff;
  int32_t full_tokens = 0;  ///< tokens whose full pages were there: hit_tokens or more
  /// A sentence for people: "1,024 of 1,500 prompt tokens; ...".
  std::string text(int32_t prompt_tokens) const;
};

/// A block's name.
struct BlockHash {
  uint64_t low = 0, high = 0;
  bool operator==(const BlockHash&) const = default;
};

/// The first link of a salt's chains, and the link after `before` for a page of tokens.
BlockHash chain_start(std::string_view salt);
BlockHash chain_next(const BlockHash& before, std::span<const int32_t> page);

class PrefixCache {
 public:
  /// Of this cache, which must outlive it; two at once on one cache do not work.
  explicit PrefixCache(KvCache& kv);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  /// The longest hit of a prompt of `prompt_tokens` tokens with these whole pages; it leaves at
  /// least one token to compute.
  CacheReport find(std::span<const BlockHash> chain, int32_t prompt_tokens) const;
  /// A sequence that holds the pages of a hit which find() has just told.
  SeqId take(std::span<const BlockHash> chain, int32_t hit_tokens);
  /// The sequence's page `block_idx` is whole (or will be before anything that is launched later
  /// reads it): its pages become those of the block, unless it has some.
  void insert(SeqId seq, int32_t block_idx, const BlockHash& hash);
  /// A hit is expected to end after these blocks: their last window pages are worth more.
  void expect_end(std::span<const BlockHash> chain);
  /// Forgets all blocks.
  void clear();

  int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()) - num_ghosts_; }
  /// CHECKs that blocks and pages name each other.
  void check_integrity() const;

 private:
  struct Block {
    int32_t full = -1, window = -1;
    uint64_t ghost_number = 0;  // of its entry in ghosts_, if it has no pages
    bool is_ghost() const { return full < 0 && window < 0; }
  };
  struct HashOfHash {
    size_t operator()(const BlockHash& hash) const { return hash.low; }
  };
  using Blocks = std::unordered_map<BlockHash, Block, HashOfHash>;

  int32_t first_window_block(int32_t num_blocks) const;
  void attach(SeqId seq, int32_t block_idx, PageKind kind, Blocks::value_type& entry);
  void on_evict(PageKind kind, int32_t page);
  std::vector<Blocks::value_type*>& owners(PageKind kind) {
    return kind == PageKind::kFull ? full_owners_ : window_owners_;
  }

  KvCache& kv_;
  const bool has_full_, has_window_;
  Blocks blocks_;
  std::vector<Blocks::value_type*> full_owners_, window_owners_;  // by page; null: none
  // Blocks that have lost all pages are remembered for a while, to tell what was evicted from what
  // never was.
  std::deque<std::pair<uint64_t, BlockHash>> ghosts_;
  uint64_t last_ghost_ = 0;
  int64_t num_ghosts_ = 0;
  std::vector<int32_t> full_scratch_, window_scratch_;
};

}  // namespace moxie
