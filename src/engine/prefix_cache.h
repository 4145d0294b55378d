// Finds the pages of the KV cache that hold the keys of a prompt's beginning, so that a prompt that
// begins like an earlier one is not computed again.
//
// A block is one page of tokens together with all tokens before it. Its name is a chain of XXH3-128
// hashes that starts at the request's salt. A block may have a page of the full layers, a page of
// the window layers, or both. A hit of e blocks needs the full pages of all e blocks, and the
// window pages of the last window - 1 tokens, whose keys the next token sees. KvCache decides which
// pages are evicted first (kv.h): pages that no sequence holds, least recently released first; of
// the window pages, first those where no hit is expected to end.
// Not thread-safe: one scheduling thread owns the cache.
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

/// Why a hit was not longer.
enum class CacheMiss : uint8_t {
  kNone,      ///< everything that can be shared was found: whole pages, without the last token
  kOff,       ///< the cache is off, or the request did not want it
  kShort,     ///< the prompt is not longer than a page
  kUnseen,    ///< no cached prompt begins with the same page of tokens
  kDiffers,   ///< cached prompts continue differently after the hit
  kEvicted,   ///< the next block was cached, but its pages have been evicted
  kWindow,    ///< the full layers' pages are cached, the window layers' are not
  kLogprobs,  ///< the prompt's log-probabilities are wanted, so all of it must be computed
};
const char* cache_miss_name(CacheMiss miss);

struct CacheReport {
  int32_t hit_tokens = 0;
  CacheMiss miss = CacheMiss::kOff;
  int32_t full_tokens = 0;  ///< tokens whose full pages are cached: hit_tokens or more
  /// A sentence for people: "1,024 of 1,500 prompt tokens; ...".
  std::string text(int32_t prompt_tokens) const;
};

/// A block's name.
struct BlockHash {
  uint64_t low = 0, high = 0;
  bool operator==(const BlockHash&) const = default;
};

/// chain_start: the first link of a salt's chain. chain_next: the link of a page of tokens, which
/// follows `before`.
BlockHash chain_start(std::string_view salt);
BlockHash chain_next(const BlockHash& before, std::span<const int32_t> page);

/// A chain with what it names: the tokens, whole pages of them or more, and the salt.
struct NamedTokens {
  std::span<const BlockHash> chain;
  std::span<const int32_t> tokens;
  std::string_view salt;
};

/// Is told of each block that gets a page of the full layers and of each that loses it, in order.
/// Replayed, the calls yield exactly the blocks with such a page: on_stored() comes for a block
/// without one, on_removed() for a block with one, before the page is used again. The calls come on
/// the scheduling thread and must not block.
class CacheListener {
 public:
  virtual ~CacheListener() = default;
  /// The last block of `named.chain`; `named.tokens` end with its page.
  virtual void on_stored(const NamedTokens& named) = 0;
  virtual void on_removed(const BlockHash& hash) = 0;
  /// All blocks are forgotten.
  virtual void on_cleared() = 0;
};

class PrefixCache {
 public:
  /// `kv` must outlive this, and must have no other PrefixCache. `listener` may be null; else it
  /// must outlive this.
  explicit PrefixCache(KvCache& kv, CacheListener* listener = nullptr);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  /// The longest hit of a prompt of `prompt_tokens` tokens whose whole pages are `chain`. At least
  /// one token is left to compute.
  CacheReport find(std::span<const BlockHash> chain, int32_t prompt_tokens) const;
  /// A new sequence that holds the pages of a hit. find() has just returned `hit_tokens`.
  SeqId take(std::span<const BlockHash> chain, int32_t hit_tokens);
  /// Gives block `block_idx` of the chain the pages of the sequence's block `block_idx`, unless the
  /// block has pages. The sequence's pages are full, or will be before a later launch reads them.
  void insert(SeqId seq, int32_t block_idx, const NamedTokens& named);
  /// A hit is expected to end after these blocks: their last window pages are preferred.
  void expect_end(std::span<const BlockHash> chain);
  /// Forgets all blocks.
  void clear();

  int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()) - num_ghosts_; }
  /// CHECKs that blocks and pages name each other.
  void check_integrity() const;

 private:
  struct Block {
    int32_t full = -1, window = -1;
    uint64_t ghost_number = 0;  // of its entry in ghosts_, if the block has no pages
    bool is_ghost() const { return full < 0 && window < 0; }
  };
  struct HashOfHash {
    size_t operator()(const BlockHash& hash) const { return hash.low; }
  };
  using Blocks = std::unordered_map<BlockHash, Block, HashOfHash>;

  int32_t first_window_block(int32_t num_blocks) const;
  bool attach(SeqId seq, int32_t block_idx, PageKind kind, Blocks::value_type& entry);
  void forget_all();
  void on_evict(PageKind kind, int32_t page);
  std::vector<Blocks::value_type*>& owners(PageKind kind) {
    return kind == PageKind::kFull ? full_owners_ : window_owners_;
  }

  KvCache& kv_;
  CacheListener* const listener_;  // may be null
  const bool has_full_, has_window_;
  Blocks blocks_;
  std::vector<Blocks::value_type*> full_owners_, window_owners_;  // by page; null: none
  // Blocks that have lost all pages are remembered for a while, to tell evicted blocks (kEvicted)
  // from blocks that were never cached (kUnseen, kDiffers).
  std::deque<std::pair<uint64_t, BlockHash>> ghosts_;
  uint64_t last_ghost_ = 0;
  int64_t num_ghosts_ = 0;
  std::vector<int32_t> full_scratch_, window_scratch_;
};

}  // namespace moxie
