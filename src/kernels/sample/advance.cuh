// A stream's step to its next launch, for the kernels that end a draw.
#pragma once

#include "kernels/sample/advance.h"

namespace moxie {

/// A stream's entries and the counters before the launch.
struct AdvanceEntry {
  AdvanceCounters counters;
  int32_t position;
  uint64_t step;
};
/// Nothing waits for these loads before advance_row(), so that a draw can run beside them.
__device__ __forceinline__ AdvanceEntry load_entry(const AdvanceParams& p, int32_t row) {
  return {*p.counters, p.positions[row], p.requests[row].step};
}

/// The place of a launch's answer in the ring.
__device__ __forceinline__ int64_t advance_cell(const AdvanceParams& p, uint32_t number,
                                                int32_t row) {
  return int64_t{number % static_cast<uint32_t>(p.num_slots)} * p.row_stride + row;
}

/// By one thread. What else the host reads of the answer has been written.
__device__ __forceinline__ void advance_row(const AdvanceParams& p, const AdvanceEntry& entry,
                                            int32_t row, int32_t drawn) {
  const auto& [number, round, num_fed] = entry.counters;
  // One aligned 8-byte store: the host sees all of it or nothing.
  *reinterpret_cast<volatile uint64_t*>(&p.words[advance_cell(p, number, row)]) =
      uint64_t{number} << 32 | static_cast<uint32_t>(drawn);
  // A negative token tells the host of an end; it must not become an index.
  p.token_ids[row] = round < num_fed ? p.fed[int64_t{row} * p.fed_stride + round] : max(drawn, 0);
  p.positions[row] = entry.position + 1;
  p.requests[row].step = entry.step + 1;
}

}  // namespace moxie
