// Paged KV cache: two pools of pages (full layers, window layers), block tables per sequence,
// sharing by reference counts.
//
// A page id covers all layers of its kind: page p of the full pool holds the same tokens of every
// full layer. Window pages are freed as the window passes them; their table entry becomes -1.
//
// A page may be marked as kept (prefix_cache.h). When the last sequence releases a kept page, the
// page counts as free but still holds its keys. New sequences take kept pages only after all other
// free pages, least recently released first, and the keeper is told of each (set_on_evict).
// Not thread-safe: one scheduling thread owns the cache.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/device.h"
#include "kernels/step.h"

namespace moxie {

/// Sizes of a cache; plain numbers, so that `plan` computes bytes without a model.
struct KvShape {
  int32_t num_full_layers = 0, num_window_layers = 0;
  int32_t num_kv_heads = 0, head_dim = 64;
  int32_t window = 128;  ///< keys seen on window layers, self included
  int32_t page_tokens = 16;
  DType dtype = DType::kBF16;

  /// K and V of one page over all layers of its kind.
  uint64_t full_page_bytes() const;
  uint64_t window_page_bytes() const;
  /// The most pages that one sequence of `num_tokens` holds, with `chunk` tokens of it a launch.
  int64_t full_pages(int64_t num_tokens) const;
  int64_t window_pages(int64_t num_tokens, int64_t chunk) const;
};

using SeqId = int32_t;

enum class PageKind : uint8_t { kFull, kWindow };

class KvCache {
 public:
  /// Allocates both pools on `device` and zeroes them. `is_window[l]` tells each layer's kind.
  static Result<std::unique_ptr<KvCache>> create(Device& device, Stream& stream,
                                                 const KvShape& shape,
                                                 std::span<const uint8_t> is_window,
                                                 int32_t num_full_pages, int32_t num_window_pages);
  ~KvCache();

  SeqId add_sequence();
  /// A sequence of whole pages, which other sequences may hold too. `full` and `window` have the
  /// same number of pages, or none for a kind without layers. The first entries of `window` may be
  /// -1 (freed).
  SeqId add_sequence(std::span<const int32_t> full, std::span<const int32_t> window);
  void free_sequence(SeqId seq);
  /// A sequence with the same tokens, which shares the pages of `seq`. The last page, if not full,
  /// is copied when either sequence appends to it.
  Result<SeqId> fork(SeqId seq);

  /// A number that no other sequence has had, while ids are used again.
  uint64_t serial(SeqId seq) const;
  int32_t num_tokens(SeqId seq) const;
  /// Reserves room for `count` more tokens in both pools. Reserves nothing and returns false if
  /// there is not enough for all.
  bool append(SeqId seq, int32_t count);
  /// Frees window pages that no token at or after the sequence's end can see.
  void release_window(SeqId seq) { release_window(seq, num_tokens(seq)); }
  /// Frees window pages that no token at or after `num_tokens` can see; `num_tokens` is at most the
  /// sequence's length. The sequence may then still be truncated to `num_tokens`.
  void release_window(SeqId seq, int32_t num_tokens);
  /// Shortens the sequence to `num_tokens`. Fails, changing nothing, if window keys that the
  /// shortened sequence would need have been freed.
  Status truncate(SeqId seq, int32_t num_tokens);

  /// Writes the block table of one sequence for a launch: the pages of its tokens in order into
  /// `full` and `window`, and -1 into the rest of both.
  void fill_tables(SeqId seq, std::span<int32_t> full, std::span<int32_t> window) const;
  /// Makes one view a layer. The tables are device pointers and must live until the launch has run.
  void layer_views(const int32_t* full_tables, const int32_t* window_tables, int32_t stride,
                   std::vector<KvLayer>* views) const;

  /// The page that holds the sequence's tokens from page_idx * page_tokens on. -1 if it was freed,
  /// or if the model has no layers of this kind.
  int32_t page_at(SeqId seq, PageKind kind, int32_t page_idx) const;
  /// Marks a page that a sequence holds as kept. on_evict is called when another sequence takes it.
  void keep(PageKind kind, int32_t page);
  /// A kept page that is preferred is taken after all that are not.
  void prefer(PageKind kind, int32_t page);
  /// Unmarks a kept page, without a call of on_evict.
  void forget(PageKind kind, int32_t page);
  void set_on_evict(const std::function<void(PageKind kind, int32_t page)>& on_evict);

  /// Copies a page. Its sequences are not told: for caches with the pages of another one.
  void copy_page(PageKind kind, int32_t from, int32_t to);
  /// Is told of each page that the cache copies.
  void set_on_copy(std::function<void(PageKind kind, int32_t from, int32_t to)> on_copy);

  const KvShape& shape() const { return shape_; }
  int32_t num_full_pages() const;
  int32_t num_window_pages() const;
  int32_t num_free_full_pages() const;
  int32_t num_free_window_pages() const;
  /// Free pages that are kept.
  int32_t num_kept_free_pages(PageKind kind) const;
  uint64_t bytes() const;

  /// CHECKs the invariants: reference counts match the tables, no page is both free and used,
  /// tables are long enough.
  void check_integrity() const;

 private:
  KvCache();
  struct Impl;
  KvShape shape_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace moxie
