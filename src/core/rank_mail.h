// What kernels of ranks on GPUs share.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moxie {

/// Between GPUs: where kernels leave what other ranks read (kernels/rank_mail.cuh). Plain data for
/// a kernel's parameters; all pointers are valid on the rank's device. A rank's memory holds, for
/// each rank that sends,
///   words   [kSlots, kWords]                           of 16 bytes: values and a number
///   units   [kUnitSlots, kMostBlocks, kUnitsOfBlock]   of 16 bytes: values
///   flags   [kFlags, kMostBlocks]                      of 4 bytes: the number of the last
///   round of units that has come; kFlags: of a rank's values, of its sums of all ranks' values
struct RankMail {
  static constexpr int32_t kMostRanks = 8;
  static constexpr int64_t kWords = 1 << 17;   ///< from one rank in one chunk
  static constexpr int32_t kSlots = 2;         ///< chunks alternate between them
  static constexpr int32_t kBlocksOfUnit = 4;  ///< of a multiprocessor: all must find room at once
  static constexpr int32_t kMostBlocks = 528, kUnitsOfBlock = 512, kUnitSlots = 4;
  static constexpr int32_t kFlags = 2;

  int32_t rank = 0, size = 1;
  int32_t num_blocks = kMostBlocks;  ///< of a kernel at most
  /// Of this rank: chunks of words and rounds of units so far, and blocks that have ended a kernel.
  uint32_t* state = nullptr;
  std::byte* boxes[kMostRanks] = {};  ///< by rank: its memory
  /// By rank: where another rank's out leaves its part of x in BF16 (ReduceForm::kRounded, kSent).
  uint16_t* received[kMostRanks] = {};
  uint32_t* fault = nullptr;  ///< in host memory, of all ranks: 1 + the rank awaited in vain
  uint64_t patience_ns = 0;

  /// Of one sending rank: where units and flags begin, and all.
  static constexpr int64_t kUnitsAt = int64_t{16} * kSlots * kWords;
  static constexpr int64_t kFlagsAt =
      kUnitsAt + int64_t{16} * kUnitSlots * kMostBlocks * kUnitsOfBlock;
  static constexpr int64_t kBytesOfRank = kFlagsAt + int64_t{4} * kFlags * kMostBlocks;
  static_assert(kBytesOfRank % 16 == 0);
};

}  // namespace moxie
