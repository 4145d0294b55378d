// Publishes the events of the prefix cache over ZeroMQ as vLLM does (docs/kv-events.md).
//
// The scheduling thread collects the events of a launch and hands them over as a batch. One thread
// of the publisher encodes and numbers batches, sends them without waiting for any reader, keeps
// the last ones and answers requests for them. When the queue between the two threads is full,
// batches are merged: none is lost, and a merged batch tells of each page once at most.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/clock.h"
#include "engine/prefix_cache.h"
#include "server/kv_event_config.h"
#include "server/kv_event_history.h"

namespace moxie {

/// Counts since the start.
struct KvEventCounters {
  uint64_t batches = 0;              ///< published
  uint64_t stored = 0, removed = 0;  ///< pages in them
  uint64_t cleared = 0;              ///< AllBlocksCleared in them
  uint64_t merged = 0;               ///< batches merged with another because the queue was full
  uint64_t unsent = 0;               ///< batches that the socket refused
  uint64_t replays = 0;              ///< requests for batches sent before
  uint64_t snapshots = 0;            ///< times that the whole was encoded for such requests
};

/// Batches that wait for the publisher's thread.
class KvEventQueue {
 public:
  struct Batch {
    double ts = 0;
    std::vector<CacheEvent> events;
  };
  explicit KvEventQueue(size_t most) : most_(most) {}
  /// Merges the batch into the last one if the queue is full.
  void push(Batch batch);
  std::deque<Batch> take();
  uint64_t num_merged() const;

 private:
  const size_t most_;
  mutable std::mutex mutex_;
  std::deque<Batch> batches_;
  size_t merge_at_ = 0;  // events of the last batch at which it is shortened
  uint64_t num_merged_ = 0;
};

class KvEventSockets;

class KvEventPublisher final : public CacheListener {
 public:
  /// Opens libzmq and the endpoints, and starts the thread.
  static Result<std::unique_ptr<KvEventPublisher>> open(const KvEventConfig& config);
  ~KvEventPublisher() override;
  KvEventPublisher(const KvEventPublisher&) = delete;
  KvEventPublisher& operator=(const KvEventPublisher&) = delete;

  // On the scheduling thread, or before it starts.
  void on_stored(const NamedTokens& named) override;
  void on_removed(const BlockHash& hash) override;
  void on_cleared() override;
  /// A launch's events are complete: they are published as one batch.
  void hand_over();

  // From any thread.
  KvEventCounters counters() const;
  /// The configuration with the endpoints as bound.
  Json sources() const;

 private:
  KvEventPublisher(const KvEventConfig& config, std::unique_ptr<KvEventSockets> sockets);
  void run();
  void publish(KvEventQueue::Batch batch);
  void answer_requests();
  void complain(const Status& status);

  const KvEventConfig config_;
  const std::unique_ptr<KvEventSockets> sockets_;
  std::vector<CacheEvent> open_;  // of the launch; on the scheduling thread
  KvEventQueue queue_;
  std::atomic<bool> stopping_{false};

  KvEventHistory history_;  // on the publisher's thread
  Clock::time_point complained_{};
  std::atomic<uint64_t> batches_{0}, stored_{0}, removed_{0}, cleared_{0}, unsent_{0}, replays_{0},
      snapshots_{0};
  std::thread thread_;
};

}  // namespace moxie
