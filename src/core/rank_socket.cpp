// POSIX sockets that do not block, and poll().
#include "core/rank_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

namespace moxie {
namespace {

tl::unexpected<Error> system_error(const std::string& what) {
  return fail(fmt::format("{}: {}", what, std::strerror(errno)), "ranks");
}

int milliseconds_until(Clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

// Waits until the socket can be read or written; false: the deadline has passed.
Result<bool> wait_for(int fd, int16_t events, Clock::time_point deadline) {
  for (;;) {
    pollfd one{.fd = fd, .events = events, .revents = 0};
    const int found = ::poll(&one, 1, milliseconds_until(deadline));
    if (found > 0) return true;
    if (found < 0 && errno != EINTR) return system_error("poll");
    if (Clock::now() >= deadline) return false;
  }
}

Status prepare(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) return system_error("fcntl");
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return {};
}

constexpr const char* kGone = "the connection has ended";
constexpr const char* kLate = "no answer in time";
constexpr auto kForAttempt = std::chrono::seconds(5), kBetweenWarnings = std::chrono::seconds(5);

// One attempt at every address of the host.
Result<RankSocket> connect_once(const std::string& host, uint16_t port,
                                Clock::time_point deadline) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
      error != 0)
    return fail(::gai_strerror(error), host);
  std::string why = "no address";
  Result<RankSocket> found = fail(why, host);
  for (const addrinfo* at = list; at != nullptr && !found; at = at->ai_next) {
    RankSocket socket(::socket(at->ai_family, at->ai_socktype, at->ai_protocol));
    if (!socket.is_open() || !prepare(socket.fd())) continue;
    int error = 0;
    if (::connect(socket.fd(), at->ai_addr, at->ai_addrlen) != 0) {
      error = errno;
      if (error == EINPROGRESS) {
        const auto ready =
            wait_for(socket.fd(), POLLOUT, std::min(deadline, Clock::now() + kForAttempt));
        error = ETIMEDOUT;
        socklen_t size = sizeof error;
        if (ready && *ready) ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
      }
    }
    if (error == 0)
      found = std::move(socket);
    else
      found = fail(std::strerror(error), fmt::format("{}:{}", host, port));
  }
  ::freeaddrinfo(list);
  return found;
}

}  // namespace

RankSocket& RankSocket::operator=(RankSocket&& other) noexcept {
  if (this == &other) return *this;
  if (fd_ >= 0) ::close(fd_);
  fd_ = std::exchange(other.fd_, -1);
  return *this;
}
RankSocket::~RankSocket() {
  if (fd_ >= 0) ::close(fd_);
}

Result<RankSocket> RankSocket::listen(uint16_t port) {
  // One that takes IPv4 as well, or IPv4 alone where the host has no IPv6.
  for (const int family : {AF_INET6, AF_INET}) {
    RankSocket socket(::socket(family, SOCK_STREAM, 0));
    if (!socket.is_open()) continue;
    if (auto status = prepare(socket.fd()); !status) return fail(std::move(status.error()));
    const int on = 1, off = 0;
    ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_storage address{};
    socklen_t size = sizeof(sockaddr_in);
    if (family == AF_INET6) {
      ::setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
      auto& six = reinterpret_cast<sockaddr_in6&>(address);
      six.sin6_family = AF_INET6;
      six.sin6_port = htons(port);
      size = sizeof six;
    } else {
      auto& four = reinterpret_cast<sockaddr_in&>(address);
      four.sin_family = AF_INET;
      four.sin_port = htons(port);
    }
    if (::bind(socket.fd(), reinterpret_cast<sockaddr*>(&address), size) == 0 &&
        ::listen(socket.fd(), 64) == 0)
      return socket;
    if (errno == EADDRINUSE)
      return fail(fmt::format("port {} is taken", port), "ranks",
                  "set MASTER_PORT to a free one, the same for all ranks");
  }
  return system_error(fmt::format("listening on port {}", port));
}

Result<RankSocket> RankSocket::accept(Clock::time_point deadline) const {
  for (;;) {
    const int fd = ::accept(fd_, nullptr, nullptr);
    if (fd >= 0) {
      RankSocket socket(fd);
      if (auto status = prepare(fd); !status) return fail(std::move(status.error()));
      return socket;
    }
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR && errno != ECONNABORTED)
      return system_error("accept");
    const auto ready = wait_for(fd_, POLLIN, deadline);
    if (!ready) return fail(ready.error());
    if (!*ready) return fail(kLate, "ranks");
  }
}

Result<RankSocket> RankSocket::connect(const std::string& host, uint16_t port,
                                       Clock::time_point deadline) {
  for (auto said = Clock::now();;) {
    auto socket = connect_once(host, port, deadline);
    if (socket || Clock::now() >= deadline) return socket;
    if (Clock::now() - said >= kBetweenWarnings) {
      log_warn(fmt::format("waiting for {}:{}: {}", host, port, socket.error().what));
      said = Clock::now();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

Status RankSocket::send(std::span<const std::byte> bytes, Clock::time_point deadline) const {
  while (!bytes.empty()) {
    const ssize_t count = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count > 0) {
      bytes = bytes.subspan(static_cast<size_t>(count));
      continue;
    }
    if (errno == EPIPE || errno == ECONNRESET) return fail(kGone, "ranks");
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return system_error("send");
    const auto ready = wait_for(fd_, POLLOUT, deadline);
    if (!ready) return fail(ready.error());
    if (!*ready) return fail(kLate, "ranks");
  }
  return {};
}

Status RankSocket::receive(std::span<std::byte> bytes, Clock::time_point deadline) const {
  while (!bytes.empty()) {
    const ssize_t count = ::recv(fd_, bytes.data(), bytes.size(), 0);
    if (count > 0) {
      bytes = bytes.subspan(static_cast<size_t>(count));
      continue;
    }
    if (count == 0 || errno == ECONNRESET) return fail(kGone, "ranks");
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return system_error("recv");
    const auto ready = wait_for(fd_, POLLIN, deadline);
    if (!ready) return fail(ready.error());
    if (!*ready) return fail(kLate, "ranks");
  }
  return {};
}

Status RankSocket::send_message(std::span<const std::byte> bytes,
                                Clock::time_point deadline) const {
  const uint64_t size = bytes.size();
  auto status = send(std::as_bytes(std::span(&size, 1)), deadline);
  return status ? send(bytes, deadline) : status;
}

Result<std::vector<std::byte>> RankSocket::receive_message(uint64_t most,
                                                           Clock::time_point deadline) const {
  uint64_t size = 0;
  if (auto status = receive(std::as_writable_bytes(std::span(&size, 1)), deadline); !status)
    return fail(std::move(status.error()));
  if (size > most)
    return fail(fmt::format("a message of {} bytes, {} at most are expected", size, most), "ranks");
  std::vector<std::byte> bytes(size);
  if (auto status = receive(bytes, deadline); !status) return fail(std::move(status.error()));
  return bytes;
}

Result<std::string> RankSocket::receive_text(uint64_t most, Clock::time_point deadline) const {
  auto bytes = receive_message(most, deadline);
  if (!bytes) return fail(std::move(bytes.error()));
  return std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size());
}

void RankSocket::shut_down() const {
  if (fd_ >= 0) ::shutdown(fd_, SHUT_RDWR);
}

uint16_t RankSocket::port() const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

std::string RankSocket::peer_host() const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  char host[NI_MAXHOST] = "?";
  if (::getpeername(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0)
    ::getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host, sizeof host, nullptr, 0,
                  NI_NUMERICHOST);
  const std::string name = host;
  constexpr std::string_view kMapped = "::ffff:";  // IPv4 on a socket of IPv6
  return name.starts_with(kMapped) ? name.substr(kMapped.size()) : name;
}

}  // namespace moxie
