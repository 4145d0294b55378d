// What ranks that are processes on GPUs share with their kernels: memory with a place for each
// rank, which NCCL fills on all of them, and counts by which the host sees whether they wait.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/nccl_library.h"
#include "core/rank_link.h"

namespace moxie {

/// Plain data for a kernel's parameters: exchanges that a rank has begun and ended so far.
struct RankGatherMarks {
  uint32_t* counts = nullptr;  ///< [2], of the device
  uint32_t* words = nullptr;   ///< [2], the same for the host to read
};

class RankGather {
 public:
  /// The most that a rank gives in one exchange.
  static constexpr uint64_t kPlaceBytes = 16 << 20;

  virtual ~RankGather() = default;
  /// Device memory: rank r's `bytes` of an exchange lie at r * bytes.
  virtual std::byte* places() const = 0;
  virtual RankGatherMarks marks() const = 0;
  /// Gives an exchange to the stream: behind it every rank has what all had in their own places.
  /// May be captured. After a fault, which the link keeps, it does nothing.
  virtual void run(uint64_t bytes, Stream& stream) = 0;
};

/// Device memory that a rank of so many takes for this: the places, and an estimate of what NCCL
/// takes itself.
uint64_t rank_gather_bytes(int32_t size);

/// The link of a process whose rank has a GPU, with the others; `base`, between the processes, and
/// the device outlive it. All ranks call this at the same time, with rank 0's `id`. Their first
/// exchange is part of it, on `stream`. A fault of `base` ends waiting kernels, and a rank that
/// others have awaited for `patience` is one. Should a process not end within seconds of a fault,
/// this ends it.
Result<std::unique_ptr<RankLink>> make_nccl_link(
    RankLink& base, const NcclLibrary& nccl, const NcclId& id, Device& device, Stream& stream,
    std::chrono::milliseconds patience = std::chrono::seconds(10));

}  // namespace moxie
