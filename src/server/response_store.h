// Stored responses of /v1/responses, bounded in number and bytes; the least recently used are
// dropped first. May be used from any thread. A stored response does not change; a newer state
// replaces it.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "server/api.h"
#include "server/response_events.h"
#include "text/harmony.h"

namespace moxie {

struct StoredResponse {
  Json document;  ///< the answer to GET
  Json input_items = Json::array();
  harmony::Conversation conversation;             ///< all messages, the answer included
  std::optional<std::string> item_instructions;   ///< of system messages among the items
  std::map<std::string, std::string> call_names;  ///< functions by the ids of their calls
  std::function<void()> cancel;                   ///< while it runs in the background
  /// The events of a response that streams in the background; else null. For the server's thread.
  std::shared_ptr<ResponseEvents> events;
  uint64_t bytes = 0;
};
using StoredPtr = std::shared_ptr<const StoredResponse>;

class ResponseStore {
 public:
  struct Limits {
    size_t count = 1000;
    uint64_t bytes = uint64_t{256} << 20;
  };
  explicit ResponseStore(Limits limits) : limits_(limits) {}

  /// Adds or replaces a response. Running ones are never dropped to make room.
  void put(const std::string& id, StoredPtr response);
  /// Null if there is none, or if it was dropped.
  StoredPtr find(const std::string& id);
  bool erase(const std::string& id);
  size_t count() const;
  uint64_t bytes() const;

 private:
  bool erase_locked(const std::string& id);
  void make_room();

  struct Entry {
    std::string id;
    StoredPtr response;
    uint64_t bytes;
  };
  Limits limits_;
  mutable std::mutex mutex_;
  std::list<Entry> order_;  // least recently used first
  std::unordered_map<std::string, std::list<Entry>::iterator> entries_;
  uint64_t bytes_ = 0;
};

}  // namespace moxie
