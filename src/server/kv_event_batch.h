// Events of the prefix cache as vLLM publishes them (docs/kv-events.md): batches, their
// MessagePack, and what a reader of all batches holds.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace moxie {

/// One page gets its name or loses it, or all do.
struct CacheEvent {
  enum class Kind : uint8_t { kStored, kRemoved, kCleared };
  Kind kind = Kind::kCleared;
  uint64_t hash = 0;
  uint64_t parent = 0;               ///< of kStored; 0: the first page of its chain
  std::vector<int32_t> tokens = {};  ///< of kStored: the page's
  std::string salt = {};             ///< of kStored, of the first page of a chain
};

/// Shortens a batch that grew, because it could not be published: it leaves the same pages stored,
/// each told of once at most, what is removed first. A page that is stored for a while within the
/// batch is not told of.
void merge_events(std::vector<CacheEvent>* events);

/// The payload of a batch: MessagePack of [ts, [event, ...], 0], each event a map. Pages of one
/// chain that are stored one behind the other are one BlockStored, pages removed so one
/// BlockRemoved. `ts`: seconds since 1970.
std::string encode_batch(std::span<const CacheEvent> events, double ts);

/// The pages that a reader of all batches holds.
class CacheMirror {
 public:
  void apply(std::vector<CacheEvent> events);
  /// The events that tell a reader of nothing, or of anything, the whole: kCleared, then all pages,
  /// each behind its parent if that is held.
  std::vector<CacheEvent> snapshot() const;
  size_t num_pages() const { return pages_.size(); }

 private:
  struct Page {
    uint64_t number = 0;  // in the order of arrival
    CacheEvent stored;
  };
  std::unordered_map<uint64_t, Page> pages_;  // by hash
  uint64_t num_stored_ = 0;
};

}  // namespace moxie
