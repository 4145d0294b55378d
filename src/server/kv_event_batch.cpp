// MessagePack of events, and the pages that they leave stored.
#include "server/kv_event_batch.h"

#include <algorithm>
#include <bit>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace moxie {
namespace {

using Kind = CacheEvent::Kind;

// The part of MessagePack that events need; each value in its shortest form.
class MessagePack {
 public:
  void nil() { out_ += '\xc0'; }
  void real(double value) {
    out_ += '\xcb';
    append(std::bit_cast<uint64_t>(value), 8);
  }
  void uint(uint64_t value) {
    if (value < 0x80) return append(value, 1);
    const int bytes = value <= 0xff ? 1 : value <= 0xffff ? 2 : value <= 0xffffffff ? 4 : 8;
    out_ += static_cast<char>(0xcc + std::countr_zero(static_cast<unsigned>(bytes)));
    append(value, bytes);
  }
  void text(std::string_view value) {
    head(value.size(), 0xa0, 32, 0xd9);
    out_ += value;
  }
  void array(size_t size) { head(size, 0x90, 16, 0xdb); }
  void map(size_t size) { head(size, 0x80, 16, 0xdd); }
  std::string take() { return std::move(out_); }

 private:
  // A type with its size: within the first byte if the size is below `limit`; else `wide` with
  // one byte, the next ones with two and four. Arrays and maps have no form with one byte.
  void head(size_t size, int within, size_t limit, int wide) {
    if (size < limit) return append(static_cast<uint64_t>(within) + size, 1);
    const bool has_short = within == 0xa0;
    const int bytes = size <= 0xff && has_short ? 1 : size <= 0xffff ? 2 : 4;
    out_ += static_cast<char>(wide + std::countr_zero(static_cast<unsigned>(bytes)));
    append(size, bytes);
  }
  void append(uint64_t value, int bytes) {  // big-endian
    for (int i = bytes - 1; i >= 0; --i) out_ += static_cast<char>(value >> (8 * i));
  }

  std::string out_;
};

constexpr std::string_view kMedium = "GPU";

// The events from `from` on that are told together as one.
size_t run_length(std::span<const CacheEvent> events) {
  size_t length = 1;
  if (events.front().kind == Kind::kCleared) return length;
  for (; length < events.size(); ++length) {
    const CacheEvent &before = events[length - 1], &next = events[length];
    if (next.kind != before.kind) break;
    if (next.kind == Kind::kStored && next.parent != before.hash) break;
  }
  return length;
}

void encode_hashes(std::span<const CacheEvent> run, MessagePack* out) {
  out->text("block_hashes");
  out->array(run.size());
  for (const CacheEvent& event : run) out->uint(event.hash);
}

void encode_stored(std::span<const CacheEvent> run, MessagePack* out) {
  const CacheEvent& first = run.front();
  const bool has_salt = !first.salt.empty();
  out->map(has_salt ? 11 : 10);
  out->text("type");
  out->text("BlockStored");
  encode_hashes(run, out);
  out->text("parent_block_hash");
  if (first.parent != 0) {
    out->uint(first.parent);
  } else {
    out->nil();
  }
  size_t num_tokens = 0;
  for (const CacheEvent& event : run) num_tokens += event.tokens.size();
  out->text("token_ids");
  out->array(num_tokens);
  for (const CacheEvent& event : run) {
    for (const int32_t token : event.tokens) out->uint(static_cast<uint64_t>(token));
  }
  out->text("block_size");
  out->uint(first.tokens.size());
  out->text("lora_id");
  out->nil();
  out->text("medium");
  out->text(kMedium);
  out->text("lora_name");
  out->nil();
  if (has_salt) {
    out->text("extra_keys");
    out->array(run.size());
    out->array(1);
    out->text(first.salt);
    for (size_t i = 1; i < run.size(); ++i) out->nil();
  }
  out->text("group_idx");
  out->uint(0);
  out->text("kv_cache_spec_kind");
  out->text("full_attention");
}

void encode_removed(std::span<const CacheEvent> run, MessagePack* out) {
  out->map(4);
  out->text("type");
  out->text("BlockRemoved");
  encode_hashes(run, out);
  out->text("medium");
  out->text(kMedium);
  out->text("group_idx");
  out->uint(0);
}

}  // namespace

std::string encode_batch(std::span<const CacheEvent> events, double ts) {
  size_t num_runs = 0;
  for (auto rest = events; !rest.empty(); rest = rest.subspan(run_length(rest))) ++num_runs;
  MessagePack out;
  out.array(3);
  out.real(ts);
  out.array(num_runs);
  while (!events.empty()) {
    const auto run = events.first(run_length(events));
    switch (run.front().kind) {
      case Kind::kStored:
        encode_stored(run, &out);
        break;
      case Kind::kRemoved:
        encode_removed(run, &out);
        break;
      case Kind::kCleared:
        out.map(1);
        out.text("type");
        out.text("AllBlocksCleared");
        break;
    }
    events = events.subspan(run.size());
  }
  out.uint(0);  // the data-parallel rank
  return out.take();
}

void merge_events(std::vector<CacheEvent>* events) {
  const auto is_clear = [](const CacheEvent& event) { return event.kind == Kind::kCleared; };
  const auto clear = std::find_if(events->rbegin(), events->rend(), is_clear);
  const bool clears = clear != events->rend();
  std::unordered_map<uint64_t, size_t> stored;  // by hash: where
  std::vector<uint64_t> removed;                // in order, those of is_removed and others
  std::unordered_set<uint64_t> is_removed;
  const auto begin = static_cast<size_t>(events->rend() - clear);  // behind the last kCleared
  for (size_t i = begin; i < events->size(); ++i) {
    const CacheEvent& event = (*events)[i];
    if (event.kind == Kind::kRemoved) {
      if (stored.erase(event.hash) > 0) continue;
      if (is_removed.insert(event.hash).second) removed.push_back(event.hash);
    } else if (is_removed.erase(event.hash) == 0) {
      stored.emplace(event.hash, i);
    }
  }
  std::vector<CacheEvent> merged;
  if (clears) merged.push_back({.kind = Kind::kCleared});
  for (const uint64_t hash : removed) {
    // Erased, so that a hash which is in `removed` twice is told of once.
    if (is_removed.erase(hash) > 0) merged.push_back({.kind = Kind::kRemoved, .hash = hash});
  }
  for (size_t i = begin; i < events->size(); ++i) {
    CacheEvent& event = (*events)[i];
    if (event.kind != Kind::kStored) continue;
    const auto found = stored.find(event.hash);
    if (found != stored.end() && found->second == i) merged.push_back(std::move(event));
  }
  *events = std::move(merged);
}

void CacheMirror::apply(std::vector<CacheEvent> events) {
  for (CacheEvent& event : events) {
    switch (event.kind) {
      case Kind::kStored: {
        const uint64_t hash = event.hash;
        pages_.insert_or_assign(hash, Page{num_stored_++, std::move(event)});
        break;
      }
      case Kind::kRemoved:
        pages_.erase(event.hash);
        break;
      case Kind::kCleared:
        pages_.clear();
        break;
    }
  }
}

std::vector<CacheEvent> CacheMirror::snapshot() const {
  std::vector<const Page*> in_order;
  in_order.reserve(pages_.size());
  for (const auto& [hash, page] : pages_) in_order.push_back(&page);
  std::sort(in_order.begin(), in_order.end(),
            [](const Page* a, const Page* b) { return a->number < b->number; });
  std::vector<CacheEvent> events;
  events.reserve(pages_.size() + 1);
  events.push_back({.kind = Kind::kCleared});
  std::unordered_set<uint64_t> is_told;
  std::vector<const Page*> ancestors;
  for (const Page* page : in_order) {
    // A parent may have come back after its child: it goes first.
    for (const Page* at = page; at != nullptr;) {
      if (!is_told.insert(at->stored.hash).second) break;
      ancestors.push_back(at);
      const auto parent = pages_.find(at->stored.parent);
      at = parent != pages_.end() ? &parent->second : nullptr;
    }
    for (; !ancestors.empty(); ancestors.pop_back()) events.push_back(ancestors.back()->stored);
  }
  return events;
}

}  // namespace moxie
