// `advance` on CUDA, behind a draw that does not advance by itself: one block; each warp takes one
// stream's entry at a time.
#include <algorithm>

#include "core/cuda_launch.cuh"
#include "kernels/sample/advance.cuh"

namespace moxie {
namespace {

constexpr int kMaxWarps = 32;
constexpr int kAnswerWords = sizeof(SampleAnswer) / 4;
static_assert(sizeof(SampleAnswer) % 4 == 0, "answers are copied in words");

struct AdvanceLaunch {
  AdvanceParams advance;
  const SampleAnswer* answers;  // [rows]
  int32_t num_rows;
};

__global__ void __launch_bounds__(32 * kMaxWarps)
    advance_rows(const __grid_constant__ AdvanceLaunch launch) {
  const AdvanceParams& p = launch.advance;
  const int lane = static_cast<int>(threadIdx.x % 32);
  wait_for_previous();
  launch_next();
  const AdvanceCounters counters = *p.counters;
  for (int row = static_cast<int>(threadIdx.x / 32); row < launch.num_rows;
       row += blockDim.x / 32) {
    const SampleAnswer& answer = launch.answers[row];
    if (p.requests[row].num_logprobs >= 0) {
      const auto* from = reinterpret_cast<const uint32_t*>(&answer);
      auto* to = reinterpret_cast<uint32_t*>(&p.answer_ring[advance_cell(p, counters.number, row)]);
      for (int i = lane; i < kAnswerWords; i += 32) to[i] = from[i];
      __threadfence_system();
      __syncwarp();
    }
    if (lane == 0) advance_row(p, load_entry(p, row), row, answer.token);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    p.counters->number = counters.number + 1;
    p.counters->round = counters.round + 1;
  }
}

}  // namespace

void advance_cuda(const SampleParams& params) {
  const AdvanceLaunch launch{
      .advance = *params.advance, .answers = params.answers, .num_rows = params.num_rows};
  launch_kernel("advance", advance_rows, launch,
                {.grid = dim3(1),
                 .num_threads = 32 * std::min(params.num_rows, kMaxWarps),
                 .programmatic = true},
                launch_stream(params.launch.stream));
}

}  // namespace moxie
