// Lists of integers that the device reads: on the CPU the host's own, on CUDA copied to device
// memory in one piece, from pinned memory that is used again once the stream has read it.
#pragma once

#include <cstdint>
#include <span>

#include "core/device.h"

namespace moxie {

class PackedCopy {
 public:
  /// Bytes that a list of `count` integers takes.
  static uint64_t padded(uint64_t count) { return round_up<uint64_t>(4 * count, 64); }
  /// For lists of `bytes` in all.
  static Result<PackedCopy> create(Device& device, uint64_t bytes);

  /// Begins a copy. Waits for the stream if the pinned memory of all earlier copies may be in use.
  Status begin(Stream& stream);
  /// Adds a list and returns its place on the device, valid until the next begin(). On the CPU this
  /// is the list itself, which must not change before then.
  const int32_t* put(std::span<const int32_t> list);
  /// The same for a list that the device writes.
  int32_t* reserve(uint64_t count);
  /// Copies what was put, in stream order.
  Status finish(Stream& stream);
  /// The stream has done all copies: the caller has waited for it.
  void is_idle() { slot_ = 0; }

 private:
  static constexpr int kSlots = 4;

  Device* device_ = nullptr;
  Buffer memory_;   // on the CPU only for reserve()
  Buffer staging_;  // CUDA only: kSlots times as large
  int slot_ = 0;
  std::byte* host_ = nullptr;
  uint64_t used_ = 0;
};

}  // namespace moxie
