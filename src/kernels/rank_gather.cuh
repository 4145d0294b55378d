// Exchanges between ranks that are processes on GPUs: a kernel writes what a rank has into its
// place, NCCL fills the places of the others, and a kernel reads them all. Large exchanges go in
// pieces that fit the places. Each kernel of the two notes where the rank is, for the host to see
// one that waits.
#pragma once

#include <algorithm>

#include "core/cuda_launch.cuh"
#include "core/rank_gather.h"
#include "kernels/op.h"

namespace moxie::nccl {

inline constexpr int kThreads = 256;

#ifdef __CUDACC__
/// Counts an exchange as begun (0) or ended (1); kernels of a rank run one after another.
__device__ __forceinline__ void note(const RankGatherMarks& marks, int which) {
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  const uint32_t count = marks.counts[which] + 1;
  marks.counts[which] = count;
  *reinterpret_cast<volatile uint32_t*>(marks.words + which) = count;
}
#endif

/// Blocks for a kernel whose threads have `count` things together.
inline dim3 grid_for(int64_t count) {
  constexpr int64_t kMostBlocks = 1056;
  return dim3(static_cast<unsigned>(
      std::min(kMostBlocks, std::max<int64_t>(1, ceil_div<int64_t>(count, kThreads)))));
}

/// One exchange. `mine` starts behind the kernel before it; `all` waits for NCCL's kernel, which
/// does not let it start beside itself.
template <typename P>
void exchange(const char* row, RankGather& gather, uint64_t bytes, int64_t count, void (*mine)(P),
              void (*all)(P), const P& params, const Launch& launch) {
  LaunchShape shape{.grid = grid_for(count),
                    .num_threads = kThreads,
                    .programmatic = true,
                    .leaves_l1 = launch.l1 == L1Form::kL1};
  launch_kernel(row, mine, params, shape, launch_stream(launch.stream));
  gather.run(bytes, *launch.stream);
  shape.programmatic = false;
  launch_kernel(row, all, params, shape, launch_stream(launch.stream));
}

}  // namespace moxie::nccl
