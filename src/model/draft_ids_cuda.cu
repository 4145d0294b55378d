// One thread an id.
#include "core/cuda_launch.cuh"
#include "model/draft_ids_cuda.h"

namespace moxie {
namespace {

constexpr int kThreads = 64;

struct IdsParams {
  const SampleAnswer* answers;
  const int32_t* target_ids;
  int32_t* ids;
  int32_t n;
};

__global__ void __launch_bounds__(kThreads) write_ids(const __grid_constant__ IdsParams p) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= p.n) return;
  const int32_t token = p.answers[i].token;
  p.ids[i] = p.target_ids == nullptr || token < 0 ? token : p.target_ids[token];
}

}  // namespace

void draft_ids_cuda(const SampleAnswer* answers, int32_t n, const int32_t* target_ids, int32_t* ids,
                    Stream& stream) {
  launch_kernel("draft_ids_cuda", write_ids,
                IdsParams{.answers = answers, .target_ids = target_ids, .ids = ids, .n = n},
                dim3(static_cast<unsigned>(ceil_div(n, kThreads))), kThreads, 0,
                launch_stream(&stream));
}

}  // namespace moxie
