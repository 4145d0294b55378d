// tap on CUDA: one block a token, two values a thread. Bound by memory; exact except for the
// rounding of a pair's sum to a float.
#include "core/cuda_launch.cuh"
#include "kernels/residual.cuh"
#include "kernels/tap/tap_rows.h"

namespace moxie {
namespace {

constexpr int kThreads = 256;

struct CopyParams {
  const float* x;
  float* to;
  int32_t cols;
};

template <bool kIsSingle>
__global__ void __launch_bounds__(kThreads) copy_residual(const __grid_constant__ CopyParams p) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * p.cols;
  for (int32_t i = 2 * static_cast<int32_t>(threadIdx.x); i < p.cols; i += 2 * kThreads)
    *reinterpret_cast<float2*>(p.to + first + i) = whole(load_residual<kIsSingle>(p.x, first + i));
}

}  // namespace

void tap_any_copy_cuda(const TapParams& params) {
  if (params.num_tokens == 0) return;
  const CopyParams copy{.x = params.x, .to = params.to, .cols = params.hidden};
  auto* kernel = params.forms.x == XForm::kF32 ? copy_residual<true> : copy_residual<false>;
  launch_kernel("tap_any_copy_cuda", kernel, copy, dim3(static_cast<unsigned>(params.num_tokens)),
                kThreads, 0, launch_stream(params.launch.stream));
}

}  // namespace moxie
