// Ranks that are processes, on any hosts: each has a connection to every other. An exchange sends
// one's array to all and receives theirs at the same time, so that no two wait for each other with
// full buffers.
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "core/rank_socket.h"

namespace moxie {
namespace {

struct Header {
  uint64_t number;  // of the exchange
  int64_t count;    // of floats
};

class SocketLink final : public RankLink {
 public:
  SocketLink(int32_t rank, std::vector<RankSocket> peers, std::chrono::milliseconds patience)
      : rank_(rank),
        sockets_(std::move(peers)),
        names_(sockets_.size()),
        peers_(sockets_.size()),
        arrays_(sockets_.size()),
        patience_(patience) {
    for (size_t r = 0; r < sockets_.size(); ++r)
      names_[r] = fmt::format("rank {} ({})", r, sockets_[r].peer_host());
  }

  LinkKind kind() const override { return LinkKind::kSockets; }
  int32_t rank() const override { return rank_; }
  int32_t size() const override { return static_cast<int32_t>(sockets_.size()); }

  std::span<const RankArray> meet(RankArray mine) override {
    if (has_fault_.load(std::memory_order_acquire)) return {};
    const Header header{++number_, mine.count};
    for (Peer& peer : peers_) peer.sent = peer.received = 0;
    auto deadline = Clock::now() + patience_;
    for (bool waits = false;; waits = true) {
      bool is_done = true, has_moved = false;
      std::vector<pollfd> waiting;
      for (size_t r = 0; r < peers_.size(); ++r) {
        if (std::cmp_equal(r, rank_)) continue;
        Peer& peer = peers_[r];
        const size_t before = peer.sent + peer.received;
        if (!send(r, header, mine) || !receive(r)) return {};
        has_moved |= peer.sent + peer.received != before;
        const bool sends = peer.sent < sizeof(Header) + 4 * static_cast<size_t>(mine.count);
        if (!sends && peer.is_whole()) continue;
        is_done = false;
        waiting.push_back(
            {.fd = sockets_[r].fd(),
             .events = static_cast<int16_t>((sends ? POLLOUT : 0) | (peer.is_whole() ? 0 : POLLIN)),
             .revents = 0});
        awaited_ = r;
      }
      if (is_done) break;
      if (has_moved) deadline = Clock::now() + patience_;
      constexpr int kBetweenLooksMs = 100;  // for a fault that another thread has found
      if (waits) ::poll(waiting.data(), waiting.size(), kBetweenLooksMs);
      if (has_fault_.load(std::memory_order_acquire)) return {};
      if (Clock::now() < deadline) continue;
      set_fault(fmt::format("{} has not answered for {:.0f} s", names_[awaited_],
                            std::chrono::duration<double>(patience_).count()));
      return {};
    }
    for (size_t r = 0; r < peers_.size(); ++r)
      arrays_[r] = std::cmp_equal(r, rank_)
                       ? mine
                       : RankArray{peers_[r].values.data(), peers_[r].header.count};
    return arrays_;
  }

  std::optional<int32_t> lost_rank() const override {
    for (size_t r = 0; r < sockets_.size(); ++r) {
      pollfd one{.fd = sockets_[r].fd(), .events = POLLRDHUP, .revents = 0};
      if (std::cmp_not_equal(r, rank_) && ::poll(&one, 1, 0) > 0) return static_cast<int32_t>(r);
    }
    return {};
  }

  void set_fault(const std::string& text) override {
    const std::lock_guard lock(mutex_);
    if (fault_.empty()) fault_ = text;
    has_fault_.store(true, std::memory_order_release);
    for (const RankSocket& socket : sockets_) socket.shut_down();
  }
  Status status() const override {
    if (!has_fault_.load(std::memory_order_acquire)) return {};
    const std::lock_guard lock(mutex_);
    return fail(fault_, "ranks");
  }

 private:
  struct Peer {
    size_t sent = 0, received = 0;  // bytes, the header's included
    Header header{};
    std::vector<float> values;
    bool is_whole() const {
      return received >= sizeof(Header) &&
             received == sizeof(Header) + 4 * static_cast<size_t>(header.count);
    }
  };
  // Of one message; what a rank of the same model can have to say is far below.
  static constexpr int64_t kMostFloats = int64_t{1} << 32;

  // Sends what the connection takes now. False after a fault.
  bool send(size_t r, const Header& header, RankArray mine) {
    Peer& peer = peers_[r];
    const auto values = std::as_bytes(std::span(mine.data, static_cast<size_t>(mine.count)));
    while (peer.sent < sizeof header + values.size()) {
      const auto rest = peer.sent < sizeof header
                            ? std::as_bytes(std::span(&header, 1)).subspan(peer.sent)
                            : values.subspan(peer.sent - sizeof header);
      const int more = peer.sent < sizeof header && !values.empty() ? MSG_MORE : 0;
      const ssize_t count = ::send(sockets_[r].fd(), rest.data(), rest.size(), MSG_NOSIGNAL | more);
      if (count < 0) return is_later(r);
      peer.sent += static_cast<size_t>(count);
    }
    return true;
  }
  bool receive(size_t r) {
    Peer& peer = peers_[r];
    while (!peer.is_whole()) {
      const bool in_header = peer.received < sizeof(Header);
      std::byte* const to = in_header ? reinterpret_cast<std::byte*>(&peer.header) + peer.received
                                      : reinterpret_cast<std::byte*>(peer.values.data()) +
                                            peer.received - sizeof(Header);
      const size_t size = in_header ? sizeof(Header) - peer.received
                                    : sizeof(Header) + 4 * peer.values.size() - peer.received;
      const ssize_t count = ::recv(sockets_[r].fd(), to, size, 0);
      if (count == 0) errno = ECONNRESET;
      if (count <= 0) return is_later(r);
      peer.received += static_cast<size_t>(count);
      if (!in_header || peer.received < sizeof(Header)) continue;
      if (peer.header.number != number_ || peer.header.count < 0 ||
          peer.header.count > kMostFloats) {
        set_fault(fmt::format("rank {} is at exchange {}, rank {} at {}", r, peer.header.number,
                              rank_, number_));
        return false;
      }
      peer.values.resize(static_cast<size_t>(peer.header.count));
    }
    return true;
  }
  // By errno of a send or recv that did nothing.
  bool is_later(size_t r) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return true;
    const std::string why =
        errno == ECONNRESET || errno == EPIPE ? "has ended" : std::strerror(errno);
    set_fault(names_[r] + " " + why);
    return false;
  }

  const int32_t rank_;
  const std::vector<RankSocket> sockets_;  // by rank; its own is not open
  std::vector<std::string> names_;         // with the hosts, also after their end
  std::vector<Peer> peers_;
  std::vector<RankArray> arrays_;
  const std::chrono::milliseconds patience_;
  uint64_t number_ = 0;
  size_t awaited_ = 0;
  std::atomic<bool> has_fault_{false};
  mutable std::mutex mutex_;
  std::string fault_;
};

}  // namespace

std::unique_ptr<RankLink> make_socket_link(int32_t rank, std::vector<RankSocket> peers,
                                           std::chrono::milliseconds patience) {
  return std::make_unique<SocketLink>(rank, std::move(peers), patience);
}

}  // namespace moxie
