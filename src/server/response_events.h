// The events of one response, and the clients that listen to them: the client that asked for the
// response and, if events are kept, clients that ask for them later. On the server's thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/api.h"

namespace moxie {

class ResponseEvents {
 public:
  explicit ResponseEvents(bool keep) : keep_(keep) {}

  /// Numbers an event and keeps it for the next flush(); `fields` follow type and number.
  void add(const std::string& type, const Json& fields);
  /// Sends new events to all listeners.
  void flush();
  /// Ends the streams of all listeners; no event comes after this.
  void end();

  /// Whether all events from the first on are still there.
  bool has_all() const { return first_ == 0; }
  /// Begins a stream of the events numbered `next` and above.
  void listen(std::shared_ptr<Exchange> exchange, uint64_t next);
  /// Bytes of the events held now.
  uint64_t bytes() const { return bytes_; }

 private:
  struct Listener {
    std::shared_ptr<Exchange> exchange;
    uint64_t next = 0;
  };
  void send_to(Listener& listener) const;

  bool keep_, ended_ = false;
  uint64_t first_ = 0;  // the number of events_[0]
  std::vector<std::string> events_;
  uint64_t bytes_ = 0;
  std::vector<Listener> listeners_;
};

}  // namespace moxie
