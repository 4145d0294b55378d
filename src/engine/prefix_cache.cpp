// Hash chains, the map from blocks to pages, and the reasons for what was not found.
#include "engine/prefix_cache.h"

#include <fmt/format.h>

// The implementation is compiled in here: a header-only use of the library.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

namespace moxie {
namespace {

BlockHash to_block_hash(XXH128_hash_t hash) { return {hash.low64, hash.high64}; }

}  // namespace

const char* cache_miss_name(CacheMiss miss) {
  switch (miss) {
    case CacheMiss::kNone:
      return "none";
    case CacheMiss::kOff:
      return "off";
    case CacheMiss::kShort:
      return "short";
    case CacheMiss::kUnseen:
      return "unseen";
    case CacheMiss::kDiffers:
      return "differs";
    case CacheMiss::kEvicted:
      return "evicted";
    case CacheMiss::kWindow:
      return "window";
    case CacheMiss::kLogprobs:
      return "logprobs";
  }
  return "none";
}

std::string CacheReport::text(int32_t prompt_tokens) const {
  const auto why = [&]() -> std::string {
    switch (miss) {
      case CacheMiss::kNone:
        return "all that can be shared";
      case CacheMiss::kOff:
        return "the cache is off";
      case CacheMiss::kShort:
        return "the prompt is not longer than a page";
      case CacheMiss::kUnseen:
        return "no cached prompt begins like this one";
      case CacheMiss::kDiffers:
        return fmt::format("cached prompts go on otherwise from token {}", full_tokens);
      case CacheMiss::kEvicted:
        return fmt::format("pages from token {} went to other requests", full_tokens);
      case CacheMiss::kWindow:
        return fmt::format("of {} known tokens the window layers' keys are gone", full_tokens);
      case CacheMiss::kLogprobs:
        return "log-probabilities of the prompt need every token computed";
    }
    return {};
  };
  return fmt::format("{} of {} prompt tokens; {}", hit_tokens, prompt_tokens, why());
}

BlockHash chain_start(std::string_view salt) {
  return to_block_hash(XXH3_128bits(salt.data(), salt.size()));
}

BlockHash chain_next(const BlockHash& before, std::span<const int32_t> page) {
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_128bits_reset_withSeed(&state, before.low);
  XXH3_128bits_update(&state, &before, sizeof before);
  XXH3_128bits_update(&state, page.data(), page.size_bytes());
  return to_block_hash(XXH3_128bits_digest(&state));
}

PrefixCache::PrefixCache(KvCache& kv, CacheListener* listener)
    : kv_(kv),
      listener_(listener),
      has_full_(kv.shape().num_full_layers > 0),
      has_window_(kv.shape().num_window_layers > 0),
      full_owners_(static_cast<size_t>(kv.num_full_pages()), nullptr),
      window_owners_(static_cast<size_t>(kv.num_window_pages()), nullptr) {
  blocks_.reserve(2 * (full_owners_.size() + window_owners_.size()));
  kv_.set_on_evict([this](PageKind kind, int32_t page) { on_evict(kind, page); });
}

PrefixCache::~PrefixCache() {
  forget_all();
  kv_.set_on_evict({});
}

// The first block whose window keys are seen by the token after `num_blocks` blocks.
int32_t PrefixCache::first_window_block(int32_t num_blocks) const {
  const KvShape& shape = kv_.shape();
  return std::max(0, num_blocks * shape.page_tokens - shape.window + 1) / shape.page_tokens;
}

CacheReport PrefixCache::find(std::span<const BlockHash> chain, int32_t prompt_tokens) const {
  const int32_t page_tokens = kv_.shape().page_tokens;
  const auto most =
      std::min(static_cast<int32_t>(chain.size()), std::max(0, prompt_tokens - 1) / page_tokens);
  if (most == 0) return {.miss = CacheMiss::kShort};
  int32_t hit = 0, known = 0;
  int32_t window_from = 0;  // from this block on all window pages are cached
  CacheReport report{.miss = CacheMiss::kNone};
  for (; known < most; ++known) {
    const auto found = blocks_.find(chain[static_cast<size_t>(known)]);
    const bool has_block = found != blocks_.end();
    if (!has_block || (has_full_ ? found->second.full < 0 : found->second.window < 0)) {
      report.miss = has_block    ? CacheMiss::kEvicted
                    : known == 0 ? CacheMiss::kUnseen
                                 : CacheMiss::kDiffers;
      break;
    }
    if (has_window_ && found->second.window < 0) window_from = known + 1;
    if (!has_window_ || window_from <= first_window_block(known + 1)) hit = known + 1;
  }
  report.hit_tokens = hit * page_tokens;
  report.full_tokens = known * page_tokens;
  if (hit < known) report.miss = CacheMiss::kWindow;
  return report;
}

SeqId PrefixCache::take(std::span<const BlockHash> chain, int32_t hit_tokens) {
  const int32_t num_blocks = hit_tokens / kv_.shape().page_tokens;
  full_scratch_.clear();
  window_scratch_.clear();
  for (int32_t i = 0; i < num_blocks; ++i) {
    const Block& block = blocks_.at(chain[static_cast<size_t>(i)]);
    if (has_full_) full_scratch_.push_back(block.full);
    if (has_window_) {
      window_scratch_.push_back(i < first_window_block(num_blocks) ? -1 : block.window);
    }
  }
  return kv_.add_sequence(full_scratch_, window_scratch_);
}

void PrefixCache::insert(SeqId seq, int32_t block_idx, const NamedTokens& named) {
  const auto block = static_cast<size_t>(block_idx);
  const auto [entry, is_first] = blocks_.try_emplace(named.chain[block]);
  const bool was_ghost = !is_first && entry->second.is_ghost();
  const bool is_stored = has_full_ && attach(seq, block_idx, PageKind::kFull, *entry);
  if (has_window_) attach(seq, block_idx, PageKind::kWindow, *entry);
  if (was_ghost) --num_ghosts_;
  if (listener_ == nullptr || !is_stored) return;
  const auto num_tokens = (block + 1) * static_cast<size_t>(kv_.shape().page_tokens);
  listener_->on_stored({.chain = named.chain.first(block + 1),
                        .tokens = named.tokens.first(num_tokens),
                        .salt = named.salt});
}

// False if the block has a page of the kind already.
bool PrefixCache::attach(SeqId seq, int32_t block_idx, PageKind kind, Blocks::value_type& entry) {
  int32_t& page = kind == PageKind::kFull ? entry.second.full : entry.second.window;
  if (page >= 0) return false;
  const int32_t own = kv_.page_at(seq, kind, block_idx);
  CHECK(own >= 0, "a page that the window has passed");
  page = own;
  kv_.keep(kind, own);
  owners(kind)[static_cast<size_t>(own)] = &entry;
  return true;
}

void PrefixCache::expect_end(std::span<const BlockHash> chain) {
  if (!has_window_) return;
  const auto num_blocks = static_cast<int32_t>(chain.size());
  for (int32_t i = first_window_block(num_blocks); i < num_blocks; ++i) {
    const auto found = blocks_.find(chain[static_cast<size_t>(i)]);
    if (found != blocks_.end() && found->second.window >= 0) {
      kv_.prefer(PageKind::kWindow, found->second.window);
    }
  }
}

void PrefixCache::on_evict(PageKind kind, int32_t page) {
  Blocks::value_type*& owner = owners(kind)[static_cast<size_t>(page)];
  CHECK(owner != nullptr);
  Block& block = owner->second;
  (kind == PageKind::kFull ? block.full : block.window) = -1;
  if (listener_ != nullptr && kind == PageKind::kFull) listener_->on_removed(owner->first);
  if (block.is_ghost()) {
    block.ghost_number = ++last_ghost_;
    ++num_ghosts_;
    ghosts_.emplace_back(last_ghost_, owner->first);
  }
  owner = nullptr;
  const size_t most = full_owners_.size() + window_owners_.size();
  while (ghosts_.size() > most) {
    const auto [number, hash] = ghosts_.front();
    ghosts_.pop_front();
    const auto found = blocks_.find(hash);
    if (found == blocks_.end() || !found->second.is_ghost()) continue;
    if (found->second.ghost_number != number) continue;  // cached and evicted again since
    blocks_.erase(found);
    --num_ghosts_;
  }
}

void PrefixCache::clear() {
  forget_all();
  if (listener_ != nullptr) listener_->on_cleared();
}

void PrefixCache::forget_all() {
  for (const PageKind kind : {PageKind::kFull, PageKind::kWindow}) {
    auto& by_page = owners(kind);
    for (size_t page = 0; page < by_page.size(); ++page) {
      if (by_page[page] != nullptr) kv_.forget(kind, static_cast<int32_t>(page));
      by_page[page] = nullptr;
    }
  }
  blocks_.clear();
  ghosts_.clear();
  num_ghosts_ = 0;
}

void PrefixCache::check_integrity() const {
  int64_t num_pages = 0, num_ghosts = 0;
  for (const auto& entry : blocks_) {
    const Block& block = entry.second;
    num_ghosts += block.is_ghost() ? 1 : 0;
    for (const auto& [page, by_page] :
         {std::pair{block.full, &full_owners_}, std::pair{block.window, &window_owners_}}) {
      if (page < 0) continue;
      ++num_pages;
      CHECK((*by_page)[static_cast<size_t>(page)] == &entry, "page " + std::to_string(page));
    }
  }
  CHECK(num_ghosts == num_ghosts_ && num_ghosts <= static_cast<int64_t>(ghosts_.size()));
  for (const auto* by_page : {&full_owners_, &window_owners_}) {
    num_pages -= std::count_if(by_page->begin(), by_page->end(),
                               [](const auto* owner) { return owner != nullptr; });
  }
  CHECK(num_pages == 0, "pages of no block");
}

}  // namespace moxie
