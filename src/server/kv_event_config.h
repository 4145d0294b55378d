// The value of --kv-events-config: vLLM's eight fields, as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base.h"
#include "server/api.h"

namespace moxie {

struct KvEventConfig {
  bool enabled = false;
  std::string publisher;  ///< "zmq" or "null"; default: zmq if enabled
  std::string endpoint = "tcp://*:5557";
  std::optional<std::string> replay_endpoint;
  int32_t buffer_steps = 10000;  ///< batches kept for replay
  int32_t hwm = 100000;          ///< batches that wait for one subscriber; further ones it loses
  int32_t max_queue_size =
      100000;  ///< batches that wait for the publisher; further ones are merged
  std::string topic;

  /// Whether there is a publisher.
  bool publishes() const { return enabled && publisher == "zmq"; }
  /// Whether the endpoint is bound, as vLLM decides it; else it is connected.
  bool binds() const;
};

Result<KvEventConfig> parse_kv_event_config(std::string_view text);
/// The eight fields, with the endpoints given.
Json kv_event_config_json(const KvEventConfig& config, const std::string& endpoint,
                          const std::optional<std::string>& replay_endpoint);

}  // namespace moxie
