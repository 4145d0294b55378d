// What the ranks of a model say to each other within a pass: each gives an array, and sees those of
// all. Between threads of a process nothing is copied; between GPUs of a process kernels write to
// each other's memory (RankMail), and those of several processes gather by NCCL (RankGather).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/device.h"

namespace moxie {

/// kThreads: ranks are threads of a process, on the CPU. kPeers: ranks are GPUs of one process that
/// can write to each other's memory. kSockets: ranks are processes, each on the CPU of its host.
/// kNccl: ranks are processes, each with a GPU.
enum class LinkKind : uint8_t { kNone, kThreads, kPeers, kSockets, kNccl };
constexpr bool is_between_gpus(LinkKind kind) {
  return kind == LinkKind::kPeers || kind == LinkKind::kNccl;
}
/// Between ranks of one process on devices of this kind.
constexpr LinkKind link_between(DeviceKind kind) {
  return kind == DeviceKind::kCuda ? LinkKind::kPeers : LinkKind::kThreads;
}

/// What a rank has of `count` things in units of `unit`, the last of which may be smaller.
struct RankShare {
  int32_t first = 0, count = 0;
};
constexpr RankShare share_of_rank(int32_t count, int32_t unit, int32_t rank, int32_t num_ranks) {
  const int64_t units = (int64_t{count} + unit - 1) / unit;
  const auto border = [&](int64_t r) {
    const int64_t at = units * r / num_ranks * unit;
    return static_cast<int32_t>(at < count ? at : count);
  };
  return {border(rank), border(rank + 1) - border(rank)};
}

/// An array of another rank, or one's own.
struct RankArray {
  const float* data = nullptr;
  int64_t count = 0;
};

class RankGather;
struct RankMail;
/// Device memory in which each of so many ranks on GPUs receives from the others.
uint64_t rank_mail_bytes(int32_t size);

/// What a rank says of itself to those who watch it.
struct RankFacts {
  int32_t rank = 0;
  uint64_t weights_bytes = 0;
  uint64_t num_exchanges = 0;  ///< by the host: none between GPUs
  double exchange_s = 0;       ///< in these: sending, and awaiting the others
};

class RankLink {
 public:
  virtual ~RankLink() = default;
  virtual LinkKind kind() const = 0;
  virtual int32_t rank() const = 0;
  virtual int32_t size() const = 0;
  /// Gives `mine`, waits for the others and returns all ranks' arrays by rank. They stay as they
  /// are until the next exchange: a rank may write its own again only after that. Empty after a
  /// fault.
  std::span<const RankArray> exchange(RankArray mine);
  /// Of ranks on GPUs, instead of exchange(): core/rank_mail.h. Null: none.
  virtual const RankMail* mail() const { return nullptr; }
  /// The same of ranks that are processes with GPUs: core/rank_gather.h. Null: none.
  virtual RankGather* gather() { return nullptr; }
  /// Of ranks on GPUs of one process, before their first launch: what is RankMail::received of this
  /// rank. From any thread.
  virtual void set_received(uint16_t*) {}
  /// Of ranks that are processes: one whose connection has ended, without an exchange that would
  /// find it out. From any thread.
  virtual std::optional<int32_t> lost_rank() const { return {}; }
  /// Ends all exchanges, those of other ranks too. The first fault stays.
  virtual void set_fault(const std::string& text) = 0;
  /// The fault, if there was one.
  virtual Status status() const = 0;

  void set_weights_bytes(uint64_t bytes) { weights_bytes_.store(bytes); }
  /// From any thread.
  RankFacts facts() const;

 private:
  virtual std::span<const RankArray> meet(RankArray mine) = 0;
  std::atomic<uint64_t> weights_bytes_{0}, num_exchanges_{0}, exchange_ns_{0};
};

/// Links of `size` ranks that are threads of this process. A rank that the others have awaited for
/// `patience` is a fault, which names it.
std::vector<std::unique_ptr<RankLink>> make_thread_links(
    int32_t size, std::chrono::milliseconds patience = std::chrono::seconds(10));

/// Links of ranks on these CUDA devices, in the order of ranks; a device may have several. Fails,
/// naming both, if a device cannot write to another's memory. The devices must outlive the links.
Result<std::vector<std::unique_ptr<RankLink>>> make_peer_links(
    std::span<Device* const> devices,
    std::chrono::milliseconds patience = std::chrono::seconds(10));

/// The link of the first of `size` ranks, on a GPU without the others: what it sends to a rank it
/// receives as that rank's. So it runs a rank's kernels, for their times; values are not the
/// model's. The device must outlive the link.
Result<std::unique_ptr<RankLink>> make_mirrored_link(
    Device& device, int32_t size, std::chrono::milliseconds patience = std::chrono::seconds(10));

}  // namespace moxie
