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
  SampleRequest* requests = nullptr;  // [rows], those of the draw; step + 1
  int32_t* token_ids = nullptr;       // [rows], the next launch's tokens
  int32_t* positions = nullptr;       // [rows], + 1
  const int32_t* fed = nullptr;       // [rows, fed_stride], read in rounds below num_fed
  int32_t fed_stride = 0;
  AdvanceCounters* counters = nullptr;  // number + 1, round + 1
  uint64_t* words = nullptr;  // [slots, row_stride] number << 32 | token: one store tells both
  SampleAnswer* answer_ring = nullptr;  // [slots, row_stride], written first, if logprobs are
                                        // asked for
  int32_t num_slots = 0, row_stride = 0;
};

/// Moves the streams of `params.advance` to their next launch, behind the draw and in stream order.
void advance_cpu(const SampleParams& params);
#if MOXIE_HAS_CUDA
void advance_cuda(const SampleParams& params);
#endif

}  // namespace moxie
