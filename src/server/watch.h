// GET /v1/watch: what the server does and what its answers cost, as a stream of events.
//
// Each watcher gets an event at once and one a period. The times of the model's steps are measured
// only while somebody watches, and only on the CPU, where a row runs as a whole on the host. On the
// server's thread.
#pragma once

#include <memory>
#include <vector>

#include "server/endpoints.h"

namespace moxie {

class Watchers {
 public:
  static constexpr size_t kMost = 16;

  explicit Watchers(App& app) : app_(app) {}
  /// Streams events to the client until it leaves or end() is called. False if kMost watch already.
  bool add(const ExchangePtr& exchange, double interval_s);
  /// Ends all streams, each with a last event; from now on a stream ends after its first event.
  void end();

 private:
  struct Watcher;
  using WatcherPtr = std::shared_ptr<Watcher>;

  void send(Watcher& watcher);
  void send_later(const WatcherPtr& watcher);
  void remove(const Watcher* watcher);
  void time_steps();

  App& app_;
  std::vector<WatcherPtr> watchers_;
  bool ended_ = false;
};

}  // namespace moxie
