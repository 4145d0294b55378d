// Page pools, block tables and sharing.
//
// Memory is layer by layer: a pool of one kind is [layers of that kind][pages], a page of a layer
// is K and then V, each [kv_heads, page_tokens, head_dim]. A page is free, or held by as many block
// tables as its reference count says. A page is written by one sequence only: append copies the
// last, partly filled page if it is shared.
#include "engine/kv.h"

#include <algorithm>
#include <utility>

namespace moxie {
namespace {

uint64_t page_bytes_of_layer(const KvShape& shape) {
  const uint64_t elements = static_cast<uint64_t>(shape.num_kv_heads) *
                            static_cast<uint64_t>(shape.page_tokens) *
                            static_cast<uint64_t>(shape.head_dim);
  return 2 * dtype_bytes(shape.dtype, elements);
}

// Pages of one kind: their holders and their memory. Kept pages without a holder are in one of two
// lists, least recently released first.
struct Pool {
  int32_t num_layers = 0;
  int32_t num_pages = 0;
  std::vector<int32_t> num_holders;       // by page
  std::vector<int32_t> free_pages;        // not kept; last out first
  std::vector<uint8_t> kept, preferred;   // by page
  std::vector<int32_t> before, after;     // by page; behind the last page the two lists' ends
  int32_t num_idle = 0;                   // in the lists
  std::function<void(int32_t)> on_evict;  // may be empty
  Buffer memory;

  void fill(int32_t pages) {
    num_pages = pages;
    const auto size = static_cast<size_t>(pages);
    num_holders.assign(size, 0);
    kept.assign(size, 0);
    preferred.assign(size, 0);
    before.resize(size + 2);
    after.resize(size + 2);
    for (const int32_t end : {pages, pages + 1}) link(end, end);
    free_pages.resize(size);
    for (int32_t i = 0; i < pages; ++i) free_pages[static_cast<size_t>(i)] = pages - 1 - i;
  }
  int32_t num_free() const { return static_cast<int32_t>(free_pages.size()) + num_idle; }
  int32_t take() {
    if (free_pages.empty()) evict();
    const int32_t page = free_pages.back();
    free_pages.pop_back();
    num_holders[static_cast<size_t>(page)] = 1;
    return page;
  }
  void share(int32_t page) {
    if (num_holders[static_cast<size_t>(page)]++ > 0) return;
    CHECK(kept[static_cast<size_t>(page)] == 1, "page " + std::to_string(page) + " holds nothing");
    unlink(page);
  }
  void drop(int32_t page) {
    int32_t& holders = num_holders[static_cast<size_t>(page)];
    CHECK(holders > 0, "page " + std::to_string(page));
    if (--holders > 0) return;
    if (kept[static_cast<size_t>(page)] == 1) {
      append_to_list(page);
    } else {
      free_pages.push_back(page);
    }
  }
  /// Whether other sequences or the prefix cache rely on its content.
  bool is_shared(int32_t page) const {
    return num_holders[static_cast<size_t>(page)] > 1 || kept[static_cast<size_t>(page)] == 1;
  }

  void prefer(int32_t page) {
    uint8_t& flag = preferred[static_cast<size_t>(page)];
    if (flag == 1) return;
    CHECK(kept[static_cast<size_t>(page)] == 1);
    const bool idle = num_holders[static_cast<size_t>(page)] == 0;
    if (idle) unlink(page);
    flag = 1;
    if (idle) append_to_list(page);
  }
  void forget(int32_t page) {
    CHECK(kept[static_cast<size_t>(page)] == 1);
    if (num_holders[static_cast<size_t>(page)] == 0) {
      unlink(page);
      free_pages.push_back(page);
    }
    kept[static_cast<size_t>(page)] = preferred[static_cast<size_t>(page)] = 0;
  }

 private:
  void evict() {
    const int32_t ordinary = after[static_cast<size_t>(num_pages)];
    const int32_t page =
        ordinary < num_pages ? ordinary : after[static_cast<size_t>(num_pages) + 1];
    CHECK(page < num_pages, "no free page");
    forget(page);
    if (on_evict) on_evict(page);
  }
  void link(int32_t first, int32_t second) {
    after[static_cast<size_t>(first)] = second;
    before[static_cast<size_t>(second)] = first;
  }
  void append_to_list(int32_t page) {
    const int32_t end = num_pages + preferred[static_cast<size_t>(page)];
    const int32_t last = before[static_cast<size_t>(end)];
    link(last, page);
    link(page, end);
    ++num_idle;
  }
  void unlink(int32_t page) {
    link(before[static_cast<size_t>(page)], after[static_cast<size_t>(page)]);
    --num_idle;
  }
};

// One kind's block table of one sequence: the page of each logical page from 0 on, -1 if freed.
struct Table {
  std::vector<int32_t> pages;
  int32_t num_released = 0;  // leading entries that are -1
};

struct Sequence {
  bool live = false;
  uint64_t serial = 0;
  int32_t num_tokens = 0;
  Table full, window;
};

}  // namespace

struct KvCache::Impl {
  Device* device = nullptr;
  Stream* stream = nullptr;
  std::vector<uint8_t> is_window;
  Pool full, window;
  std::vector<Sequence> sequences;
  std::vector<SeqId> free_ids;
  uint64_t num_made = 0;
  std::function<void(PageKind, int32_t, int32_t)> on_copy;  // may be empty

  Sequence& at(SeqId seq) {
    CHECK(seq >= 0 && seq < static_cast<SeqId>(sequences.size()) &&
              sequences[static_cast<size_t>(seq)].live,
          "no sequence " + std::to_string(seq));
    return sequences[static_cast<size_t>(seq)];
  }

  Pool& pool(PageKind kind) { return kind == PageKind::kFull ? full : window; }

  // Whether the sequence's next token would be written into a shared page.
  static bool writes_shared_page(const Pool& pool, const Table& table, int32_t num_tokens,
                                 int32_t page_tokens) {
    const auto page_idx = static_cast<size_t>(num_tokens / page_tokens);
    if (num_tokens % page_tokens == 0 || page_idx >= table.pages.size()) return false;
    const int32_t page = table.pages[page_idx];
    return page >= 0 && pool.is_shared(page);
  }

  static int64_t pages_to_take(const Pool& pool, const Table& table, const KvShape& shape,
                               int32_t num_tokens, int32_t count) {
    if (pool.num_layers == 0 || count == 0) return 0;
    const int64_t after = ceil_div<int64_t>(int64_t{num_tokens} + count, shape.page_tokens);
    const bool copies = writes_shared_page(pool, table, num_tokens, shape.page_tokens);
    return after - static_cast<int64_t>(table.pages.size()) + (copies ? 1 : 0);
  }

  void copy_page(const Pool& pool, uint64_t layer_page_bytes, int32_t from, int32_t to) {
    for (int32_t layer = 0; layer < pool.num_layers; ++layer) {
      std::byte* base = pool.memory.data() + static_cast<uint64_t>(layer) *
                                                 static_cast<uint64_t>(pool.num_pages) *
                                                 layer_page_bytes;
      // Fails only if the device has failed before, which Stream::synchronize reports.
      static_cast<void>(device->copy_on_device(
          base + static_cast<uint64_t>(to) * layer_page_bytes,
          base + static_cast<uint64_t>(from) * layer_page_bytes, layer_page_bytes, *stream));
    }
  }

  // Grows a table to hold `num_tokens` + `count` tokens; enough pages are free.
  void grow(Pool& pool, Table& table, const KvShape& shape, int32_t num_tokens, int32_t count) {
    if (pool.num_layers == 0 || count == 0) return;
    if (writes_shared_page(pool, table, num_tokens, shape.page_tokens)) {
      int32_t& last = table.pages[static_cast<size_t>(num_tokens / shape.page_tokens)];
      const int32_t copy = pool.take();
      copy_page(pool, page_bytes_of_layer(shape), last, copy);
      if (on_copy) on_copy(&pool == &full ? PageKind::kFull : PageKind::kWindow, last, copy);
      pool.drop(last);
      last = copy;
    }
    const int64_t after = ceil_div<int64_t>(int64_t{num_tokens} + count, shape.page_tokens);
    while (static_cast<int64_t>(table.pages.size()) < after) table.pages.push_back(pool.take());
  }

  static void share_all(Pool& pool, const Table& table) {
    for (int32_t page : table.pages) {
      if (page >= 0) pool.share(page);
    }
  }

  static void shrink(Pool& pool, Table& table, int64_t num_pages) {
    while (static_cast<int64_t>(table.pages.size()) > num_pages) {
      if (table.pages.back() >= 0) pool.drop(table.pages.back());
      table.pages.pop_back();
    }
    table.num_released = std::min(table.num_released, static_cast<int32_t>(table.pages.size()));
  }

  // One table against the pool: counts holders, checks lengths and the freed front.
  static void check_table(const Pool& pool, const Table& table, int64_t num_pages,
                          std::vector<int32_t>& holders) {
    if (pool.num_layers == 0) {
      CHECK(table.pages.empty());
      return;
    }
    CHECK(static_cast<int64_t>(table.pages.size()) == num_pages,
          std::to_string(table.pages.size()) + " pages, " + std::to_string(num_pages) + " due");
    for (size_t i = 0; i < table.pages.size(); ++i) {
      const int32_t page = table.pages[i];
      CHECK((page < 0) == (static_cast<int32_t>(i) < table.num_released),
            "logical page " + std::to_string(i));
      if (page < 0) continue;
      CHECK(page < pool.num_pages);
      ++holders[static_cast<size_t>(page)];
    }
  }

  static void check_pool(const Pool& pool, const std::vector<int32_t>& holders) {
    CHECK(holders == pool.num_holders, "reference counts differ from the tables");
    std::vector<uint8_t> is_free(holders.size(), 0);
    for (int32_t page : pool.free_pages) {
      CHECK(page >= 0 && page < pool.num_pages && is_free[static_cast<size_t>(page)] == 0,
            "page " + std::to_string(page) + " is free twice, or none of this pool");
      is_free[static_cast<size_t>(page)] = 1;
    }
    int32_t num_idle = 0;
    for (int32_t list = 0; list < 2; ++list) {
      const int32_t end = pool.num_pages + list;
      for (int32_t page = pool.after[static_cast<size_t>(end)]; page != end;
           page = pool.after[static_cast<size_t>(page)]) {
        const auto i = static_cast<size_t>(page);
        CHECK(page >= 0 && page < pool.num_pages && is_free[i] == 0 && pool.kept[i] == 1 &&
                  pool.preferred[i] == list,
              "page " + std::to_string(page) + " stands in a list it does not belong to");
        is_free[i] = 1;
        ++num_idle;
      }
    }
    CHECK(num_idle == pool.num_idle);
    for (size_t i = 0; i < holders.size(); ++i) {
      CHECK((holders[i] == 0) == (is_free[i] == 1), "page " + std::to_string(i));
      CHECK(pool.kept[i] == 1 || pool.preferred[i] == 0, "page " + std::to_string(i));
    }
  }
};

uint64_t KvShape::full_page_bytes() const {
  return static_cast<uint64_t>(num_full_layers) * page_bytes_of_layer(*this);
}
uint64_t KvShape::window_page_bytes() const {
  return static_cast<uint64_t>(num_window_layers) * page_bytes_of_layer(*this);
}
int64_t KvShape::full_pages(int64_t num_tokens) const {
  return num_full_layers == 0 ? 0 : ceil_div<int64_t>(num_tokens, page_tokens);
}
int64_t KvShape::window_pages(int64_t num_tokens, int64_t chunk) const {
  if (num_window_layers == 0) return 0;
  const int64_t all = ceil_div<int64_t>(num_tokens, page_tokens);
  // A chunk's first token sees window - 1 keys before itself, and its last token is chunk - 1
  // further. These consecutive tokens may begin anywhere in a page.
  const int64_t span = window - 1 + std::min(chunk, num_tokens);
  if (span <= 1) return std::min<int64_t>(all, 1);
  return std::min(all, (span - 2) / page_tokens + 2);
}

KvCache::KvCache() : impl_(std::make_unique<Impl>()) {}
KvCache::~KvCache() = default;

Result<std::unique_ptr<KvCache>> KvCache::create(Device& device, Stream& stream,
                                                 const KvShape& shape,
                                                 std::span<const uint8_t> is_window,
                                                 int32_t num_full_pages, int32_t num_window_pages) {
  const auto num_window = std::count_if(is_window.begin(), is_window.end(),
                                        [](uint8_t windowed) { return windowed != 0; });
  CHECK(num_window == shape.num_window_layers &&
            static_cast<int64_t>(is_window.size()) - num_window == shape.num_full_layers,
        "the layers' kinds disagree with the shape");
  CHECK(shape.page_tokens > 0 && shape.num_kv_heads > 0 && shape.head_dim > 0);
  CHECK(num_full_pages >= 0 && num_window_pages >= 0);
  CHECK(shape.num_window_layers == 0 || shape.window > 0);

  std::unique_ptr<KvCache> cache(new KvCache);
  cache->shape_ = shape;
  Impl& impl = *cache->impl_;
  impl.device = &device;
  impl.stream = &stream;
  impl.is_window.assign(is_window.begin(), is_window.end());
  auto make_pool = [&](Pool& pool, int32_t layers, int32_t pages, uint64_t bytes) -> Status {
    pool.num_layers = layers;
    pool.fill(layers == 0 ? 0 : pages);
    auto memory = device.allocate(static_cast<uint64_t>(pool.num_pages) * bytes);
    if (!memory) return fail(std::move(memory.error()));
    pool.memory = std::move(*memory);
    // Fresh memory of the CPU is zero and becomes resident when first written: a server need not
    // touch half a gigabyte before it is ready.
    if (device.kind() == DeviceKind::kCpu) return {};
    return device.fill_zero(pool.memory.data(), pool.memory.bytes(), stream);
  };
  if (auto status =
          make_pool(impl.full, shape.num_full_layers, num_full_pages, shape.full_page_bytes());
      !status) {
    return fail(std::move(status.error()));
  }
  if (auto status = make_pool(impl.window, shape.num_window_layers, num_window_pages,
                              shape.window_page_bytes());
      !status) {
    return fail(std::move(status.error()));
  }
  return cache;
}

SeqId KvCache::add_sequence() {
  if (impl_->free_ids.empty()) {
    impl_->sequences.emplace_back();
    impl_->free_ids.push_back(static_cast<SeqId>(impl_->sequences.size()) - 1);
  }
  const SeqId seq = impl_->free_ids.back();
  impl_->free_ids.pop_back();
  Sequence& sequence = impl_->sequences[static_cast<size_t>(seq)];
  sequence.live = true;
  sequence.serial = ++impl_->num_made;
  return seq;
}

uint64_t KvCache::serial(SeqId seq) const { return impl_->at(seq).serial; }

SeqId KvCache::add_sequence(std::span<const int32_t> full, std::span<const int32_t> window) {
  const SeqId seq = add_sequence();
  Sequence& sequence = impl_->at(seq);
  sequence.full.pages.assign(full.begin(), full.end());
  sequence.window.pages.assign(window.begin(), window.end());
  int32_t& released = sequence.window.num_released;
  while (std::cmp_less(released, window.size()) && window[static_cast<size_t>(released)] < 0) {
    ++released;
  }
  Impl::share_all(impl_->full, sequence.full);
  Impl::share_all(impl_->window, sequence.window);
  CHECK(full.size() == window.size() || full.empty() || window.empty());
  sequence.num_tokens =
      static_cast<int32_t>(std::max(full.size(), window.size())) * shape_.page_tokens;
  return seq;
}

int32_t KvCache::page_at(SeqId seq, PageKind kind, int32_t page_idx) const {
  const Sequence& sequence = impl_->at(seq);
  const Table& table = kind == PageKind::kFull ? sequence.full : sequence.window;
  CHECK(page_idx >= 0 && int64_t{page_idx} * shape_.page_tokens < sequence.num_tokens);
  return table.pages.empty() ? -1 : table.pages[static_cast<size_t>(page_idx)];
}

void KvCache::keep(PageKind kind, int32_t page) {
  Pool& pool = impl_->pool(kind);
  const auto i = static_cast<size_t>(page);
  CHECK(pool.num_holders[i] > 0 && pool.kept[i] == 0, "page " + std::to_string(page));
  pool.kept[i] = 1;
}
void KvCache::prefer(PageKind kind, int32_t page) { impl_->pool(kind).prefer(page); }
void KvCache::forget(PageKind kind, int32_t page) { impl_->pool(kind).forget(page); }

void KvCache::set_on_evict(const std::function<void(PageKind kind, int32_t page)>& on_evict) {
  if (!on_evict) {
    impl_->full.on_evict = impl_->window.on_evict = {};
    return;
  }
  impl_->full.on_evict = [on_evict](int32_t page) { on_evict(PageKind::kFull, page); };
  impl_->window.on_evict = [on_evict](int32_t page) { on_evict(PageKind::kWindow, page); };
}

void KvCache::free_sequence(SeqId seq) {
  Sequence& sequence = impl_->at(seq);
  Impl::shrink(impl_->full, sequence.full, 0);
  Impl::shrink(impl_->window, sequence.window, 0);
  sequence.num_tokens = 0;
  sequence.live = false;
  impl_->free_ids.push_back(seq);
}

Result<SeqId> KvCache::fork(SeqId seq) {
  impl_->at(seq);  // CHECKs
  const SeqId copy = add_sequence();
  const Sequence& from = impl_->at(seq);  // add_sequence may have moved it
  Sequence& to = impl_->at(copy);
  to.num_tokens = from.num_tokens;
  to.full = from.full;
  to.window = from.window;
  Impl::share_all(impl_->full, to.full);
  Impl::share_all(impl_->window, to.window);
  return copy;
}

int32_t KvCache::num_tokens(SeqId seq) const { return impl_->at(seq).num_tokens; }

bool KvCache::append(SeqId seq, int32_t count) {
  Sequence& sequence = impl_->at(seq);
  CHECK(count >= 0 && count <= INT32_MAX - sequence.num_tokens - shape_.page_tokens);
  const int32_t from = sequence.num_tokens;
  if (Impl::pages_to_take(impl_->full, sequence.full, shape_, from, count) >
          impl_->full.num_free() ||
      Impl::pages_to_take(impl_->window, sequence.window, shape_, from, count) >
          impl_->window.num_free()) {
    return false;
  }
  impl_->grow(impl_->full, sequence.full, shape_, from, count);
  impl_->grow(impl_->window, sequence.window, shape_, from, count);
  sequence.num_tokens = from + count;
  return true;
}

void KvCache::release_window(SeqId seq, int32_t num_tokens) {
  Sequence& sequence = impl_->at(seq);
  CHECK(num_tokens >= 0 && num_tokens <= sequence.num_tokens);
  Table& table = sequence.window;
  // The next token, at position num_tokens, sees keys from num_tokens - window + 1 on.
  const int32_t first_seen = std::max(0, num_tokens - shape_.window + 1);
  const int32_t num_passed =
      std::min(first_seen / shape_.page_tokens, static_cast<int32_t>(table.pages.size()));
  for (; table.num_released < num_passed; ++table.num_released) {
    int32_t& page = table.pages[static_cast<size_t>(table.num_released)];
    impl_->window.drop(page);
    page = -1;
  }
}

Status KvCache::truncate(SeqId seq, int32_t num_tokens) {
  Sequence& sequence = impl_->at(seq);
  CHECK(num_tokens >= 0 && num_tokens <= sequence.num_tokens,
        std::to_string(num_tokens) + " of " + std::to_string(sequence.num_tokens));
  const int32_t first_seen = std::max(0, num_tokens - shape_.window + 1);
  const int32_t first_held = sequence.window.num_released * shape_.page_tokens;
  // With a window of 1 no key is needed, but a partly filled last page still is.
  const bool needs_held = first_seen < num_tokens || num_tokens % shape_.page_tokens != 0;
  if (first_seen < first_held && needs_held) {
    return fail("window keys from position " + std::to_string(first_seen) +
                    " are needed, those before " + std::to_string(first_held) + " are freed",
                "truncating a sequence to " + std::to_string(num_tokens) + " tokens",
                "compute the sequence again from its start");
  }
  const int64_t num_pages = ceil_div<int64_t>(num_tokens, shape_.page_tokens);
  Impl::shrink(impl_->full, sequence.full, num_pages);
  Impl::shrink(impl_->window, sequence.window, num_pages);
  sequence.num_tokens = num_tokens;
  return {};
}

void KvCache::fill_tables(SeqId seq, std::span<int32_t> full, std::span<int32_t> window) const {
  const Sequence& sequence = impl_->at(seq);
  auto fill = [](const Table& table, std::span<int32_t> out) {
    CHECK(table.pages.size() <= out.size(), std::to_string(table.pages.size()) + " pages into " +
                                                std::to_string(out.size()) + " entries");
    const auto end = std::copy(table.pages.begin(), table.pages.end(), out.begin());
    std::fill(end, out.end(), -1);
  };
  fill(sequence.full, full);
  fill(sequence.window, window);
}

void KvCache::layer_views(const int32_t* full_tables, const int32_t* window_tables, int32_t stride,
                          std::vector<KvLayer>* views) const {
  views->clear();
  const uint64_t stride_bytes = page_bytes_of_layer(shape_);
  int32_t num_of_kind[2] = {0, 0};
  for (uint8_t windowed : impl_->is_window) {
    const int kind = windowed != 0 ? 1 : 0;
    const Pool& pool = kind == 1 ? impl_->window : impl_->full;
    std::byte* base = pool.memory.data() + static_cast<uint64_t>(num_of_kind[kind]++) *
                                               static_cast<uint64_t>(pool.num_pages) * stride_bytes;
    views->push_back({.k = base,
                      .v = base + stride_bytes / 2,
                      .page_stride_bytes = static_cast<int64_t>(stride_bytes),
                      .page_table = kind == 1 ? window_tables : full_tables,
                      .table_stride = stride,
                      .page_tokens = shape_.page_tokens,
                      .dtype = shape_.dtype});
  }
}

int32_t KvCache::num_full_pages() const { return impl_->full.num_pages; }
int32_t KvCache::num_window_pages() const { return impl_->window.num_pages; }
int32_t KvCache::num_free_full_pages() const { return impl_->full.num_free(); }
int32_t KvCache::num_free_window_pages() const { return impl_->window.num_free(); }
int32_t KvCache::num_kept_free_pages(PageKind kind) const { return impl_->pool(kind).num_idle; }
uint64_t KvCache::bytes() const {
  return impl_->full.memory.bytes() + impl_->window.memory.bytes();
}

void KvCache::check_integrity() const {
  std::vector<int32_t> full(impl_->full.num_holders.size(), 0);
  std::vector<int32_t> window(impl_->window.num_holders.size(), 0);
  size_t num_live = 0;
  for (const Sequence& sequence : impl_->sequences) {
    num_live += sequence.live;
    CHECK(sequence.live || sequence.num_tokens == 0);
    const int64_t num_pages = ceil_div<int64_t>(sequence.num_tokens, shape_.page_tokens);
    CHECK(sequence.full.num_released == 0);
    Impl::check_table(impl_->full, sequence.full, num_pages, full);
    Impl::check_table(impl_->window, sequence.window, num_pages, window);
  }
  CHECK(num_live + impl_->free_ids.size() == impl_->sequences.size());
  Impl::check_pool(impl_->full, full);
  Impl::check_pool(impl_->window, window);
}

void KvCache::copy_page(PageKind kind, int32_t from, int32_t to) {
  impl_->copy_page(impl_->pool(kind), page_bytes_of_layer(shape_), from, to);
}

void KvCache::set_on_copy(std::function<void(PageKind, int32_t, int32_t)> on_copy) {
  impl_->on_copy = std::move(on_copy);
}

}  // namespace moxie
