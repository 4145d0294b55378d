// Paged KV cache: two pools of pages (full layers, window layers), block tables per sequence,
// sharing by reference counts.
//
// A page id covers all layers of its kind: page p of the full pool holds the same tokens of every
// full layer. Window pages are freed as the window passes them; their table entry becomes -1.
//
// A page that is marked as kept holds its keys on when the last sequence lets go of it: it is free,
// and counted as free, but is given away only after all others, the one let go of first first, and
// whoever kept it is told (prefix_cache.h).
// Not thread-safe: one scheduling thread owns it.
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
  /// Pages that one sequence of `num_tokens` holds at most, when fed `chunk` tokens a step.
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
  /// A sequence of whole pages that others may hold too: as many tokens as `full` or `window` have
  /// pages (equally many, or none for a kind without layers). Window pages may begin with -1.
  SeqId add_sequence(std::span<const int32_t> full, std::span<const int32_t> window);
  void free_sequence(SeqId seq);
  /// A sequence with the same tokens, sharing pages; the last partial page is copied when either
  /// appends to it.
  Result<SeqId> fork(SeqId seq);

  int32_t num_tokens(SeqId seq) const;
  /// Reserves room for `count` more tokens in both pools: all of it, or nothing and false.
  bool append(SeqId seq, int32_t count);
  /// Frees window pages that no token at or after the sequence's end can see.
  void release_window(SeqId seq) { release_window(seq, num_tokens(seq)); }
  /// Those that no token at or after `num_tokens`, at most the sequence's length, can see: it may
  /// then be truncated to that many.
  void release_window(SeqId seq, int32_t num_tokens);
  /// Shortens the sequence to `num_tokens`. Fails, changing nothing, if window keys that the
  /// shortened sequence would need have been freed.
  Status truncate(SeqId seq, int32_t num_tokens);

  /// Block table of one sequence, for a launch: writes entries of logical pages 0.. into `full` and
  /// `window` (each `stride` long, the rest -1).
  void fill_tables(SeqId seq, std::span<int32_t> full, std::span<int32_t> window) const;
  /// One view a layer; the tables must stay alive and on the device for the launch.
  void layer_views(const int32_t* full_tables, const int32_t* window_tables, int32_t stride,
                   std::vector<KvLayer>* views) const;

  /// The page of the sequence's tokens from page_idx * page_tokens on; -1: freed, or of a kind
  /// without layers.
  int32_t page_at(SeqId seq, PageKind kind, int32_t page_idx) const;
  /// Keeps a page that a sequence holds. on_evict is told when it is given away.
  void keep(PageKind kind, int32_t page);
  /// Among pages no sequence holds this one is given away after those not preferred.
  void prefer(PageKind kind, int32_t page);
  /// The page is not kept any more; on_evict is not told.
  void forget(PageKind kind, int32_t page);
  void set_on_evict(const std::function<void(PageKind kind, int32_t page)>& on_evict);

  const KvShape& shape() const { return shape_; }
  int32_t num_full_pages() const;
  int32_t num_window_pages() const;
  int32_t num_free_full_pages() const;
  int32_t num_free_window_pages() const;
  /// Of the free ones, those that are kept.
  int32_t num_kept_free_pages(PageKind kind) const;
  uint64_t bytes() const;

  /// CHECKs every invariant: counts match tables, no page both free and used, tables long enough.
  void check_integrity() const;

 private:
  KvCache();
  struct Impl;
  KvShape shape_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace moxie
