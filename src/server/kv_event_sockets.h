// The sockets of a KvEventPublisher: PUB for batches, ROUTER for requests of batches sent before.
// The calls may come from any thread, one at a time; wake() from all at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/kv_event_config.h"
#include "server/kv_event_history.h"

namespace moxie {

class KvEventSockets {
 public:
  /// Opens libzmq and the endpoints of the configuration.
  static Result<std::unique_ptr<KvEventSockets>> open(const KvEventConfig& config);
  ~KvEventSockets();
  KvEventSockets(const KvEventSockets&) = delete;
  KvEventSockets& operator=(const KvEventSockets&) = delete;

  /// As bound: with the ports that the system gave.
  const std::string& endpoint() const;
  const std::optional<std::string>& replay_endpoint() const;

  /// Sends a batch to all readers. Does not wait: a reader whose queue is full loses the batch.
  Status publish(const KvEventHistory::Batch& batch);

  struct Request {
    std::string reader;  ///< its identity
    uint64_t first = 0;  ///< the number of the first batch that is asked for
  };
  /// The next request for replay; none if no more is there. Anything else that came is dropped.
  std::optional<Request> next_request();
  /// Answers a request, without waiting.
  Status answer(const Request& request, const std::vector<KvEventHistory::Batch>& batches);

  /// Waits until a request comes or wake() is called.
  Status wait();
  void wake();

 private:
  struct Impl;
  explicit KvEventSockets(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moxie
