// advance on the CPU.
#include "kernels/sample/advance.h"

#include <algorithm>
#include <atomic>

namespace moxie {

void advance_cpu(const SampleParams& params) {
  const AdvanceParams& p = *params.advance;
  AdvanceCounters& counters = *p.counters;
  const int64_t slot = int64_t{counters.number % static_cast<uint32_t>(p.num_slots)} * p.row_stride;
  for (int32_t row = 0; row < params.num_rows; ++row) {
    const int32_t drawn = params.answers[row].token;
    p.token_ids[row] = counters.round < counters.num_fed
                           ? p.fed[int64_t{row} * p.fed_stride + counters.round]
                           : std::max(drawn, 0);
    ++p.positions[row];
    ++p.requests[row].step;
    if (p.requests[row].num_logprobs >= 0) p.answer_ring[slot + row] = params.answers[row];
    std::atomic_ref(p.words[slot + row])
        .store(uint64_t{counters.number} << 32 | static_cast<uint32_t>(drawn),
               std::memory_order_release);
  }
  ++counters.number;
  ++counters.round;
}

}  // namespace moxie
