// One block a row. Blocks of other tokens end at once.
#include "core/cuda_launch.cuh"
#include "model/draft_masks_cuda.h"

namespace moxie {
namespace {

constexpr int kThreads = 256;

struct MasksParams {
  const int32_t* tokens;
  const float* embedding;  // [hidden]
  float2* x;               // [n, hidden] pairs
  int32_t mask_id, hidden;
};

__global__ void __launch_bounds__(kThreads) write_masks(const __grid_constant__ MasksParams p) {
  if (p.tokens[blockIdx.x] != p.mask_id) return;
  float2* row = p.x + static_cast<int64_t>(blockIdx.x) * p.hidden;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < p.hidden; i += kThreads)
    row[i] = make_float2(p.embedding[i], -0.0f);  // as embed leaves it
}

}  // namespace

void draft_masks_cuda(const int32_t* tokens, int32_t n, int32_t mask_id, const float* embedding,
                      int32_t hidden, float* x, Stream& stream) {
  launch_kernel("draft_masks_cuda", write_masks,
                MasksParams{.tokens = tokens,
                            .embedding = embedding,
                            .x = reinterpret_cast<float2*>(x),
                            .mask_id = mask_id,
                            .hidden = hidden},
                dim3(static_cast<unsigned>(n)), kThreads, 0, launch_stream(&stream));
}

}  // namespace moxie
