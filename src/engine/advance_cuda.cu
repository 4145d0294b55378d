// `advance` on CUDA: one block; each warp takes one stream's entry at a time.
#include <algorithm>

#include "core/cuda_launch.cuh"
#include "engine/advance.h"

namespace moxie {
namespace {

constexpr int kMaxWarps = 32;
constexpr int kAnswerWords = sizeof(SampleAnswer) / 4;
static_assert(sizeof(SampleAnswer) % 4 == 0, "answers are copied in words");

__global__ void __launch_bounds__(32 * kMaxWarps)
    advance_rows(const __grid_constant__ AdvanceParams p) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  wait_for_previous();
  launch_next();
  const AdvanceCounters counters = *p.counters;
  const int64_t slot = int64_t{counters.number % static_cast<uint32_t>(p.num_slots)};
  for (int row = static_cast<int>(threadIdx.x / 32); row < p.num_rows; row += blockDim.x / 32) {
    const int64_t cell = slot * p.row_stride + row;
    const SampleAnswer& answer = p.answers[row];
    const bool whole = p.requests[row].num_logprobs >= 0;
    if (whole) {
      const auto* from = reinterpret_cast<const uint32_t*>(&answer);
      auto* to = reinterpret_cast<uint32_t*>(&p.answer_ring[cell]);
      for (int i = lane; i < kAnswerWords; i += 32) to[i] = from[i];
      __threadfence_system();
      __syncwarp();
    }
    if (lane == 0) {
      const int32_t drawn = answer.token;
      // A negative token tells the host of an end; it must not become an index.
      p.token_ids[row] = counters.round < counters.num_fed
                             ? p.fed[int64_t{row} * p.fed_stride + counters.round]
                             : max(drawn, 0);
      ++p.positions[row];
      ++p.requests[row].step;
      // One aligned 8-byte store: the host sees all of it or nothing.
      *reinterpret_cast<volatile uint64_t*>(&p.words[cell]) =
          uint64_t{counters.number} << 32 | static_cast<uint32_t>(drawn);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    p.counters->number = counters.number + 1;
    p.counters->round = counters.round + 1;
  }
}

}  // namespace

void advance_cuda(const AdvanceParams& params) {
  launch_kernel("advance", advance_rows, params,
                {.grid = dim3(1),
                 .num_threads = 32 * std::min(params.num_rows, kMaxWarps),
                 .programmatic = true},
                launch_stream(params.launch.stream));
}

}  // namespace moxie
