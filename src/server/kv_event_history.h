// The batches that a reader may ask for again, and the whole that stands for older ones.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/kv_event_batch.h"

namespace moxie {

class KvEventHistory {
 public:
  /// Shared with the sockets' queues, so that a batch is in memory once.
  using Payload = std::shared_ptr<const std::string>;
  struct Batch {
    uint64_t number = 0;
    Payload payload;
  };
  /// Keeps at most `most_batches`, and of these only the last that together have `most_bytes`.
  KvEventHistory(size_t most_batches, size_t most_bytes)
      : most_batches_(most_batches), most_bytes_(most_bytes) {}

  /// Encodes and numbers a batch: 0, 1, ... `ts`: seconds since 1970.
  Batch add(std::vector<CacheEvent> events, double ts);
  /// The batches from `first` on. If some of them are no longer kept, one batch stands for all up
  /// to its number: it tells the whole.
  std::vector<Batch> from(uint64_t first, double ts);
  uint64_t num_snapshots() const { return num_snapshots_; }

 private:
  uint64_t oldest() const { return kept_.empty() ? next_number_ : kept_.front().number; }

  const size_t most_batches_, most_bytes_;
  std::deque<Batch> kept_;
  size_t kept_bytes_ = 0;
  uint64_t next_number_ = 0, num_snapshots_ = 0;
  // Used as long as all batches behind it are kept, so that a reader who asks again and again costs
  // little.
  std::optional<Batch> snapshot_;
  CacheMirror mirror_;
};

}  // namespace moxie
