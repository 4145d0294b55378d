// The end of a decode step on the device: the token just drawn becomes the next step's input, and
// the host is told. With it a step needs nothing from the host, which may lag behind.
#pragma once

#include "kernels/sample/sample.h"

namespace moxie {

/// What the device counts by itself.
struct AdvanceCounters {
  uint32_t number = 0;  ///< of the round: answers carry it; never 0
  int32_t round = 0;    ///< since the session began
  int32_t num_fed = 0;  ///< rounds whose next token is given and not the one drawn
};

/// Plain data; all pointers are of the device, `words` and `answer_ring` of host memory that the
/// device reaches.
struct AdvanceParams {
  Launch launch;
  int32_t num_rows = 0;
  const SampleAnswer* answers;  // [rows]
  SampleRequest* requests;      // [rows], step + 1
  int32_t* token_ids;           // [rows], the next step's tokens
  int32_t* positions;           // [rows], + 1
  const int32_t* fed;           // [rows, fed_stride], read in rounds below num_fed
  int32_t fed_stride = 0;
  AdvanceCounters* counters;
  uint64_t* words;            // [slots, row_stride] number << 32 | token: one store tells both
  SampleAnswer* answer_ring;  // [slots, row_stride], written first, for rows that want logprobs
  int32_t num_slots = 0, row_stride = 0;
};

/// Runs in stream order after sample.
void advance(const AdvanceParams& params);

#if MOXIE_HAS_CUDA
void advance_cuda(const AdvanceParams& params);
#endif

}  // namespace moxie
