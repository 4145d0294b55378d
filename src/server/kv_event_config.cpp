// Reads --kv-events-config. Every field is checked: a field that is misspelt would be without
// effect until somebody misses its events.
#include "server/kv_event_config.h"

#include <fmt/format.h>

#include <charconv>

namespace moxie {
namespace {

constexpr const char* kFlag = "--kv-events-config";
constexpr const char* kFields =
    "enable_kv_cache_events, publisher, endpoint, replay_endpoint, buffer_steps, hwm, "
    "max_queue_size, topic";
// buffer_steps: the replay socket's limit of 2 * (buffer_steps + 1) messages must be an int.
constexpr int64_t kMostSteps = 10'000'000, kMostQueued = INT32_MAX;

tl::unexpected<Error> wrong(const std::string& field, const std::string& expected) {
  return fail(fmt::format("{} must be {}", field, expected), kFlag);
}

Status read_text(const std::string& field, const Json& value, std::string* out) {
  if (!value.is_string()) return wrong(field, "a string");
  *out = value.get<std::string>();
  return {};
}

Status read_count(const std::string& field, const Json& value, int64_t least, int64_t most,
                  int32_t* out) {
  const std::string expected = fmt::format("an integer from {} to {}", least, most);
  if (!value.is_number_integer()) return wrong(field, expected);
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(most)) {
    return wrong(field, expected);
  }
  const auto number = value.get<int64_t>();
  if (number < least || number > most) return wrong(field, expected);
  *out = static_cast<int32_t>(number);
  return {};
}

// libzmq takes the low 16 bits of a port above 65535.
Status check_port(const std::string& field, std::string_view endpoint) {
  const std::string_view port = endpoint.substr(endpoint.rfind(':') + 1);
  const char* const end = port.data() + port.size();
  uint16_t number = 0;
  const auto [last, error] = std::from_chars(port.data(), end, number);
  if (port == "*" || (error == std::errc{} && last == end)) return {};
  return wrong(field, fmt::format("an endpoint with a port from 1 to 65535, or 0 or * for any free "
                                  "one, not '{}'",
                                  endpoint));
}

Status check_endpoint(const std::string& field, const std::string& endpoint) {
  for (const std::string_view scheme : {"tcp://", "ipc://", "inproc://"}) {
    if (!endpoint.starts_with(scheme) || endpoint.size() == scheme.size()) continue;
    return scheme == "tcp://" ? check_port(field, endpoint) : Status{};
  }
  return wrong(field, fmt::format("an endpoint such as tcp://*:5557 or ipc:///run/events, not '{}'",
                                  endpoint));
}

Status read_field(const std::string& field, const Json& value, KvEventConfig* config) {
  if (field == "enable_kv_cache_events") {
    if (!value.is_boolean()) return wrong(field, "true or false");
    config->enabled = value.get<bool>();
    return {};
  }
  if (field == "publisher") {
    if (value.is_null()) return {};  // the default
    if (auto status = read_text(field, value, &config->publisher); !status) return status;
    const bool is_known = config->publisher == "zmq" || config->publisher == "null";
    return is_known ? Status{} : Status(wrong(field, "zmq or null"));
  }
  if (field == "endpoint") {
    if (auto status = read_text(field, value, &config->endpoint); !status) return status;
    return check_endpoint(field, config->endpoint);
  }
  if (field == "replay_endpoint") {
    if (value.is_null()) return {};
    if (auto status = read_text(field, value, &config->replay_endpoint.emplace()); !status) {
      return status;
    }
    return check_endpoint(field, *config->replay_endpoint);
  }
  if (field == "buffer_steps")
    return read_count(field, value, 0, kMostSteps, &config->buffer_steps);
  if (field == "hwm") return read_count(field, value, 1, kMostQueued, &config->hwm);
  if (field == "max_queue_size") {
    return read_count(field, value, 1, kMostQueued, &config->max_queue_size);
  }
  if (field == "topic") return read_text(field, value, &config->topic);
  return fail(fmt::format("there is no field '{}'", field), kFlag,
              fmt::format("the fields are {}", kFields));
}

}  // namespace

bool KvEventConfig::binds() const {
  return endpoint.find('*') != std::string::npos || endpoint.find("::") != std::string::npos ||
         endpoint.starts_with("ipc://") || endpoint.starts_with("inproc://");
}

Result<KvEventConfig> parse_kv_event_config(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) {
    return fail("it must be a JSON object", kFlag,
                R"(such as '{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557"}')");
  }
  KvEventConfig config;
  for (const auto& [field, value] : json.items()) {
    if (auto status = read_field(field, value, &config); !status) return fail(status.error());
  }
  if (config.publisher.empty()) config.publisher = config.enabled ? "zmq" : "null";
  return config;
}

Json kv_event_config_json(const KvEventConfig& config, const std::string& endpoint,
                          const std::optional<std::string>& replay_endpoint) {
  return {{"enable_kv_cache_events", config.enabled},
          {"publisher", config.publisher},
          {"endpoint", endpoint},
          {"replay_endpoint", replay_endpoint ? Json(*replay_endpoint) : Json()},
          {"buffer_steps", config.buffer_steps},
          {"hwm", config.hwm},
          {"max_queue_size", config.max_queue_size},
          {"topic", config.topic}};
}

}  // namespace moxie
