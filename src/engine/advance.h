// The end of a launch in the decode loop, on the device: the drawn token becomes the next launch's
// input and is written to host memory. So a launch needs nothing from the host, which may lag.
#pragma once

#include "kernels/sample/sample.h"

namespace moxie {

/// Counters that the device keeps and advances.
struct AdvanceCounters {
  uint32_t number = 0;  ///< of the launch: answers carry it; never 0
  int32_t round = 0;    ///< launches since the session began
  int32_t num_fed = 0;  ///< launches whose next token is given, not the drawn one
};

/// Plain data. All pointers are device pointers; `words` and `answer_ring` point to mapped host
/// memory. [rows]: one entry a stream.
struct AdvanceParams {
  Launch launch;
  int32_t num_rows = 0;
  const SampleAnswer* answers;  // [rows]
  SampleRequest* requests;      // [rows], step + 1
  int32_t* token_ids;           // [rows], the next launch's tokens
  int32_t* positions;           // [rows], + 1
  const int32_t* fed;           // [rows, fed_stride], read in rounds below num_fed
  int32_t fed_stride = 0;
  AdvanceCounters* counters;
  uint64_t* words;            // [slots, row_stride] number << 32 | token: one store tells both
  SampleAnswer* answer_ring;  // [slots, row_stride], written first, if logprobs are asked for
  int32_t num_slots = 0, row_stride = 0;
};

/// Runs after `sample`, in stream order.
void advance(const AdvanceParams& params);

#if MOXIE_HAS_CUDA
void advance_cuda(const AdvanceParams& params);
#endif

}  // namespace moxie
