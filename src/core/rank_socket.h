// A TCP connection between two ranks, with deadlines. Not for untrusted networks: nothing is
// encrypted, and whoever can connect while ranks meet may claim to be one.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/rank_link.h"

namespace moxie {

class RankSocket {
 public:
  RankSocket() = default;
  explicit RankSocket(int fd) : fd_(fd) {}
  RankSocket(RankSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  RankSocket& operator=(RankSocket&& other) noexcept;
  RankSocket(const RankSocket&) = delete;
  RankSocket& operator=(const RankSocket&) = delete;
  ~RankSocket();

  /// Listens on all addresses; port 0: on any free one. Fails if the port is taken.
  static Result<RankSocket> listen(uint16_t port);
  /// The next connection to a listening socket.
  Result<RankSocket> accept(Clock::time_point deadline) const;
  /// Connects, again and again until the deadline: the other rank may start later. Warns every five
  /// seconds.
  static Result<RankSocket> connect(const std::string& host, uint16_t port,
                                    Clock::time_point deadline);

  /// All bytes, or a fault: the other side is gone, or the deadline has passed.
  Status send(std::span<const std::byte> bytes, Clock::time_point deadline) const;
  Status receive(std::span<std::byte> bytes, Clock::time_point deadline) const;
  /// Bytes with their number before them, `most` at most.
  Status send_message(std::span<const std::byte> bytes, Clock::time_point deadline) const;
  Result<std::vector<std::byte>> receive_message(uint64_t most, Clock::time_point deadline) const;
  Status send_text(const std::string& text, Clock::time_point deadline) const {
    return send_message(std::as_bytes(std::span(text)), deadline);
  }
  Result<std::string> receive_text(uint64_t most, Clock::time_point deadline) const;
  /// Ends the connection for both sides, from any thread; the socket stays open.
  void shut_down() const;

  uint16_t port() const;          ///< of this side
  std::string peer_host() const;  ///< "10.0.0.2"
  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// The link of one process with the others, whose connections are in the order of ranks, its own
/// not open. A rank that the others have awaited for `patience`, or that ends, is a fault.
std::unique_ptr<RankLink> make_socket_link(int32_t rank, std::vector<RankSocket> peers,
                                           std::chrono::milliseconds patience);

}  // namespace moxie
