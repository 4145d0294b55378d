// How ranks that are processes find each other, agree, and talk besides their exchanges: rank 0
// tells the others what to run, and every rank says each second that it is alive.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <thread>
#include <vector>

#include "core/rank_link.h"
#include "core/rank_socket.h"
#include "core/rank_world.h"

namespace moxie {

/// A connection between rank 0 and another, for messages of a kind and bytes. Sends from any
/// thread; receives from one.
class RankTalk {
 public:
  /// kAlive and kLoaded hold what the sender says of itself.
  enum class Kind : uint8_t { kAlive, kLoaded, kFault, kOrder, kQuit };
  struct Message {
    Kind kind = Kind::kAlive;
    std::vector<std::byte> bytes;
    std::string text() const { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
  };

  RankTalk(RankSocket socket, int32_t rank)
      : socket_(std::move(socket)), rank_(rank), host_(socket_.peer_host()) {}
  int32_t rank() const { return rank_; }             ///< of the other side
  const std::string& host() const { return host_; }  ///< of the other side, also after its end
  const RankSocket& socket() const { return socket_; }
  Status send(Kind kind, std::span<const std::byte> bytes = {});
  Status send(Kind kind, const std::string& text) {
    return send(kind, std::as_bytes(std::span(text)));
  }
  Result<Message> receive(Clock::time_point deadline);

 private:
  RankSocket socket_;
  int32_t rank_;
  std::string host_;
  std::mutex mutex_;
};

/// After ranks have met. Each says every second that it is alive; one that is not heard of for the
/// link's patience, or whose connection ends, is the link's fault, which names it.
class RankMeeting {
 public:
  /// Waits for all ranks. `terms`: an object of what all must have in common, by the names that
  /// errors show. `plan`: what rank 0 tells the others, which they get here. Fails on all ranks if
  /// they differ, if one claims another's place, or if one does not come in time.
  static Result<std::unique_ptr<RankMeeting>> meet(
      const RankWorld& world, const nlohmann::ordered_json& terms, nlohmann::ordered_json* plan,
      std::chrono::milliseconds patience = std::chrono::seconds(10),
      std::chrono::milliseconds wait = std::chrono::seconds(120));
  /// For a rank that cannot come: all that meet end with this text. Rank 0 awaits the others for
  /// ten seconds, to tell them.
  static void stay_away(const RankWorld& world, const std::string& why);
  ~RankMeeting();
  RankMeeting(const RankMeeting&) = delete;
  RankMeeting& operator=(const RankMeeting&) = delete;

  const RankWorld& world() const { return world_; }
  RankLink& link() { return *link_; }
  /// Rank 0: waits until all others have called say_loaded().
  Status await_loaded();
  void say_loaded();
  /// Rank 0: what each rank has said of itself last, by rank; the others each second.
  std::vector<RankFacts> facts() const;
  /// Rank 0: sends an order to all others.
  Status order(std::span<const std::byte> bytes);
  /// Others: the next order; nothing once rank 0 has ended well. Fails with the link's fault.
  Result<std::optional<std::vector<std::byte>>> next_order();
  /// Rank 0: tells the others that it ends: well, or with exit_fault(), unless the link has a fault
  /// of which they know. Once; the end of the meeting does it, too.
  void say_end();
  /// Ends the work of all ranks: a fault, which they report. To be called before one's own end.
  void end_with_fault(const std::string& text);

 private:
  RankMeeting() = default;
  Status gather(const nlohmann::ordered_json& terms, const nlohmann::ordered_json& plan,
                Clock::time_point deadline);
  Status join(const nlohmann::ordered_json& terms, nlohmann::ordered_json* plan,
              Clock::time_point deadline);
  Status connect_all(const RankSocket& listener, const std::vector<std::string>& hosts,
                     const std::vector<uint16_t>& ports, const std::string& token,
                     Clock::time_point deadline);
  void watch();
  void hear(RankTalk& talk);
  std::string name_of(const RankTalk& talk) const;
  Status send_facts(RankTalk& talk, RankTalk::Kind kind);
  void keep_facts(const RankTalk& talk, std::span<const std::byte> bytes);

  RankWorld world_;
  std::chrono::milliseconds patience_{};
  std::vector<RankSocket> peers_;  // until they are the link's
  std::unique_ptr<RankLink> link_;
  std::vector<std::unique_ptr<RankTalk>> talks_;  // rank 0: with all others; others: with rank 0
  std::vector<Clock::time_point> heard_;          // by talk; rank 0's watch
  mutable std::mutex mutex_;
  std::vector<RankFacts> facts_;  // of the other ranks, in the order of talks_
  std::atomic<int32_t> num_loaded_{0};
  bool has_said_end_ = false;
  std::atomic<bool> ends_{false};
  std::thread watch_;
};

}  // namespace moxie
