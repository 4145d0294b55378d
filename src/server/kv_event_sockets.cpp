// ZeroMQ's side of the events.
//
// libzmq runs a thread of its own, which reads and writes the connections. What other programs send
// is bounded (kMostBytesIn); what waits for them is too, by the sockets' high-water marks.
#include "server/kv_event_sockets.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "server/zmq_api.h"

namespace moxie {
namespace {

constexpr const char* kFlag = "--kv-events-config";
constexpr int64_t kMostBytesIn = 4096;  // of a message from a reader: a topic, a request of 8 bytes
constexpr size_t kNumberBytes = 8;

std::string big_endian(uint64_t number) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift);
  return bytes;
}

// Frees a message's share of a payload, on libzmq's thread.
void drop_share(void*, void* share) { delete static_cast<KvEventHistory::Payload*>(share); }

// A wildcard is bound as 0.0.0.0 or [::]; readers get the form that the configuration has.
std::string as_configured(const std::string& configured, const std::string& bound) {
  const size_t port = bound.rfind(':');
  if (!configured.starts_with("tcp://*:") || port == std::string::npos) return bound;
  return "tcp://*" + bound.substr(port);
}

}  // namespace

struct KvEventSockets::Impl {
  ZmqApi api;
  std::string topic, endpoint;
  std::optional<std::string> replay_endpoint;
  void* context = nullptr;
  void *pub = nullptr, *router = nullptr;  // router: null without a replay endpoint
  int wake_fd = -1;

  ~Impl() {
    for (void* socket : {pub, router}) {
      if (socket != nullptr) api.close(socket);
    }
    if (context != nullptr) api.ctx_term(context);
    if (wake_fd >= 0) ::close(wake_fd);
  }

  tl::unexpected<Error> fault(const std::string& what) const {
    return fail(what + ": " + api.strerror(api.last_errno()), kFlag);
  }

  Status set(void* socket, int option, const void* value, size_t size) const {
    if (api.setsockopt(socket, option, value, size) == 0) return {};
    return fault("libzmq refuses option " + std::to_string(option));
  }

  Result<void*> make_socket(int type, int send_limit, const std::string& address) const {
    void* const socket = api.socket(context, type);
    if (socket == nullptr) return fault("no socket");
    const int none = 0, yes = 1;
    const int is_ipv6 = address.find('[') != std::string::npos ? 1 : 0;
    Status status = set(socket, ZMQ_LINGER, &none, sizeof none);
    if (status) status = set(socket, ZMQ_SNDHWM, &send_limit, sizeof send_limit);
    if (status) status = set(socket, ZMQ_MAXMSGSIZE, &kMostBytesIn, sizeof kMostBytesIn);
    if (status) status = set(socket, ZMQ_TCP_KEEPALIVE, &yes, sizeof yes);
    if (status) status = set(socket, ZMQ_IPV6, &is_ipv6, sizeof is_ipv6);
    if (status) return socket;
    api.close(socket);
    return fail(std::move(status.error()));
  }

  Result<std::string> bind(void* socket, const std::string& address) const {
    if (api.bind(socket, address.c_str()) != 0) {
      return fail("cannot listen on " + address + ": " + api.strerror(api.last_errno()), kFlag,
                  "choose another endpoint, or end what uses this one");
    }
    char bound[1024];
    size_t size = sizeof bound;
    if (api.getsockopt(socket, ZMQ_LAST_ENDPOINT, bound, &size) != 0) return address;
    return as_configured(address, bound);
  }

  Status open(const KvEventConfig& config) {
    context = api.ctx_new();
    if (context == nullptr) return fault("libzmq does not start");
    wake_fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (wake_fd < 0) return fail(std::string("no eventfd: ") + std::strerror(errno), kFlag);
    auto socket = make_socket(ZMQ_PUB, config.hwm, config.endpoint);
    if (!socket) return fail(std::move(socket.error()));
    pub = *socket;
    endpoint = config.endpoint;
    if (config.binds()) {
      auto bound = bind(pub, config.endpoint);
      if (!bound) return fail(std::move(bound.error()));
      endpoint = std::move(*bound);
    } else if (api.connect(pub, config.endpoint.c_str()) != 0) {
      return fault("cannot connect to " + config.endpoint);
    }
    if (!config.replay_endpoint) return {};
    socket = make_socket(ZMQ_ROUTER, 2 * (config.buffer_steps + 1), *config.replay_endpoint);
    if (!socket) return fail(std::move(socket.error()));
    router = *socket;
    auto bound = bind(router, *config.replay_endpoint);
    if (!bound) return fail(std::move(bound.error()));
    replay_endpoint = std::move(*bound);
    return {};
  }

  Status send(void* socket, std::string_view part, bool more) const {
    const int flags = ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0);
    if (api.send(socket, part.data(), part.size(), flags) >= 0) return {};
    return fault("sending");
  }

  // The end of a message: a batch's topic, number and payload. The payload is shared, not copied.
  Status send_batch(void* socket, const KvEventHistory::Batch& batch) const {
    zmq_msg_t message;
    auto share = std::make_unique<KvEventHistory::Payload>(batch.payload);
    // libzmq only reads it.
    void* const data = const_cast<char*>(batch.payload->data());
    if (api.msg_init_data(&message, data, batch.payload->size(), drop_share, share.get()) != 0) {
      return fault("no memory for a message");
    }
    static_cast<void>(share.release());  // the message has it
    Status status = send(socket, topic, true);
    if (status) status = send(socket, big_endian(batch.number), true);
    if (status && api.msg_send(&message, socket, ZMQ_DONTWAIT) < 0) status = fault("sending");
    if (!status) api.msg_close(&message);
    return status;
  }

  // The parts of the next message, of which `most` are kept; empty if there is none.
  std::vector<std::string> receive(size_t most, size_t* num_parts) const {
    std::vector<std::string> parts;
    *num_parts = 0;
    for (bool more = true; more;) {
      zmq_msg_t part;
      api.msg_init(&part);
      if (api.msg_recv(&part, router, ZMQ_DONTWAIT) < 0) {
        api.msg_close(&part);
        return {};
      }
      more = api.msg_more(&part) != 0;
      if (++*num_parts <= most) {
        parts.emplace_back(static_cast<const char*>(api.msg_data(&part)), api.msg_size(&part));
      }
      api.msg_close(&part);
    }
    return parts;
  }
};

KvEventSockets::KvEventSockets(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
KvEventSockets::~KvEventSockets() = default;

Result<std::unique_ptr<KvEventSockets>> KvEventSockets::open(const KvEventConfig& config) {
  auto api = find_zmq();
  if (!api) return fail(std::move(api.error()));
  auto impl = std::make_unique<Impl>();
  impl->api = *api;
  impl->topic = config.topic;
  if (auto status = impl->open(config); !status) return fail(std::move(status.error()));
  return std::unique_ptr<KvEventSockets>(new KvEventSockets(std::move(impl)));
}

const std::string& KvEventSockets::endpoint() const { return impl_->endpoint; }
const std::optional<std::string>& KvEventSockets::replay_endpoint() const {
  return impl_->replay_endpoint;
}

Status KvEventSockets::publish(const KvEventHistory::Batch& batch) {
  return impl_->send_batch(impl_->pub, batch);
}

std::optional<KvEventSockets::Request> KvEventSockets::next_request() {
  if (impl_->router == nullptr) return std::nullopt;
  for (;;) {
    size_t num_parts = 0;
    auto parts = impl_->receive(3, &num_parts);
    if (parts.empty()) return std::nullopt;
    if (num_parts != 3 || parts[2].size() != kNumberBytes) continue;
    Request request{.reader = std::move(parts[0])};
    for (const char byte : parts[2]) {
      request.first = request.first << 8 | static_cast<unsigned char>(byte);
    }
    return request;
  }
}

Status KvEventSockets::answer(const Request& request,
                              const std::vector<KvEventHistory::Batch>& batches) {
  void* const router = impl_->router;
  for (const KvEventHistory::Batch& batch : batches) {
    Status status = impl_->send(router, request.reader, true);
    if (status) status = impl_->send(router, {}, true);
    if (status) status = impl_->send_batch(router, batch);
    if (!status) return status;
  }
  // The end: an empty topic, the number -1 and an empty payload.
  Status status = impl_->send(router, request.reader, true);
  if (status) status = impl_->send(router, {}, true);
  if (status) status = impl_->send(router, {}, true);
  if (status) status = impl_->send(router, big_endian(~uint64_t{0}), true);
  if (status) status = impl_->send(router, {}, false);
  return status;
}

Status KvEventSockets::wait() {
  zmq_pollitem_t items[] = {{.socket = nullptr, .fd = impl_->wake_fd, .events = ZMQ_POLLIN},
                            {.socket = impl_->router, .events = ZMQ_POLLIN}};
  const int num_items = impl_->router != nullptr ? 2 : 1;
  if (impl_->api.poll(items, num_items, -1) < 0 && impl_->api.last_errno() != EINTR) {
    return impl_->fault("waiting for requests");
  }
  uint64_t calls = 0;  // reading sets the counter to 0; there may be nothing to read
  static_cast<void>(!::read(impl_->wake_fd, &calls, sizeof calls));
  return {};
}

void KvEventSockets::wake() {
  const uint64_t one = 1;  // fails only if the counter is full, and then nobody sleeps
  static_cast<void>(!::write(impl_->wake_fd, &one, sizeof one));
}

}  // namespace moxie
